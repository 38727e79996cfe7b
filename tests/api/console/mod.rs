//! The console's listener, through the built binary: what it serves, to which callers, and how a browser shows it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod browser;
mod screenshots;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use kit::manifest::{NAMESPACE, broker, trigger};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpResponse, SinkResponse, TIMEOUT, TestEvent};
use serde_json::{Value, json};
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// All files that a browser loads.
const ASSET_BYTES_MAX: usize = 150_000;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TRIGGER: &str = "/apis/eventing.knative.dev/v1/namespaces/default/triggers/failing";

fn setup() -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("console", "127.0.0.1:0")
}

/// An event that a subscriber rejected, and that has no dead letter sink; the subscriber accepts it when it comes again.
fn with_one_dead_letter(setup: &ApplianceSetup) -> (Appliance, EventSink) {
    let appliance = setup.start();
    let sink = EventSink::answering({
        let attempts = std::cell::Cell::new(0);
        move |_| {
            attempts.set(attempts.get() + 1);
            SinkResponse::status(if attempts.get() == 1 { 400 } else { 202 })
        }
    });
    appliance.api().create(&broker("main"));
    appliance.api().create(&trigger("failing", "main", &sink.url()));
    appliance.api().wait_ready("Trigger", NAMESPACE, "failing", TIMEOUT);
    assert_eq!(TestEvent::new("one").binary("/brokers/default/main").send(appliance.events()).status, 202);
    sink.wait_for(1, TIMEOUT);
    let dead_letters = || HttpCall::get("/debug/events/dead-letters").send(appliance.admin()).json();
    kit::wait::until(TIMEOUT, "the dead letter", || {
        dead_letters()["deadLetters"].as_array().is_some_and(|all| all.len() == 1).then_some(())
    });
    (appliance, sink)
}

/// The first lines of a response that does not end.
fn first_lines(at: SocketAddr, path: &str, count: usize) -> Vec<String> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n").as_bytes()).unwrap();
    let (mut text, mut buffer) = (String::new(), [0; 65536]);
    loop {
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let lines: Vec<String> =
            body.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect();
        if lines.len() >= count {
            return lines;
        }
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
}

fn assets(at: SocketAddr) -> Vec<(String, HttpResponse)> {
    let mut names = vec!["/".to_owned()];
    let mut found = Vec::<(String, HttpResponse)>::new();
    while let Some(name) = names.pop() {
        if found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let answer = HttpCall::get(&name).send(at);
        let text = answer.text();
        let parts: Vec<&str> = text.split(['"', '\'']).collect();
        names.extend(parts.iter().filter(|part| part.starts_with("/assets/")).map(|part| (*part).to_owned()));
        names.extend(parts.iter().filter_map(|part| Some(format!("/assets/{}", part.strip_prefix("./")?))));
        found.push((name, answer));
    }
    found
}

#[test]
fn page_and_its_files_are_served_with_strict_headers() {
    let appliance = setup().start();
    let all = assets(appliance.console());
    let (mut bytes, mut scripts) = (0, 0);
    for (name, answer) in &all {
        assert_eq!(answer.status, 200, "{name}: {answer}");
        bytes += answer.body.len();
        scripts += usize::from(name.ends_with(".js"));
        let policy = answer.header("content-security-policy").unwrap();
        for rule in
            ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
        {
            assert!(policy.contains(rule), "{name}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{name}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{name}");
        let content_type = answer.header("content-type").unwrap();
        let expected = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(content_type, expected, "{name}");
    }
    assert!(scripts > 10 && bytes <= ASSET_BYTES_MAX, "{scripts} scripts, {bytes} bytes");
    for missing in
        ["/index.html", "/assets/", "/assets/none.js", "/assets/../Cargo.toml", "/healthz", "/sluicegate/backup"]
    {
        let answer = HttpCall::get(missing).send(appliance.console());
        assert_eq!(answer.status, 404, "{missing}: {answer}");
        assert!(answer.header("content-security-policy").is_some(), "{missing}");
    }
    assert_eq!(HttpCall::post("/").send(appliance.console()).status, 405);
}

#[test]
fn appliance_without_the_flag_has_no_console() {
    let appliance = ApplianceSetup::new(BIN).start();
    for at in [appliance.http(), appliance.api().address(), appliance.admin()] {
        assert_ne!(HttpCall::get("/assets/app.js").send(at).status, 200, "{at}");
    }
}

/// A page that DNS rebinding or another origin leads here gets nothing, and the metric of rejections counts it.
#[test]
fn request_of_another_origin_is_rejected_and_counted() {
    let appliance = setup().flag("allowed-host", "gate.lan").start();
    let at = appliance.console();
    for (what, call, expected) in [
        ("own", HttpCall::get("/").header("Sec-Fetch-Site", "none"), 200),
        ("a name", HttpCall::get("/").host("gate.lan"), 200),
        ("another name", HttpCall::get("/").host("evil.example"), 421),
        ("another site", HttpCall::get("/console/stream").header("Sec-Fetch-Site", "cross-site"), 403),
        ("another origin", HttpCall::get("/api/v1/secrets").header("Origin", "http://evil.example"), 403),
        ("another port", HttpCall::get("/metrics").header("Sec-Fetch-Site", "same-site"), 403),
        ("a form", HttpCall::post("/debug/events/replay").header("Content-Type", "text/plain").body("x"), 415),
    ] {
        let answer = call.send(at);
        assert_eq!(answer.status, expected, "{what}: {answer}");
    }
    for (reason, count) in [("host", 1), ("origin", 1), ("fetch-site", 2), ("content-type", 1)] {
        let label = format!("listener=\"console\",reason=\"{reason}\"");
        assert_eq!(appliance.metric("sluicegate_cross_origin_rejections_total", &label), count, "{reason}");
    }
}

#[test]
fn console_passes_reads_to_the_api_and_refuses_other_changes() {
    let (appliance, _sink) = with_one_dead_letter(&setup());
    let at = appliance.console();
    for path in ["/version", "/api/v1/namespaces", "/apis", MAPS, TRIGGER] {
        let (by_console, by_api) = (HttpCall::get(path).send(at), HttpCall::get(path).send(appliance.api().address()));
        assert_eq!((by_console.status, by_console.json()), (200, by_api.json()), "{path}");
    }
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "planted" } });
    for (what, call) in [
        ("create", HttpCall::post(MAPS).json(&map)),
        ("delete", HttpCall::new("DELETE", TRIGGER)),
        ("replace", HttpCall::new("PUT", TRIGGER).json(&map)),
        ("patch of another kind", HttpCall::new("PATCH", &format!("{MAPS}/kube-root-ca.crt")).json(&map)),
        ("token", HttpCall::post("/api/v1/namespaces/default/serviceaccounts/default/token").json(&json!({}))),
        (
            "exec",
            HttpCall::get("/api/v1/namespaces/default/pods/one/exec?command=id")
                .header("Connection", "Upgrade")
                .header("Upgrade", "websocket"),
        ),
    ] {
        let answer = call.send(at);
        assert_eq!(answer.status, 405, "{what}: {answer}");
    }
    assert!(appliance.api().get("ConfigMap", NAMESPACE, "planted").is_none());
    let patch = json!({ "metadata": { "annotations": { "changed": "yes" } } });
    let merge = "application/merge-patch+json";
    let changed = HttpCall::new("PATCH", TRIGGER).header("Content-Type", merge).body(patch.to_string()).send(at);
    assert_eq!(
        (changed.status, &changed.json()["metadata"]["annotations"]["changed"]),
        (200, &json!("yes")),
        "{changed}"
    );
}

/// Every path takes the right that the API's roles give for it; the operator on this host has them all.
#[test]
fn console_answers_what_the_api_roles_grant() {
    let home = TempDir::new().unwrap();
    let tokens = home.path().join("tokens.csv");
    std::fs::write(&tokens, "b0b,bob,1\nc4rol,carol,2\n").unwrap();
    let (appliance, sink) = with_one_dead_letter(&setup().flag("api-tokens", &tokens.display().to_string()));
    let bind = |user: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": format!("{user}-{role}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        })
    };
    for role in ["view", "sluicegate-console"] {
        appliance.api().create(&bind("carol", role));
    }
    let at = appliance.console();
    let redrive = "/debug/events/replay?trigger=trigger/default/failing&from=dead-letters";
    let ask = |call: HttpCall, token: &str| match token {
        "" => call.send(at).status,
        token => call.header("Authorization", &format!("Bearer {token}")).send(at).status,
    };
    for (path, [bob, carol, guess]) in [
        ("/assets/app.js", [200, 200, 200]),
        ("/metrics", [403, 200, 401]),
        ("/debug/routes", [403, 200, 401]),
        ("/debug/connections", [403, 200, 401]),
        ("/debug/events/trace", [403, 200, 401]),
        ("/debug/events/dead-letters", [403, 200, 401]),
        (MAPS, [403, 200, 401]),
        ("/api/v1/secrets", [403, 403, 401]),
    ] {
        for (token, expected) in [("b0b", bob), ("c4rol", carol), ("guess", guess), ("", 200)] {
            assert_eq!(ask(HttpCall::get(path), token), expected, "{path} by {token:?}");
        }
    }
    for (token, expected) in [("b0b", 403), ("guess", 401)] {
        assert_eq!(ask(HttpCall::get("/console/stream"), token), expected, "stream by {token}");
    }
    for (token, expected) in [("b0b", 403), ("c4rol", 403), ("guess", 401)] {
        assert_eq!(ask(HttpCall::post(redrive), token), expected, "redrive by {token}");
    }
    assert_eq!(ask(HttpCall::post("/debug/events/replay?trigger=default/failing&from=earliest"), ""), 400);
    assert_eq!(sink.received().len(), 1, "nothing was sent again");
    appliance.api().create(&bind("bob", "edit"));
    assert_eq!(ask(HttpCall::post(redrive), "b0b"), 200);
    sink.wait_for(2, TIMEOUT);
}

#[test]
fn stream_has_a_line_of_figures_each_second() {
    let (appliance, _sink) = with_one_dead_letter(&setup());
    let lines = first_lines(appliance.console(), "/console/stream", 2);
    let [first, second] = [0, 1].map(|nth| serde_json::from_str::<Value>(&lines[nth]).unwrap());
    assert!(second["time_ms"].as_u64().unwrap() > first["time_ms"].as_u64().unwrap());
    let stream =
        second["streams"].as_array().unwrap().iter().find(|one| one["path"] == "/brokers/default/main").unwrap();
    assert_eq!(stream["accepted"], 1, "{stream:#}");
    let subscriber = &stream["subscribers"][0];
    assert_eq!(
        (&subscriber["label"], &subscriber["offered"], &subscriber["dropped"]),
        (&json!("default/failing"), &json!(1), &json!(1))
    );
    assert_eq!(subscriber["dropped_by"]["no_dead_letter_sink"], 1);
    assert!(second["cores"][0]["log"]["flushes"].is_u64() && second["process"]["memory_bytes"].as_u64() > Some(0));
    let threads = second["process"]["threads"].as_array().unwrap();
    assert!(threads.iter().any(|thread| thread["name"] == "core-0"), "{threads:?}");
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    const STREAMS_MAX: usize = 32;
    let appliance = setup().start();
    let at = appliance.console();
    let open = |_| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(format!("GET /console/stream HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (String::from_utf8_lossy(&head).into_owned(), stream)
    };
    let opened: Vec<_> = (0..STREAMS_MAX).map(open).collect();
    assert!(opened.iter().all(|(head, _)| head == "HTTP/1.1 200"));
    assert_eq!(open(0).0, "HTTP/1.1 503");
    drop(opened);
    kit::wait::until(TIMEOUT, "a free stream", || (open(0).0 == "HTTP/1.1 200").then_some(()));
}

#[test]
fn console_without_authentication_stays_on_loopback() {
    let home = TempDir::new().unwrap();
    let tokens = home.path().join("tokens.csv");
    std::fs::write(&tokens, "s3cret,carol,3,\"system:masters\"\n").unwrap();
    let refused = ApplianceSetup::new(BIN).flag("console", "0.0.0.0:0").refused();
    assert!(
        refused.code == Some(2) && refused.stderr.contains("console: 0.0.0.0:0 is not a loopback address"),
        "{refused:?}"
    );
    let kubeconfig = home.path().join("config");
    std::fs::write(&kubeconfig, "{}").unwrap();
    let refused = setup().flag("kubeconfig", &kubeconfig.display().to_string()).refused();
    assert!(refused.code == Some(2) && refused.stderr.contains("console: "), "{refused:?}");

    // Beyond loopback it speaks TLS, and plain text gets no answer.
    let beyond =
        ApplianceSetup::new(BIN).flag("console", "0.0.0.0:0").flag("api-tokens", &tokens.display().to_string());
    let appliance = beyond.start();
    let at = SocketAddr::from(([127, 0, 0, 1], appliance.console().port()));
    assert!(HttpCall::get("/").try_send(at).is_err());
    let ca = std::fs::read_to_string(beyond.data().join("api/ca.pem")).unwrap();
    let get = |path: &str, token: &str| super::access::get_with_token(at, path, &ca, token);
    assert_eq!(get("/", ""), "200");
    for path in [MAPS, "/metrics", "/debug/routes"] {
        assert_eq!([get(path, "s3cret"), get(path, "guess"), get(path, "")], ["200", "401", "401"], "{path}");
    }
}

/// RT-LIFE-11: an object that names the console as its subscriber would act as the operator.
#[test]
fn console_is_no_target_of_events() {
    let appliance = setup().start();
    appliance.api().create(&broker("main"));
    appliance.api().create(&trigger("loop", "main", &format!("http://{}/api", appliance.console())));
    kit::wait::until(TIMEOUT, "the refusal", || {
        let trigger = appliance.api().get("Trigger", NAMESPACE, "loop")?;
        let ready = kit::api::condition(&trigger, "Ready")?;
        let is_refused =
            ready["message"].as_str().is_some_and(|why| why.contains("it is the console of this appliance"));
        (ready["status"] == "False" && is_refused).then_some(())
    });
}

#[test]
fn console_moves_to_the_successor_of_a_hot_restart() {
    let appliance = setup().start();
    let at = appliance.console();
    let successor = appliance.successor();
    assert_eq!(successor.console(), at);
    assert_eq!(HttpCall::get("/api/v1/namespaces").send(at).status, 200);
    assert!(!first_lines(at, "/console/stream", 1).is_empty());
}
