//! The contract of an adapter, tested with the file and HTTP transports through the built program.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::io::Write;
use std::process::Stdio;

use support::adapter_process::{Adapter, command};
use support::http::{get, request};
use support::sink::Sink;
use support::{free_port, wait};

const EVENT: &str = r#"{"specversion":"1.0","id":"ID","source":"/s","type":"t","data":NUMBER}"#;

fn line(number: u64) -> String {
    EVENT.replace("ID", &number.to_string()).replace("NUMBER", &number.to_string()) + "\n"
}

fn lines(numbers: std::ops::Range<u64>) -> String {
    numbers.map(line).collect()
}

/// TRN-08, TRN-26: exit code not 0, and the message names the variable and the place.
#[test]
fn wrong_configuration_exits_with_its_place() {
    for (receiver, wanted) in [
        ("{\"path\":", "ADAPTER_RECEIVER is not valid JSON"),
        ("{\"path\":7}", "ADAPTER_RECEIVER: path: invalid type: integer `7`"),
        ("{\"pth\":\"x\"}", "ADAPTER_RECEIVER: pth: unknown field `pth`"),
    ] {
        let mut command = command("file", &[("ADAPTER_RECEIVER", receiver), ("K_SINK", "http://127.0.0.1:1/")]);
        let output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && log.contains(&wanted.replace('"', "\\\"")), "{log}");
    }
}

/// TRN-01, TRN-03, TRN-05, TRN-14, TRN-34: stdin to the sink, with nothing but hand-written variables.
#[test]
fn stdin_is_sent_in_order_then_the_adapter_ends() {
    let sink = Sink::new();
    let mut command = command("file", &[("ADAPTER_RECEIVER", "{}"), ("K_SINK", &sink.url())]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines(0..200).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(sink.wait_for_numbers(200), 0);
}

/// TRN-04, TRN-05, TRN-29, TRN-34: only a sender: requests on $PORT become lines, in both content modes.
#[test]
fn requests_are_appended_to_a_file_as_json_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.jsonl");
    let sender = serde_json::json!({"path": path}).to_string();
    let adapter = Adapter::start("file", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    let structured = [("content-type", "application/cloudevents+json")];
    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "b"),
        ("ce-source", "/s"),
        ("ce-type", "t"),
        ("ce-subject", "%C3%A4"),
        ("content-type", "text/plain"),
    ];
    let batch = [("content-type", "application/cloudevents-batch+json")];
    let bodies = format!("[{},{}]", line(2).trim(), line(3).trim());
    for (headers, body) in [(&structured[..], line(1)), (&binary[..], "hello".to_owned()), (&batch[..], bodies)] {
        assert_eq!(request(adapter.port, "POST", "/", headers, body.as_bytes()).unwrap().status(), 202);
    }
    assert_eq!(request(adapter.port, "POST", "/", &[], b"x").unwrap().status(), 400);
    assert_eq!(adapter.stop(), Some(0));
    let written = std::fs::read_to_string(&path).unwrap();
    let events: Vec<_> = written.lines().map(|line| adapter::from_json(line.as_bytes()).unwrap()).collect();
    assert_eq!(events.iter().map(adapter::Event::id).collect::<Vec<_>>(), ["1", "b", "2", "3"]);
    assert_eq!((events[1].text("subject"), events[1].data.as_deref()), ("ä".to_owned(), Some(&b"hello"[..])));
}

/// A write that fails half-way leaves no part of a line, which would spoil the next event.
#[test]
fn full_disk_leaves_no_part_of_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.jsonl");
    let mut command = std::process::Command::new("sh");
    // A limit of the file's size stands for the full disk: the write that reaches it is short.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" file";
    command.args(["-c", script, env!("CARGO_BIN_EXE_sluicegate-adapters")]).env("PORT", "0");
    command.env("ADAPTER_SENDER", serde_json::json!({"path": path}).to_string());
    let adapter = Adapter::spawn(command).wait_ready();
    let statuses: Vec<u16> =
        (0..20).map(|number| support::http::post_number(adapter.port, number).unwrap().status()).collect();
    let accepted = statuses.iter().filter(|status| **status == 202).count();
    assert!(accepted > 0 && statuses.contains(&503), "{statuses:?}");
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(written.lines().filter(|line| adapter::from_json(line.as_bytes()).is_ok()).count(), accepted);
    assert!(written.ends_with('\n'), "{written}");
}

/// A timer that has sent its events stays, because an adapter that ends is started again.
#[test]
fn timer_is_idle_after_its_repeat_count() {
    let sink = Sink::new();
    let receiver = r#"{"message":"tick","period":10,"repeatCount":3}"#;
    let adapter = Adapter::start("timer", &[("ADAPTER_RECEIVER", receiver), ("K_SINK", &sink.url())]);
    sink.wait_for(3);
    wait("the acknowledgements", || (adapter.metric("adapter_events_pending") == 0).then_some(()));
    let adapter = adapter.wait_ready();
    assert_eq!(adapter.stop(), Some(0));
    assert_eq!(sink.accepted().len(), 3);
}

/// After SIGHUP, a client with a kept-alive connection reaches the new listener.
#[test]
fn hangup_closes_idle_connections_of_the_old_listener() {
    use std::io::Read;
    let directory = tempfile::tempdir().unwrap();
    let (sink, port) = (Sink::new(), free_port());
    let config = directory.path().join("config.json");
    let document = serde_json::json!({
        "source": {"servicePorts": [{"name": "http", "port": port}]}, "sink": {"sinkUri": sink.url()},
    });
    std::fs::write(&config, document.to_string()).unwrap();
    let adapter = Adapter::start("http", &[("ADAPTER_CONFIG", config.to_str().unwrap())]).wait_ready();
    let mut idle = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    idle.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    assert!(idle.read(&mut [0; 4096]).unwrap() > 0);
    adapter.signal("HUP");
    // Succeeds only at the end of the connection.
    idle.read_to_end(&mut Vec::new()).unwrap();
    wait("the new listener", || (support::http::post_number(port, 0).ok()?.status() == 202).then_some(()));
}

/// TRN-34: a followed file survives a kill, its rotation and a restart; nothing is lost, order stays.
#[test]
fn followed_file_survives_kill_and_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.jsonl");
    std::fs::write(&path, lines(0..300)).unwrap();
    let sink = Sink::new();
    let receiver = serde_json::json!({"path": path, "follow": true}).to_string();
    let state = directory.path().display().to_string();
    let url = sink.url();
    let variables =
        [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", url.as_str()), ("ADAPTER_STATE", state.as_str())];
    let adapter = Adapter::start("file", &variables);
    sink.wait_for(100);
    adapter.kill();
    // Rotated while no adapter runs.
    std::fs::rename(&path, directory.path().join("in.jsonl.1")).unwrap();
    std::fs::write(&path, lines(300..400)).unwrap();
    let adapter = Adapter::start("file", &variables);
    let duplicates = sink.wait_for_numbers(400);
    assert!(duplicates <= adapter::limits::WINDOW_EVENTS_MAX, "{duplicates}");
    // Rotated while it runs.
    std::fs::rename(&path, directory.path().join("in.jsonl.2")).unwrap();
    std::fs::write(&path, lines(400..500)).unwrap();
    sink.wait_for_numbers(500);
    assert_eq!(adapter.stop(), Some(0));
    let before = sink.accepted().len();
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(lines(500..510).as_bytes()).unwrap();
    let _adapter = Adapter::start("file", &variables);
    sink.wait_for_numbers(510);
    assert_eq!(sink.accepted().len(), before + 10, "a clean stop leaves no duplicates");
}

/// TRN-33, SRC-34, SRC-35: events come by HTTP and leave by HTTP; the client gets the answer of the sink.
#[test]
fn http_listener_relays_the_answer_of_the_sink() {
    let sink = Sink::new();
    let port = free_port();
    let receiver = format!(r#"{{"servicePorts":[{{"name":"http","port":80,"targetPort":{port}}}]}}"#);
    let sender = format!(r#"{{"sinkUri":"{}","mode":"structured"}}"#, sink.url());
    let _adapter = Adapter::start("http", &[("ADAPTER_RECEIVER", &receiver), ("ADAPTER_SENDER", &sender)]).wait_ready();
    assert_eq!(support::http::post_number(port, 0).unwrap().status(), 202);
    assert_eq!(sink.requests()[0].header("content-type"), Some("application/cloudevents+json"));
    for status in [503, 429, 404, 400] {
        sink.set(move |_, _| status);
        assert_eq!(support::http::post_number(port, 1).unwrap().status(), status);
    }
    assert_eq!(request(port, "GET", "/", &[], b"").unwrap().status(), 405);
    let large = vec![b'x'; adapter::limits::BODY_BYTES_MAX + 1];
    assert_eq!(request(port, "POST", "/", &[], &large).map_or(413, |response| response.status()), 413);
}

/// A webhook is taken only with the HMAC of its body.
#[test]
fn webhook_without_its_signature_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "It's a Secret to Everybody").unwrap();
    let sink = Sink::new();
    let port = free_port();
    let receiver = serde_json::json!({
        "servicePorts": [{"name": "http", "port": port}],
        "hmac": {"secret": secret},
        "plain": {"type": "dev.knative.source.github", "source": "/repo", "idHeader": "X-GitHub-Delivery", "typeHeader": "X-GitHub-Event"},
    });
    let adapter =
        Adapter::start("http", &[("ADAPTER_RECEIVER", &receiver.to_string()), ("K_SINK", &sink.url())]).wait_ready();
    // The example of GitHub's documentation.
    let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let headers =
        |signature| [("x-hub-signature-256", signature), ("x-github-delivery", "d1"), ("x-github-event", "push")];
    let wrong = good.replace('7', "8");
    for signature in ["", "sha256=00", "sha256=zz", &wrong] {
        assert_eq!(request(port, "POST", "/", &headers(signature), b"Hello, World!").unwrap().status(), 401);
    }
    assert_eq!(request(port, "POST", "/", &headers(good), b"Hello, World!").unwrap().status(), 202);
    let event = &sink.wait_for(1)[0];
    assert_eq!((event.text("type"), event.id()), ("dev.knative.source.github.push".to_owned(), "d1".to_owned()));
    assert!(!adapter.log().contains("Everybody"));
    // An empty file is no secret: every client can compute the HMAC with an empty key.
    std::fs::write(&secret, "\n").unwrap();
    let empty = "sha256=2bbcfa9524f3218c7a34b30e6936f8b1a4516cb097f1a85a1c7d98b5977ec769";
    assert_eq!(request(port, "POST", "/", &headers(empty), b"Hello, World!").unwrap().status(), 503);
}

/// TRN-57, TRN-58: health, readiness with reason, live and qos, and metrics.
#[test]
fn health_readiness_and_metrics_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("later");
    let receiver = serde_json::json!({"path": path, "follow": true}).to_string();
    let sink = Sink::new();
    let adapter = Adapter::start("file", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]);
    assert_eq!(get(adapter.port, "/healthz").unwrap().status(), 200);
    let body = adapter.wait_reason("ConnectionFailed");
    assert!(body.contains("\"live\":true") && body.contains("\"qos\":1"), "{body}");
    std::fs::write(&path, lines(0..3)).unwrap();
    let adapter = adapter.wait_ready();
    sink.wait_for_numbers(3);
    wait("the metric", || (adapter.metric("adapter_events_accepted_total") == 3).then_some(()));
    assert_eq!((adapter.metric("adapter_events_pending"), adapter.metric("adapter_ready")), (0, 1));
}

/// TRN-08, TRN-26: every transport names the field.
#[test]
fn every_transport_names_a_wrong_field() {
    for (kind, receiver, wanted) in [
        ("timer", r#"{"message":"m","period":"1"}"#, "ADAPTER_RECEIVER: period: invalid type"),
        (
            "http",
            r#"{"servicePorts":[{"name":"http","port":"80"}]}"#,
            "ADAPTER_RECEIVER: servicePorts[0].port: invalid type",
        ),
        ("nats", r#"{"servers":[1],"subject":"s"}"#, "ADAPTER_RECEIVER: servers[0]: invalid type"),
        ("redis", r#"{"address":7,"stream":"s","group":"g"}"#, "ADAPTER_RECEIVER: address: invalid type"),
        ("mqtt", r#"{"host":"h","topics":["t"],"tls":{"caCrt":"x"}}"#, "ADAPTER_RECEIVER: tls.caCrt: unknown field"),
        ("amqp", r#"{"host":"h","queue":"q","queu":1}"#, "ADAPTER_RECEIVER: queu: unknown field"),
        ("amqp", r#"{"host":"h","queue":"q","prefetch":0}"#, "ADAPTER_RECEIVER: prefetch: must be at least 1"),
        (
            "kafka",
            r#"{"bootstrapServers":["h"],"topics":["t"],"net":{"sasl":{"enable":1}}}"#,
            "ADAPTER_RECEIVER: net.sasl.enable: invalid type",
        ),
        ("postgresql", r#"{"host":"h","port":70000}"#, "ADAPTER_RECEIVER: port: invalid value"),
    ] {
        let mut command = command(kind, &[("ADAPTER_RECEIVER", receiver), ("K_SINK", "http://127.0.0.1:1/")]);
        let output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && log.contains(wanted), "{kind}: {log}");
    }
}

/// TRN-29: a request gets a 503 while the server of the sender is away, instead of no answer.
#[test]
fn request_without_a_connection_is_answered_503() {
    let sender = format!(r#"{{"address":"127.0.0.1:{}","stream":"s"}}"#, free_port());
    let adapter = Adapter::start("redis", &[("ADAPTER_SENDER", &sender)]);
    adapter.wait_reason("ConnectionFailed");
    let response = support::http::post_number(adapter.port, 1).unwrap();
    assert_eq!((response.status(), response.header("retry-after")), (503, Some("1")), "{}", response.text());
}
