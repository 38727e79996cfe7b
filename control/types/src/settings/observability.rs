//! ConfigMap `config-observability` of Serving: the URL of Revision logs, and the request log.

use std::sync::Arc;

use contract::request_log::LogTemplate;
use contract::request_log::RequestLog;

use super::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};
use crate::field_errors::FieldErrors;

const URL: &str = "logging.revision-url-template";
const UID: &str = "${REVISION_UID}";
const LINES: &str = "logging.enable-request-log";
const PROBES: &str = "logging.enable-probe-request-log";
const LINE: &str = "logging.request-log-template";

/// The default line, if only the log is enabled: the object that upstream's has, which Google's and other
/// collectors read as a request.
const LINE_DEFAULT: &str = concat!(
    r#"{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", "#,
    r#""requestSize": "{{.Request.ContentLength}}", "status": {{.Response.Code}}, "#,
    r#""responseSize": "{{.Response.Size}}", "userAgent": "{{js .Request.UserAgent}}", "#,
    r#""remoteIp": "{{js .Request.RemoteAddr}}", "serverIp": "{{.Revision.PodIP}}", "#,
    r#""referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", "#,
    r#""protocol": "{{.Request.Proto}}"}, "traceId": "{{.TraceID}}"}"#,
);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservabilitySettings {
    log_url: String,
    /// The log lines for requests of Revisions, if any (X-OBS-04).
    pub request_log: Option<Arc<RequestLog>>,
}

impl ConfigMapSetting for ObservabilitySettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-observability";
    const EXAMPLE: &'static str = "\
# Stands in status.logUrl of each Revision. `kubectl logs` shows what instances write; metrics stand at /metrics of the
# admin listener, requests in the access log (--access-log).
logging.revision-url-template: \"\"
# logging.revision-url-template: \"https://logs.example/?revision=${REVISION_UID}\"
# The API itself has them at /sluicegate/logs/${REVISION_UID}, those of instances that are gone included.

# Each request of a Revision has a line, where the access log is written (else on stderr); probes only if asked for.
logging.enable-request-log: \"false\"
logging.enable-probe-request-log: \"false\"
# The line: {{.Request.Method}}, .RequestURI, .URL, .Host, .Proto, .ContentLength, .UserAgent, .Referer, .RemoteAddr and
# {{.Request.Header.Get \"Name\"}}; {{.Response.Code}}, .Size and .Latency (seconds); {{.Revision.Name}}, .Namespace,
# .Service, .Configuration, .PodName and .PodIP; {{.TraceID}}. {{js ...}} between quotation marks. Without the key it is an
# object httpRequest with all of the request.
# logging.request-log-template: \"{{.Request.Method}} {{.Request.RequestURI}} {{.Response.Code}} {{.Response.Latency}}\"
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut config = Self::default();
        let is_url = |text: &str| {
            let url = text.replace(UID, "uid");
            text.is_empty() || url.parse::<http::Uri>().is_ok_and(|url| url.scheme().is_some() && url.host().is_some())
        };
        let what = "a URL that may contain ${REVISION_UID}";
        let mut reader = ConfigMapReader::of(data, problems);
        reader.text(URL, is_url, what, &mut config.log_url);
        let (mut has_lines, mut with_probes) = (false, false);
        reader.flag(LINES, &mut has_lines);
        reader.flag(PROBES, &mut with_probes);
        let line = data.get(LINE).map_or(LINE_DEFAULT, |line| line.trim());
        match LogTemplate::parse(line) {
            Err(why) => reader.error(LINE, &format!("{why}; see docs/admin.md for the fields of a line")),
            Ok(_) if has_lines && line.is_empty() => {
                reader.error(LINE, &format!("{LINES} is true, so a line is needed"));
            }
            Ok(template) if has_lines => {
                config.request_log = Some(Arc::new(RequestLog { template, with_probes }));
            }
            Ok(_) => {}
        }
        config
    }
}

impl ObservabilitySettings {
    /// The URL of the logs of a Revision's instances, if the operator configures one (X-OBS-05).
    #[must_use]
    pub fn log_url(&self, uid: &str) -> Option<String> {
        (!self.log_url.is_empty()).then(|| self.log_url.replace(UID, uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[(&str, &str)]) -> (ObservabilitySettings, Vec<String>) {
        let mut problems = FieldErrors::default();
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let config = ObservabilitySettings::parse(&data, &mut problems);
        (config, problems.list.iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect())
    }

    /// X-OBS-05
    #[test]
    fn the_url_of_logs_is_made_for_each_revision() {
        let parse = |text: &str| {
            let (config, problems) = parse(&[(URL, text)]);
            (config.log_url("7"), problems.len())
        };
        assert_eq!(parse("http://l.example/?r=${REVISION_UID}"), (Some("http://l.example/?r=7".into()), 0));
        assert_eq!(parse(""), (None, 0));
        assert_eq!(parse("here"), (None, 1));
    }

    /// X-OBS-04: off unless it is turned on; a line that is no good names its key and what is wrong with it.
    #[test]
    fn requests_have_lines_if_they_are_asked_for() {
        assert_eq!(parse(&[(PROBES, "true")]).0.request_log, None);
        let (config, problems) = parse(&[(LINES, "true"), (PROBES, "true")]);
        let log = config.request_log.unwrap();
        assert!(log.with_probes && problems.is_empty(), "{problems:?}");
        assert_eq!(log.template.headers().collect::<Vec<_>>(), ["User-Agent", "Referer"]);
        for (line, why) in [
            ("{{.Request.Body}}", "{{.Request.Body}} is not a known field"),
            ("{{.TraceID", "is not closed"),
            ("", "a line is needed"),
            ("a\nb", "one line"),
        ] {
            let (config, problems) = parse(&[(LINES, "true"), (LINE, line)]);
            let reported = problems.concat();
            assert!(config.request_log.is_none() && reported.contains(LINE) && reported.contains(why), "{reported}");
        }
    }
}
