//! The request log: a line for each request to a Revision, from the operator's template (X-OBS-04).

use std::io::Write as _;
use std::sync::Arc;

use codec::http::{BodyFraming, PlatformProbe, RequestView};
use contract::request_log::{LogField, RequestLog, TemplatePart};
use contract::table::{Backend, Endpoint, EndpointAddress};

use super::{AccessLogEntry, PART_BYTES_MAX};

/// The data of a request for its line, collected until the response.
#[derive(Default)]
pub(crate) struct RequestLogEntry {
    log: Option<Arc<RequestLog>>,
    /// The values of the headers in the template, concatenated.
    values: Vec<u8>,
    ends: Vec<usize>,
    content_length: Option<u64>,
    is_probe: bool,
    /// The backend that it is routed to.
    backend: Option<Arc<Backend>>,
    endpoint: Option<Arc<Endpoint>>,
}

impl RequestLogEntry {
    pub(crate) fn start(&mut self, log: Arc<RequestLog>, request: RequestView<'_>) {
        self.values.clear();
        self.ends.clear();
        (self.backend, self.endpoint) = (None, None);
        self.is_probe = request.head.probe != PlatformProbe::No;
        self.content_length = match request.head.framing {
            BodyFraming::Empty => Some(0),
            BodyFraming::Length(bytes) => Some(bytes),
            BodyFraming::Chunked | BodyFraming::UntilClose => None,
        };
        for name in log.template.headers() {
            let mut found = request.fields().filter(|(known, _)| known.eq_ignore_ascii_case(name));
            let value = found.next().map_or(&[][..], |(_, value)| value);
            self.values.extend_from_slice(&value[..value.len().min(PART_BYTES_MAX)]);
            self.ends.push(self.values.len());
        }
        self.log = Some(log);
    }

    pub(crate) fn set_backend(&mut self, backend: &Arc<Backend>) {
        self.backend = Some(Arc::clone(backend));
    }

    pub(crate) fn set_instance(&mut self, endpoint: &Arc<Endpoint>) {
        self.endpoint = Some(Arc::clone(endpoint));
    }

    /// Whether it has a line.
    pub(crate) fn is_enabled(&self) -> bool {
        let is_of_revision = self.backend.as_ref().is_some_and(|backend| backend.load.labels.get().is_some());
        is_of_revision && (!self.is_probe || self.log.as_ref().is_some_and(|log| log.with_probes))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, line: &AccessLogEntry<'_>) {
        let Some(log) = &self.log else { return };
        let mut headers = 0;
        for piece in log.template.pieces() {
            match piece {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Field { field, js } => self.field(out, field, *js, line, &mut headers),
            }
        }
        out.push(b'\n');
    }

    fn field(&self, out: &mut Vec<u8>, field: &LogField, js: bool, line: &AccessLogEntry<'_>, headers: &mut usize) {
        let labels = self.backend.as_ref().and_then(|backend| backend.load.labels.get());
        let key = self.backend.as_ref().and_then(|backend| backend.key.split_once('/'));
        let pod = self.endpoint.as_ref().and_then(|endpoint| endpoint.start.as_ref());
        let text: &[u8] = match field {
            LogField::Method => line.method,
            LogField::RequestUri => line.path,
            LogField::Host => line.host,
            // Go's spelling.
            LogField::Proto if line.protocol == "HTTP/2" => b"HTTP/2.0",
            LogField::Proto => line.protocol.as_bytes(),
            LogField::Header(_) => {
                let begin = headers.checked_sub(1).and_then(|before| self.ends.get(before));
                let end = self.ends.get(*headers).copied().unwrap_or_default();
                *headers += 1;
                &self.values[begin.copied().unwrap_or_default()..end]
            }
            LogField::Namespace => key.map_or(b"", |(namespace, _)| namespace.as_bytes()),
            LogField::Name => key.map_or(b"", |(_, name)| name.as_bytes()),
            LogField::Service => labels.map_or(b"", |labels| labels.service.as_bytes()),
            LogField::Configuration => labels.map_or(b"", |labels| labels.configuration.as_bytes()),
            LogField::PodName => pod.map_or(b"", |start| start.pod.as_bytes()),
            LogField::TraceId => line.trace.unwrap_or_default(),
            number => return self.number(out, number, line),
        };
        escaped(out, text, js);
    }

    fn number(&self, out: &mut Vec<u8>, field: &LogField, line: &AccessLogEntry<'_>) {
        // Writing to a Vec cannot fail.
        let _ = match field {
            LogField::Code => write!(out, "{}", line.status),
            LogField::Size => write!(out, "{}", line.bytes),
            LogField::Latency => write!(out, "{}", line.duration.as_secs_f64()),
            LogField::RemoteAddr => write!(out, "{}", line.client),
            LogField::ContentLength => match self.content_length {
                Some(bytes) => write!(out, "{bytes}"),
                None => write!(out, "-1"), // Go's value for an unknown length
            },
            LogField::PodIp => match self.endpoint.as_ref().map(|endpoint| endpoint.address) {
                Some(EndpointAddress::Ip(address)) => write!(out, "{}", address.ip()),
                Some(EndpointAddress::Unix(path)) => write!(out, "{path}"),
                None => Ok(()),
            },
            _ => Ok(()),
        };
    }
}

/// Escapes a peer's bytes: they must not end a line nor send commands to a terminal; with `js` nor end a string.
fn escaped(out: &mut Vec<u8>, text: &[u8], js: bool) {
    for &byte in &text[..text.len().min(PART_BYTES_MAX)] {
        let _ = match byte {
            b'\\' | b'"' if js => out.write_all(&[b'\\', byte]),
            // Go's `js` escapes them for HTML; the escapes are valid in JSON too.
            b'\'' | b'<' | b'>' | b'&' | b'=' if js => write!(out, "\\u{byte:04X}"),
            b' '..=b'~' => out.write_all(&[byte]),
            _ if js => write!(out, "\\u{byte:04X}"),
            _ => write!(out, "\\x{byte:02x}"),
        }; // writing to a Vec cannot fail
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract::request_log::LogTemplate;

    use super::super::tests::line;
    use super::*;
    use codec::http::{Parsed, RequestHead, parse_request};
    use contract::load::RevisionLabels;
    use contract::table::{InstanceStart, NoEndpointPolicy, Protocol, RequestTimeouts, StartupDuration};

    fn entry(template: &str, request: &str) -> RequestLogEntry {
        let backend = Backend {
            key: "default/hello-00001".into(),
            endpoints: Box::default(),
            concurrency_max: 0,
            when_empty: NoEndpointPolicy::Refuse,
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::NONE,
            proxy_protocol: None,
            load: Arc::default(),
        };
        backend
            .load
            .labels
            .get_or_init(|| Box::new(RevisionLabels { service: "hello".into(), configuration: "h".into() }));
        let mut endpoint = Endpoint::new(([127, 0, 0, 1], 9).into());
        let start = StartupDuration { spawn: Duration::ZERO, listen: Duration::ZERO };
        endpoint.start = Some(Box::new(InstanceStart {
            pod: "hello-00001-deployment-x".into(),
            start: Some(start),
            found: None,
            unrestricted: false,
        }));
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(request.as_bytes(), &mut head), Parsed::Head { .. }), "{request}");
        let log = RequestLog { template: LogTemplate::parse(template).unwrap(), with_probes: false };
        let mut entry = RequestLogEntry::default();
        entry.start(Arc::new(log), head.view(request.as_bytes()));
        entry.set_backend(&Arc::new(backend));
        entry.set_instance(&Arc::new(endpoint));
        entry
    }

    fn written(template: &str, request: &str) -> String {
        let mut out = Vec::new();
        entry(template, request).write(&mut out, &line());
        String::from_utf8(out).unwrap()
    }

    /// X-OBS-04: every field in the documentation.
    #[test]
    fn template_field_is_written() {
        let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nUser-Agent: a \"b\" <c>\r\n\
                       X-One: 1\r\nx-one: 2\r\n\r\n";
        for (template, wanted) in [
            ("{{.Request.Method}} {{.Request.Host}} {{.Request.Proto}}", "GET a.example.com:80 HTTP/1.1"),
            ("{{js .Request.RequestURI}}", r#"/x?y\u003D\"z\""#),
            ("{{.Request.URL}}", "/x?y=\"z\""),
            ("{{.Request.ContentLength}} {{.Request.RemoteAddr}}", "3 127.0.0.1:4711"),
            ("{{.Request.UserAgent}}|{{.Request.Referer}}|", "a \"b\" <c>||"),
            ("{{js .Request.UserAgent}}", r#"a \"b\" \u003Cc\u003E"#),
            ("{{.Request.Header.Get \"X-One\"}}{{.Request.Referer}}{{.Request.UserAgent}}", "1a \"b\" <c>"),
            ("{{.Response.Code}} {{.Response.Size}} {{.Response.Latency}}", "200 12 0.0015"),
            ("{{.Revision.Namespace}}/{{.Revision.Name}}", "default/hello-00001"),
            ("{{.Revision.Service}} {{.Revision.Configuration}}", "hello h"),
            ("{{.Revision.PodName}} {{.Revision.PodIP}}", "hello-00001-deployment-x 127.0.0.1"),
            ("{{.TraceID}}", "0af7651916cd43dd8448eb211c80319c"),
        ] {
            assert_eq!(written(template, request), format!("{wanted}\n"), "{template}");
        }
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(written("{{.Request.ContentLength}}", chunked), "-1\n");
    }

    /// A peer chooses these bytes.
    #[test]
    fn request_bytes_cannot_end_a_line_or_string() {
        let all: Vec<u8> = (0..=255).collect();
        let line = AccessLogEntry { path: &all, ..line() };
        for template in ["{{.Request.RequestURI}}", "{\"uri\":\"{{js .Request.RequestURI}}\"}"] {
            let mut out = Vec::new();
            entry(template, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").write(&mut out, &line);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.matches('\n').count(), 1, "{text}");
            assert!(text.trim_end().bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
            if template.starts_with("{\"") {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
        }
    }

    /// X-OBS-04, X-QP-06: probes have lines only if enabled, and requests to other backends have none.
    #[test]
    fn probes_and_other_backends_have_no_line() {
        let asked = entry("x", "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(asked.is_enabled());
        let mut probe = entry("x", "GET / HTTP/1.1\r\nHost: a\r\nK-Kubelet-Probe: queue\r\n\r\n");
        assert!(!probe.is_enabled());
        let template = LogTemplate::parse("x").unwrap();
        probe.log = Some(Arc::new(RequestLog { template, with_probes: true }));
        assert!(probe.is_enabled());
        probe.backend = None;
        assert!(!probe.is_enabled());
    }
}
