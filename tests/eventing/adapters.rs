//! AdapterSources through the built binary, with the built-in transports installed next to it. Skipped with a message
//! without that program.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, broker, service};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SINK: &str = "example.com/sink";

/// The appliance, with a Broker whose events all go to the Service `inner`.
fn start() -> Option<Appliance> {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    if !program.is_file() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    let appliance = ApplianceSetup::new(BIN).flag("image", &format!("{SINK}={BIN} example sink")).start();
    let api = appliance.api();
    api.create(&service("inner", SINK, "x"));
    api.create(&broker("main"));
    api.create(&json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger",
        "metadata": { "name": "all", "namespace": NAMESPACE },
        "spec": {
            "broker": "main",
            "subscriber": { "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "inner" } },
        },
    }));
    api.wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    Some(appliance)
}

fn adapter_source(name: &str, transport: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "adapter": { "transport": transport }, "source": source,
            "sink": { "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } },
            "ceOverrides": { "extensions": { "team": "a" } },
            "eventTypes": [{ "type": "dev.knative.connector.event.timer", "source": "/timer" }],
        },
    })
}

/// What the instances of a Service have printed.
fn printed(api: KitApi, service: &str) -> String {
    pods(api, service)
        .iter()
        .map(|pod| {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log");
            api.send(HttpCall::get(&path)).text()
        })
        .collect()
}

fn pods(api: KitApi, service: &str) -> Vec<String> {
    let list = HttpCall::get(&format!(
        "/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=serving.knative.dev/service={service}"
    ));
    let list = api.send(list).json();
    let names = list["items"].as_array().into_iter().flatten().map(|pod| pod["metadata"]["name"].as_str());
    names.map(|name| name.unwrap().to_owned()).collect()
}

/// TRN-02, TRN-16, TRN-35, TRN-40, TRN-41, TRN-42, TRN-46, TRN-47, TRN-48, TRN-49, TRN-53, TRN-54: a source with the
/// conditions of its kind sends to a Broker, and a change of metadata leaves its instance alone.
#[test]
fn adapter_source_sends_to_a_broker() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let source = adapter_source("ticks", "timer", &json!({ "message": "tick", "period": 200 }));
    api.create(&source);
    let ready = api.wait_for("AdapterSource", NAMESPACE, "ticks", TIMEOUT, is_ready);
    for kind in ["Sink", "Deployed", "EventTypes", "Ready"] {
        assert_eq!(condition(&ready, kind).unwrap()["status"], "True", "{kind}: {ready:#}");
    }
    assert!(ready["status"]["sinkUri"].as_str().unwrap().ends_with("/main"), "{ready:#}");
    wait::until(TIMEOUT, "an event in the Service's log", || {
        printed(api, "inner").contains("dev.knative.connector.event.timer").then_some(())
    });
    wait::until(TIMEOUT, "the EventType", || {
        let types = api.list("EventType", NAMESPACE);
        types.iter().any(|one| one["spec"]["type"] == "dev.knative.connector.event.timer").then_some(())
    });
    let before = pods(api, "ticks-adapter");
    assert_eq!(before.len(), 1);
    api.patch("AdapterSource", NAMESPACE, "ticks", &json!({ "metadata": { "labels": { "a": "b" } } }));
    api.wait_for("AdapterSource", NAMESPACE, "ticks", TIMEOUT, |source| source["metadata"]["labels"]["a"] == "b");
    assert_eq!(pods(api, "ticks-adapter"), before, "the same instance");
    api.delete("AdapterSource", NAMESPACE, "ticks");
    wait::until(TIMEOUT, "the end of the adapter", || pods(api, "ticks-adapter").is_empty().then_some(()));
}

/// TRN-11, TRN-17, TRN-20, TRN-22, TRN-24, TRN-50: a webhook listener waits for its Secret, becomes ready by itself, and shows it
/// nowhere; a changed Secret reaches it.
#[test]
fn adapter_source_waits_for_its_secret() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let section = json!({
        "servicePorts": [{ "name": "http", "port": 80, "targetPort": port }],
        "hmac": { "secret": { "secret": { "name": "hook" } } },
        "plain": { "type": "dev.example.hook", "source": "/hook" },
    });
    api.create(&adapter_source("hooks", "http", &section));
    let waits =
        |source: &Value| condition(source, "Deployed").is_some_and(|deployed| deployed["reason"] == "SecretNotFound");
    api.wait_for("AdapterSource", NAMESPACE, "hooks", TIMEOUT, waits);
    api.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "hook", "namespace": NAMESPACE },
        "stringData": { "secret": "It's a Secret to Everybody" },
    }));
    api.wait_ready("AdapterSource", NAMESPACE, "hooks", TIMEOUT);
    let post = |signature: &str| {
        let output = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", "Hello, World!", "-H"])
            .arg(format!("X-Hub-Signature-256: sha256={signature}"))
            .arg(format!("http://127.0.0.1:{port}/"))
            .output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // The example of GitHub's documentation.
    if let (Ok(good), Ok(bad)) = (post("757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"), post("00"))
    {
        assert_eq!((good.as_str(), bad.as_str()), ("202", "401"));
        wait::until(TIMEOUT, "the event", || printed(api, "inner").contains("dev.example.hook").then_some(()));
    }
    // The file is there for the adapter's user only, and its bytes are neither in the environment nor in the arguments.
    let process = adapter_process(&appliance, "hooks").unwrap();
    let file = format!("/proc/{process}/root/run/sluicegate/secrets/hook/secret");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o400);
    for place in ["environ", "cmdline"] {
        let text = std::fs::read(format!("/proc/{process}/{place}")).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("Everybody"), "{place}");
    }
    let shown = [api.get("Service", NAMESPACE, "hooks-adapter").unwrap().to_string(), printed(api, "hooks-adapter")];
    assert!(shown.iter().all(|text| !text.contains("Everybody")), "{shown:?}");
    api.patch("Secret", NAMESPACE, "hook", &json!({ "stringData": { "secret": "rotated" } }));
    wait::until(TIMEOUT, "the rotated Secret", || (std::fs::read(&file).ok()? == b"rotated").then_some(()));
    assert_eq!(adapter_process(&appliance, "hooks"), Some(process), "the same instance");
}

/// The process of the source's adapter: the appliance is its parent, and its environment has the name.
pub(crate) fn adapter_process(appliance: &Appliance, name: &str) -> Option<u32> {
    let wanted = [format!("NAME={name}")];
    let is_child = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{}", appliance.pid()))
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let variables: Vec<_> = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let program = std::fs::read_link(format!("/proc/{id}/exe")).unwrap_or_default();
        program.ends_with("sluicegate-adapters")
            && is_child(*id)
            && wanted.iter().all(|wanted| variables.iter().any(|variable| variable == wanted))
    };
    let mut found: Vec<u32> = ids.filter(is_it).collect();
    found.sort_unstable();
    found.pop()
}

/// TRN-36, TRN-37: an adapter that is killed comes again by itself.
#[test]
fn killed_adapter_is_started_again() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    api.create(&adapter_source("ticks", "timer", &json!({ "message": "tick", "period": 200 })));
    api.wait_ready("AdapterSource", NAMESPACE, "ticks", TIMEOUT);
    let first = adapter_process(&appliance, "ticks").unwrap();
    assert!(Command::new("kill").args(["-9", &first.to_string()]).status().unwrap().success());
    wait::until(TIMEOUT, "another process", || adapter_process(&appliance, "ticks").filter(|second| *second != first));
    api.wait_ready("AdapterSource", NAMESPACE, "ticks", TIMEOUT);
}

/// TRN-15: upstream's IntegrationSource with a timer, as its documentation has it.
#[test]
fn integration_source_timer_is_ready_and_sends() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    api.create(&json!({
        "apiVersion": "sources.knative.dev/v1alpha1", "kind": "IntegrationSource",
        "metadata": { "name": "integration-source-timer", "namespace": NAMESPACE },
        "spec": {
            "timer": { "period": 200, "message": "Hello, Eventing Core" },
            "sink": { "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } },
        },
    }));
    let source = api.wait_for("IntegrationSource", NAMESPACE, "integration-source-timer", TIMEOUT, is_ready);
    assert_eq!(condition(&source, "ContainerSourceReady").unwrap()["status"], "True");
    assert!(source["status"]["sinkUri"].as_str().unwrap().ends_with("/main"), "{source:#}");
    wait::until(TIMEOUT, "an event", || printed(api, "inner").contains("integration-source-timer").then_some(()));
}

/// Upstream's RedisStreamSource, with a server if one is installed: an entry becomes an event and is acknowledged after that.
#[test]
fn redis_stream_source_sends_entries() {
    let Some(appliance) = start() else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let server = Command::new("redis-server")
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(folder.path())
        .stdout(std::process::Stdio::null())
        .spawn();
    let Ok(mut server) = server else {
        eprintln!("skipped: redis-server is not installed");
        return;
    };
    let api = appliance.api();
    api.create(&json!({
        "apiVersion": "sources.knative.dev/v1alpha1", "kind": "RedisStreamSource",
        "metadata": { "name": "mystream", "namespace": NAMESPACE },
        "spec": {
            "address": format!("redis://127.0.0.1:{port}"), "stream": "mystream", "group": "mygroup",
            "sink": { "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } },
        },
    }));
    api.wait_for("RedisStreamSource", NAMESPACE, "mystream", TIMEOUT, is_ready);
    let redis = |arguments: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    redis(&["XADD", "mystream", "*", "fruit", "banana"]);
    wait::until(TIMEOUT, "the event", || {
        printed(api, "inner").contains("dev.knative.sources.redisstream").then_some(())
    });
    wait::until(TIMEOUT, "the acknowledgement", || {
        redis(&["XPENDING", "mystream", "mygroup"]).starts_with('0').then_some(())
    });
    server.kill().unwrap();
    server.wait().unwrap();
}

/// TRN-45, TRN-59: what cannot work is refused with the path of its field.
#[test]
fn wrong_adapter_source_is_refused_with_its_field() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    for (change, field) in [
        (json!({ "adapter": { "transport": "carrier-pigeon" } }), "spec.adapter.transport"),
        (json!({ "adapter": {} }), "spec.adapter"),
        (json!({ "qos": 3 }), "spec.qos"),
        (json!({ "source": [] }), "spec.source"),
        (json!({ "delivery": { "deadLetterSink": {} } }), "spec.delivery.deadLetterSink.uri"),
        (json!({ "sinks": {} }), "spec.sinks"),
    ] {
        let mut source = adapter_source("wrong", "timer", &json!({ "message": "m" }));
        for (key, value) in change.as_object().unwrap() {
            source["spec"][key] = value.clone();
        }
        let answer = api.try_create(&source);
        assert!(answer.status >= 400 && answer.text().contains(field), "{field}: {}", answer.text());
    }
}

/// The verb runs the program that is installed next to this one.
#[test]
fn adapter_verb_runs_the_built_in_transports() {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    let output = Command::new(BIN).args(["adapter", "file"]).env_clear().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = if program.is_file() { "no sink" } else { "install sluicegate-adapters next to sluicegate" };
    assert!(!output.status.success() && text.contains(wanted), "{text}");
}

/// TRN-36: a source has a directory for its checkpoints that only its user can read; it survives the adapter and the appliance,
/// and ends with the source.
#[test]
fn state_directory_outlives_the_adapter_and_ends_with_the_source() {
    let Some(mut appliance) = start() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("events.jsonl");
    let line = |number: u32| {
        format!(
            "{}\n",
            json!({ "specversion": "1.0", "id": number.to_string(), "source": "/f", "type": "dev.example.line" })
        )
    };
    std::fs::write(&path, line(1) + &line(2)).unwrap();
    let api = appliance.api();
    api.create(&adapter_source("lines", "file", &json!({ "path": path, "follow": true })));
    api.wait_ready("AdapterSource", NAMESPACE, "lines", TIMEOUT);
    let events = |api: KitApi| printed(api, "inner").matches("event type=").count();
    wait::until(TIMEOUT, "both events", || (events(api) >= 2).then_some(()));
    let state = appliance.setup().data().join("state").join(NAMESPACE).join("lines-adapter");
    let files = || std::fs::read_dir(&state).into_iter().flatten().flatten().count();
    wait::until(TIMEOUT, "a checkpoint", || (files() > 0).then_some(()));
    assert_eq!(std::fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
    let process = adapter_process(&appliance, "lines").unwrap();
    assert_eq!(std::fs::metadata(format!("/proc/{process}")).unwrap().uid(), std::fs::metadata(&state).unwrap().uid());

    appliance.restart_on_same_ports();
    let api = appliance.api();
    api.wait_ready("AdapterSource", NAMESPACE, "lines", TIMEOUT);
    assert!(files() > 0, "it is there after a restart");
    api.delete("AdapterSource", NAMESPACE, "lines");
    wait::until(TIMEOUT, "the end of the directory", || (!state.exists()).then_some(()));
}
