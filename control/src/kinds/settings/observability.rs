//! ConfigMap `config-observability` of Serving: where the logs of Revisions are found.

use super::{Data, Reader, SERVING, Setting};
use crate::kind::Problems;

const TEMPLATE: &str = "logging.revision-url-template";
const UID: &str = "${REVISION_UID}";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observability {
    log_url: String,
}

impl Setting for Observability {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-observability";
    const EXAMPLE: &'static str = "\
# Stands in status.logUrl of each Revision. `kubectl logs` shows what instances write; metrics stand at /metrics of the
# admin listener, requests in the access log (--access-log).
logging.revision-url-template: \"\"
# logging.revision-url-template: \"https://logs.example/?revision=${REVISION_UID}\"
";

    fn parse(data: &Data, problems: &mut Problems) -> Self {
        let mut config = Self::default();
        let is_url = |text: &str| {
            let url = text.replace(UID, "uid");
            text.is_empty()
                || url.parse::<http::Uri>().is_ok_and(|url| url.scheme().is_some() && url.host().is_some())
        };
        let what = "a URL in which ${REVISION_UID} may stand";
        Reader::of(data, problems).text(TEMPLATE, is_url, what, &mut config.log_url);
        config
    }
}

impl Observability {
    /// Where what a Revision's instances write is found, if the operator says so (X-OBS-05).
    #[must_use]
    pub fn log_url(&self, uid: &str) -> Option<String> {
        (!self.log_url.is_empty()).then(|| self.log_url.replace(UID, uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-OBS-05
    #[test]
    fn the_url_of_logs_is_made_for_each_revision() {
        let parse = |text: &str| {
            let mut problems = Problems::default();
            let config =
                Observability::parse(&Data::from([(TEMPLATE.to_owned(), text.to_owned())]), &mut problems);
            (config.log_url("7"), problems.list.len())
        };
        assert_eq!(parse("http://l.example/?r=${REVISION_UID}"), (Some("http://l.example/?r=7".into()), 0));
        assert_eq!(parse(""), (None, 0));
        assert_eq!(parse("here"), (None, 1));
    }
}
