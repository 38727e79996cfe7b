//! The record of requests: a line each in the access log, a histogram for every
//! backend.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use kit::http2::{self, H2Client};
use kit::manifest::{NAMESPACE, service};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn gateway(format: &str, upstream: &TestUpstream) -> (Appliance, PathBuf) {
    let setup = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("access-log", format);
    let file = setup.write_file("access.log", "");
    (setup.flag("access-log-file", &file.to_string_lossy()).start(), file)
}

/// All lines, once there are `count`.
fn lines(file: &Path, count: usize) -> Vec<String> {
    wait::until(TIMEOUT, "the lines", || {
        let text = std::fs::read_to_string(file).ok()?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[test]
fn every_answer_has_its_line() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let upstream = TestUpstream::start("one");
    let (appliance, file) = gateway("json", &upstream);
    let to = appliance.http();
    HttpCall::get("/delay?ms=20&q=\"x\"").host(HOST).header("traceparent", PARENT).send(to);
    HttpCall::post("/mirror").host(HOST).body(vec![b'x'; 50_000]).send(to);
    HttpCall::get("/").host("nobody").send(to);
    let mut old = HttpConnection::open(to);
    old.send(format!("GET /old HTTP/1.0\r\nHost: {HOST}\r\n\r\n").as_bytes());
    assert_eq!(old.receive().status, 200);
    let mut broken = HttpConnection::open(to);
    broken.send(b"nonsense\r\n\r\n");
    assert_eq!(broken.receive().status, 400);
    http2::run(async {
        let (client, _ended) = H2Client::open(to).await;
        let request = http::Request::get(format!("http://{HOST}/two")).body(()).unwrap();
        assert_eq!(client.call(request).await.unwrap().status, 200);
    });

    let lines: Vec<Value> = lines(&file, 6).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |path: &str| lines.iter().find(|line| line["path"] == path).unwrap();
    let first = of("/delay?ms=20&q=\"x\"");
    assert_eq!((&first["method"], &first["host"], &first["status"]), (&"GET".into(), &HOST.into(), &200.into()));
    assert_eq!((&first["client"], &first["protocol"]), (&"127.0.0.1".into(), &"HTTP/1.1".into()));
    assert_eq!(first["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(first["instance"], upstream.address().to_string());
    assert_eq!(first["backend"], format!("static/{HOST}"));
    let number = |line: &Value, name: &str| line[name].as_u64().unwrap();
    assert!(number(first, "upstream_us") >= 20_000 && number(first, "duration_us") >= number(first, "upstream_us"));
    assert!(first["time"].as_str().unwrap().ends_with('Z'));
    assert!(number(of("/mirror"), "bytes") > 50_000);
    assert_eq!(of("/mirror")["trace_id"].as_str().unwrap().len(), 32);
    assert_eq!(of("/old")["protocol"], "HTTP/1.0");
    assert_eq!(of("/two")["protocol"], "HTTP/2");
    assert!(number(of("/two"), "bytes") > 0);
    let mut reasons: Vec<_> = lines.iter().filter_map(|line| line["reason"].as_str()).collect();
    reasons.sort_unstable(); // each core hands its lines over by itself
    assert_eq!(reasons, ["host_not_found", "malformed"]);
}

/// A file that was moved away is done: the next lines are in a new one, and none is lost on a stop.
#[test]
fn the_common_format_is_that_of_others_and_its_file_can_be_rotated() {
    let upstream = TestUpstream::start("one");
    let (mut appliance, file) = gateway("common", &upstream);
    let get = |path: &str| HttpCall::get(path).host(HOST).send(appliance.http());
    get("/before");
    let line = lines(&file, 1).remove(0);
    assert!(line.starts_with("127.0.0.1 - - [") && line.contains("] \"GET /before HTTP/1.1\" 200 "), "{line}");
    let mut old = HttpConnection::open(appliance.http());
    old.send(format!("GET /old HTTP/1.0\r\nHost: {HOST}\r\n\r\n").as_bytes());
    assert_eq!(old.receive().status, 200);
    assert!(lines(&file, 2)[1].contains("] \"GET /old HTTP/1.0\" 200 "));

    let old = file.with_extension("old");
    std::fs::rename(&file, &old).unwrap();
    appliance.reload();
    wait::until(TIMEOUT, "a line in the new file", || {
        HttpCall::get("/between").host(HOST).send(appliance.http());
        file.exists().then_some(())
    });
    HttpCall::get("/last").host(HOST).send(appliance.http());
    assert_eq!(appliance.terminate().code(), Some(0));
    assert!(std::fs::read_to_string(&file).unwrap().contains("GET /last HTTP/1.1"));
    assert!(!std::fs::read_to_string(&old).unwrap().contains("/last"));
}

#[test]
fn a_file_that_cannot_be_opened_stops_the_start() {
    let nowhere = ApplianceSetup::new(BIN).flag("access-log", "json").flag("access-log-file", "/nowhere/at/all");
    let refusal = nowhere.refused();
    assert!(refusal.stderr.contains("/nowhere/at/all"), "{refusal}");
    let unused = ApplianceSetup::new(BIN).flag("access-log-file", "a.log").refused();
    assert!(unused.stderr.contains("access-log"), "{unused}");
}

/// Rate, errors and duration of a backend, as Prometheus wants a histogram.
#[test]
fn a_backend_has_a_histogram() {
    let upstream = TestUpstream::start("one");
    let appliance = ApplianceSetup::new(BIN).route(HOST, upstream.address()).start();
    for path in ["/", "/status?code=503", "/status?code=404", "/delay?ms=30"] {
        HttpCall::get(path).host(HOST).send(appliance.http());
    }
    let value = |line: &str| {
        let text = HttpCall::get("/metrics").send(appliance.admin()).text();
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse::<f64>().ok());
        found.unwrap_or_else(|| panic!("no {line} in\n{text}"))
    };
    let label = format!("backend=\"static/{HOST}\"");
    wait::until(TIMEOUT, "the last answer", || {
        (value(&format!("sluicegate_backend_duration_seconds_count{{{label}}}")) == 4.0).then_some(())
    });
    for (class, count) in [("2xx", 2.0), ("4xx", 1.0), ("5xx", 1.0), ("aborted", 0.0)] {
        let line = format!("sluicegate_backend_responses_total{{{label},class=\"{class}\"}}");
        assert_eq!(value(&line), count, "{class}");
    }
    let bucket = |le: &str| value(&format!("sluicegate_backend_duration_seconds_bucket{{le=\"{le}\",{label}}}"));
    assert!(bucket("0.025") <= 3.0 && bucket("+Inf") == 4.0);
    assert!(value(&format!("sluicegate_backend_duration_seconds_sum{{{label}}}")) >= 0.03);
}

/// X-OBS-04: each request of a Revision has a line by the operator's template once it is asked for, and none when that
/// is over; probes only if they are to. A template that makes no sense is refused with its key.
#[test]
fn requests_of_revisions_have_lines_by_the_operators_template() {
    const IMAGE: &str = "example.com/hello";
    let setup = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("workers", "2").flag("access-log", "json");
    let file = setup.write_file("access.log", "");
    let appliance = setup.flag("access-log-file", &file.to_string_lossy()).start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);

    let set = |line: &str, probes: &str| {
        let data = json!({ "logging.enable-request-log": "true", "logging.request-log-template": line,
            "logging.enable-probe-request-log": probes });
        api.try_patch("ConfigMap", "knative-serving", "config-observability", &json!({ "data": data }))
    };
    let refused = set("{{.Request.Body}}", "false");
    assert_eq!(refused.status, 422, "{refused}");
    let why = refused.text();
    assert!(why.contains("logging.request-log-template") && why.contains("{{.Request.Body}}"), "{why}");

    let template = "own {{.Request.Method}} {{.Request.RequestURI}} {{.Response.Code}} {{.Revision.Service}} \
        {{.Revision.Name}} {{.Revision.PodName}} {{js .Request.UserAgent}} {{.Request.ContentLength}}";
    assert_eq!(set(template, "false").status, 200);
    let get = |path: &str, agent: &str| {
        let call = HttpCall::get(path).host("hello.default.localhost").header("User-Agent", agent);
        assert_eq!(call.send(appliance.http()).status, 200);
    };
    let own = || -> Vec<String> {
        let text = std::fs::read_to_string(&file).unwrap();
        text.lines().filter(|line| line.starts_with("own ")).map(str::to_owned).collect()
    };
    let first = wait::until(TIMEOUT, "a line", || {
        get("/first?a", "a \"b\"");
        own().first().cloned()
    });
    let words: Vec<&str> = first.split(' ').collect();
    assert_eq!(words[..6], ["own", "GET", "/first?a", "200", "hello", "hello-00001"], "{first}");
    let pods = api.list("Pod", NAMESPACE);
    let pod = pods[0]["metadata"]["name"].as_str().unwrap();
    assert_eq!((words[6], &words[7..]), (pod, &["a", "\\\"b\\\"", "0"][..]), "{first}");

    get("/probed", "kube-probe/1.34");
    get("/last", "x");
    wait::until(TIMEOUT, "the last line", || own().iter().any(|line| line.contains(" /last ")).then_some(()));
    assert!(own().iter().all(|line| !line.contains(" /probed ")));
    assert_eq!(set(template, "true").status, 200);
    wait::until(TIMEOUT, "a probe's line", || {
        get("/probed", "kube-probe/1.34");
        own().iter().any(|line| line.starts_with("own GET /probed 200 hello hello-00001 ")).then_some(())
    });
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().any(|line| line.starts_with('{')), "the access log goes on: {text}");
}
