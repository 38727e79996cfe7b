//! Encodes log lines.

use std::io::Write as _;
use std::time::SystemTime;

use contract::table::EndpointAddress;
use jiff::Timestamp;

use super::{AccessLogEntry, PART_BYTES_MAX};

/// `127.0.0.1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.0" 200 2326`
pub(super) fn common(out: &mut Vec<u8>, line: &AccessLogEntry<'_>) {
    let at = moment(line.at);
    put(out, format_args!("{} - - [{}] \"", line.client.ip(), at.strftime("%d/%b/%Y:%H:%M:%S %z")));
    if line.received.is_some() {
        put(out, format_args!("{} ", line.protocol));
        escaped(out, if line.host.is_empty() { b"-" } else { line.host }, false);
    } else if line.method.is_empty() {
        out.push(b'-');
    } else {
        escaped(out, line.method, false);
        out.push(b' ');
        escaped(out, line.path, false);
        put(out, format_args!(" {}", line.protocol));
    }
    put(out, format_args!("\" {:03} {}\n", line.status, line.bytes));
}

pub(super) fn json(out: &mut Vec<u8>, line: &AccessLogEntry<'_>) {
    let at = moment(line.at);
    put(out, format_args!("{{\"time\":\"{at:.3}\",\"client\":\"{}\"", line.client.ip()));
    put(out, format_args!(",\"protocol\":\"{}\"", line.protocol));
    for (name, part) in [("method", line.method), ("host", line.host), ("path", line.path)] {
        if !part.is_empty() {
            put(out, format_args!(",\"{name}\":\""));
            escaped(out, part, true);
            out.push(b'"');
        }
    }
    match line.received {
        Some(received) => put(out, format_args!(",\"received\":{received},\"bytes\":{}", line.bytes)),
        None => put(out, format_args!(",\"status\":{},\"bytes\":{}", line.status, line.bytes)),
    }
    put(out, format_args!(",\"duration_us\":{}", line.duration.as_micros()));
    let waits = [("wait_us", line.waited), ("upstream_us", line.upstream)];
    for (name, wait) in waits.into_iter().filter_map(|(name, wait)| Some((name, wait?))) {
        put(out, format_args!(",\"{name}\":{}", wait.as_micros()));
    }
    if let Some(backend) = line.backend {
        out.extend_from_slice(b",\"backend\":\"");
        escaped(out, backend.as_bytes(), true);
        out.push(b'"');
    }
    match line.instance {
        Some(EndpointAddress::Ip(address)) => put(out, format_args!(",\"instance\":\"{address}\"")),
        // A path may contain any character.
        Some(EndpointAddress::Unix(path)) => {
            out.extend_from_slice(b",\"instance\":\"unix:");
            escaped(out, path.as_str().as_bytes(), true);
            out.push(b'"');
        }
        None => {}
    }
    if let Some(trace) = line.trace {
        out.extend_from_slice(b",\"trace_id\":\"");
        escaped(out, trace, true);
        out.push(b'"');
    }
    if let Some(reason) = line.reason {
        put(out, format_args!(",\"reason\":\"{reason}\""));
    }
    out.extend_from_slice(b"}\n");
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text); // writing to a Vec cannot fail
}

/// Escapes bytes of a peer or of a path: they must not end a string or a line, nor send commands to a terminal.
fn escaped(out: &mut Vec<u8>, part: &[u8], json: bool) {
    for &byte in &part[..part.len().min(PART_BYTES_MAX)] {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ if json => put(out, format_args!("\\u{byte:04x}")),
            _ => put(out, format_args!("\\x{byte:02x}")),
        }
    }
}

/// Times before 1970 or after the year 9999 are invalid and become the epoch.
fn moment(at: SystemTime) -> Timestamp {
    Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::super::tests::line;
    use super::*;
    use contract::table::UnixPath;

    fn text(write: fn(&mut Vec<u8>, &AccessLogEntry<'_>), line: &AccessLogEntry<'_>) -> String {
        let mut out = Vec::new();
        write(&mut out, line);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_contain_all_fields() {
        assert_eq!(
            text(common, &line()),
            "127.0.0.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /x?y=\\\"z\\\" HTTP/1.1\" 200 12\n"
        );
        let found: serde_json::Value = serde_json::from_str(&text(json, &line())).unwrap();
        let wanted = serde_json::json!({
            "time": "2023-11-14T22:13:20.123Z", "client": "127.0.0.1", "protocol": "HTTP/1.1",
            "method": "GET", "host": "a.example.com:80", "path": "/x?y=\"z\"", "status": 200, "bytes": 12,
            "duration_us": 1500, "wait_us": 10, "upstream_us": 900, "backend": "default/a",
            "instance": "127.0.0.1:9", "trace_id": "0af7651916cd43dd8448eb211c80319c"
        });
        assert_eq!(found, wanted);
    }

    #[test]
    fn relayed_connection_has_its_server_name_and_bytes() {
        let relayed = AccessLogEntry {
            protocol: "TLS",
            method: b"",
            host: b"a.test",
            path: b"",
            status: 0,
            received: Some(7),
            ..line()
        };
        assert!(text(common, &relayed).ends_with("] \"TLS a.test\" 000 12\n"));
        let found: serde_json::Value = serde_json::from_str(&text(json, &relayed)).unwrap();
        assert_eq!((&found["host"], &found["received"], &found["bytes"]), (&"a.test".into(), &7.into(), &12.into()));
        assert!(found.get("status").is_none() && found.get("method").is_none());
        let unnamed = AccessLogEntry { protocol: "TCP", host: b"", ..relayed };
        assert!(text(common, &unnamed).ends_with("] \"TCP -\" 000 12\n"));
    }

    #[test]
    fn path_of_a_unix_socket_cannot_end_a_line_or_string() {
        let path = UnixPath::new("/run/a\"b\\c\nd.sock").unwrap();
        let line = AccessLogEntry { instance: Some(EndpointAddress::Unix(path)), ..line() };
        let text = text(json, &line);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found["instance"], "unix:/run/a\"b\\c\nd.sock");
    }

    #[test]
    fn malformed_request_has_a_line() {
        let malformed = AccessLogEntry {
            method: b"",
            host: b"",
            path: b"",
            status: 400,
            waited: None,
            upstream: None,
            backend: None,
            instance: None,
            trace: None,
            reason: Some("malformed"),
            ..line()
        };
        assert!(text(common, &malformed).ends_with("] \"-\" 400 12\n"));
        let found: serde_json::Value = serde_json::from_str(&text(json, &malformed)).unwrap();
        assert_eq!(found["reason"], "malformed");
    }

    /// A peer chooses these bytes.
    #[test]
    fn request_bytes_cannot_end_a_line_or_control_a_terminal() {
        let all: Vec<u8> = (0..=255).collect();
        let line = AccessLogEntry { path: &all, ..line() };
        for (write, name) in [(common as fn(&mut Vec<u8>, &AccessLogEntry<'_>), "common"), (json, "json")] {
            let text = text(write, &line);
            assert_eq!(text.matches('\n').count(), 1, "{name}");
            assert!(text.trim_end().bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {text}");
        }
        serde_json::from_str::<serde_json::Value>(&text(json, &line)).unwrap();
        let long = vec![b'x'; 100_000];
        assert!(
            text(json, &AccessLogEntry { path: &long, ..super::super::tests::line() }).len() < PART_BYTES_MAX + 500
        );
    }
}
