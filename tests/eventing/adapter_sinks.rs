//! Sinks that an adapter runs, through the built binary, with the built-in transports that stand beside it. A test without that
//! program, or without its server, says so and is skipped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, broker};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn start() -> Option<Appliance> {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    if !program.is_file() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    let appliance = ApplianceSetup::new(BIN).start();
    appliance.api().create(&broker("main"));
    Some(appliance)
}

/// A Trigger that sends all events of the Broker to a sink, and one event.
fn send(appliance: &Appliance, kind: &str, version: &str, name: &str, event: &TestEvent) {
    let api = appliance.api();
    let reference = json!({ "apiVersion": version, "kind": kind, "name": name });
    api.create(&json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger",
        "metadata": { "name": format!("to-{name}"), "namespace": NAMESPACE },
        "spec": { "broker": "main", "subscriber": { "ref": reference } },
    }));
    api.wait_ready("Trigger", NAMESPACE, &format!("to-{name}"), TIMEOUT);
    let sent = event.binary(&format!("/brokers/{NAMESPACE}/main")).send(appliance.events());
    assert_eq!(sent.status, 202, "{sent}");
}

fn adapter_sink(name: &str, section: &Value) -> Value {
    json!({
        "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterSink",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "adapter": { "transport": "file" }, "sink": section },
    })
}

fn printed(api: KitApi, service: &str) -> String {
    let pods = api.list_selected("Pod", NAMESPACE, &format!("serving.knative.dev/service={service}"));
    let log = |pod: &Value| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/log", pod["metadata"]["name"].as_str().unwrap());
        api.send(HttpCall::get(&path)).text()
    };
    pods.iter().map(log).collect()
}

/// TRN-05, TRN-29, TRN-34, TRN-35: an event for an AdapterSink is a line of its file; the sink has an address and ends with
/// its object.
#[test]
fn adapter_sink_writes_events_of_a_broker() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("events.jsonl");
    api.create(&adapter_sink("lines", &json!({ "path": path })));
    let ready = api.wait_for("AdapterSink", NAMESPACE, "lines", TIMEOUT, is_ready);
    for kind in ["Addressable", "Deployed"] {
        assert_eq!(condition(&ready, kind).unwrap()["status"], "True", "{ready:#}");
    }
    assert!(ready["status"]["address"]["url"].as_str().unwrap().starts_with("http://"), "{ready:#}");
    let event = TestEvent::new("7").of_type("dev.example.order");
    send(&appliance, "AdapterSink", "adapters.sluicegate.dev/v1alpha1", "lines", &event);
    let line = wait::until(TIMEOUT, "a line", || {
        let text = std::fs::read_to_string(&path).ok()?;
        text.lines().next().map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["id"], &line["type"]), (&json!("7"), &json!("dev.example.order")));
    api.delete("AdapterSink", NAMESPACE, "lines");
    let pods = || api.list_selected("Pod", NAMESPACE, "serving.knative.dev/service=lines-adaptersink");
    wait::until(TIMEOUT, "the end of the adapter", || pods().is_empty().then_some(()));
}

/// Upstream's IntegrationSink with a log; one without a transport says so.
#[test]
fn integration_sink_writes_to_its_log() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let sink = |name: &str, spec: Value| {
        json!({
            "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "IntegrationSink",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec,
        })
    };
    api.create(&sink("log", json!({ "log": { "showHeaders": true, "level": "INFO" } })));
    let ready = api.wait_for("IntegrationSink", NAMESPACE, "log", TIMEOUT, is_ready);
    assert_eq!(condition(&ready, "DeploymentReady").unwrap()["status"], "True", "{ready:#}");
    let event = TestEvent::new("8").of_type("dev.example.logged");
    send(&appliance, "IntegrationSink", "sinks.knative.dev/v1alpha1", "log", &event);
    wait::until(TIMEOUT, "the event in the log", || {
        printed(api, "log-integrationsink").contains("dev.example.logged").then_some(())
    });
    let auth = json!({ "secret": { "ref": { "name": "keys" } } });
    let topic = json!({ "aws": { "sns": { "arn": "t", "region": "eu-north-1" }, "auth": auth } });
    api.create(&sink("cloud", topic));
    let shown = api.wait_for("IntegrationSink", NAMESPACE, "cloud", TIMEOUT, |sink| {
        condition(sink, "DeploymentReady").is_some_and(|one| one["status"] == "False")
    });
    assert!(condition(&shown, "DeploymentReady").unwrap()["message"].as_str().unwrap().contains("sns"), "{shown:#}");
}

struct RedisServer(Child, String, #[expect(dead_code, reason = "removed at the end")] tempfile::TempDir);

impl RedisServer {
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let folder = tempfile::tempdir().unwrap();
        let server = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn();
        match server {
            Ok(child) => Some(Self(child, port, folder)),
            Err(_) => {
                eprintln!("skipped: redis-server is not installed");
                None
            }
        }
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.1]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// TRN-29: upstream's RedisStreamSink; what it accepted is in the stream.
#[test]
fn redis_stream_sink_adds_entries() {
    let (Some(appliance), Some(redis)) = (start(), RedisServer::start()) else { return };
    let api = appliance.api();
    api.create(&json!({
        "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "RedisStreamSink",
        "metadata": { "name": "mystream", "namespace": NAMESPACE },
        "spec": { "address": format!("redis://127.0.0.1:{}", redis.1), "stream": "mystream" },
    }));
    api.wait_for("RedisStreamSink", NAMESPACE, "mystream", TIMEOUT, is_ready);
    let event = TestEvent::new("9").of_type("dev.example.stream");
    send(&appliance, "RedisStreamSink", "sinks.knative.dev/v1alpha1", "mystream", &event);
    wait::until(TIMEOUT, "the entry", || {
        redis.ask(&["XRANGE", "mystream", "-", "+"]).contains("dev.example.stream").then_some(())
    });
}

/// TRN-45, TRN-59: the schema of an AdapterType, or of a built-in transport, refuses a wrong field with its path.
#[test]
fn adapter_type_refuses_a_wrong_field_with_its_path() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let schema = json!({ "type": "object", "properties": { "rate": { "type": "integer", "minimum": 1 } } });
    api.create(&json!({
        "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterType",
        "metadata": { "name": "udp" },
        "spec": {
            "adapter": { "image": "example.com/udp" }, "sourceSchema": schema,
            "eventTypes": [{ "type": "dev.example.packet" }],
        },
    }));
    let source = |adapter: Value, section: Value| {
        json!({
            "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterSource",
            "metadata": { "name": "packets", "namespace": NAMESPACE },
            "spec": { "adapter": adapter, "source": section, "sink": { "uri": "http://127.0.0.1:9/" } },
        })
    };
    let udp = json!({ "image": "example.com/udp" });
    for (adapter, section, field) in [
        (&udp, json!({ "rate": "fast" }), "spec.source.rate"),
        (&udp, json!({ "rate": 1, "speed": 2 }), "spec.source.speed"),
        (&json!({ "transport": "mqtt" }), json!({ "host": "h", "topics": ["a"], "port": "1883" }), "spec.source.port"),
        (&json!({ "transport": "kafka" }), json!({ "topics": ["a"] }), "spec.source.bootstrapServers"),
    ] {
        let answer = api.try_create(&source(adapter.clone(), section));
        assert!(answer.status >= 400 && answer.text().contains(field), "{field}: {answer}");
    }
    let made = api.create(&source(udp, json!({ "rate": 5 })));
    assert_eq!(made["spec"]["eventTypes"][0]["type"], "dev.example.packet", "{made:#}");
    let mut sink = adapter_sink("wrong", &json!({ "path": 7 }));
    let answer = api.try_create(&sink);
    assert!(answer.status >= 400 && answer.text().contains("spec.sink.path"), "{answer}");
    sink["spec"]["adapter"]["transport"] = "timer".into();
    let answer = api.try_create(&sink);
    assert!(answer.status >= 400 && answer.text().contains("spec.adapter.transport"), "{answer}");
}
