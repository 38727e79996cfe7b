//! Edits of AdapterSources whose adapters run: a new configuration in the same process, or another process next to the first.
//! Skipped with a message without root, which files for adapters need.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "a test's own thread may wait")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use kit::api::{condition, is_ready};
use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, EventSink, TIMEOUT, wait};
use serde_json::{Value, json};

use crate::adapters::adapter_process;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const OWN: &str = "example.com/own";

/// An adapter that prints its process and what it is to send, at its start and on SIGHUP.
const PROGRAM: &str = r#"
import http.server, json, os, signal, sys
def show(*_):
    path = os.environ.get("ADAPTER_CONFIG")
    source = json.load(open(path))["source"] if path else json.loads(os.environ["ADAPTER_RECEIVER"])
    print("process", os.getpid(), "colour", source["colour"], flush=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
signal.signal(signal.SIGHUP, show)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
show()
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Health).serve_forever()
"#;

fn start(images: &[(&str, String)]) -> Option<Appliance> {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    if !program.is_file() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root and {}", program.display());
        return None;
    }
    let setup = ApplianceSetup::new(BIN);
    Some(
        images.iter().fold(setup, |setup, (image, command)| setup.flag("image", &format!("{image}={command}"))).start(),
    )
}

fn source(name: &str, adapter: Value, section: Value, sink: &str) -> Value {
    json!({
        "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "adapter": adapter, "source": section, "sink": { "uri": sink },
            "ceOverrides": { "extensions": { "team": "a" } },
        },
    })
}

fn append(path: &Path, numbers: std::ops::Range<u32>) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    for number in numbers {
        let event =
            json!({ "specversion": "1.0", "id": number.to_string(), "source": "/f", "type": "dev.example.line" });
        writeln!(file, "{event}").unwrap();
    }
}

/// TRN-09, TRN-41, TRN-56: overrides, the source and the sink of a built-in transport change in the process that runs; each event
/// arrives once and in order; a change of metadata changes nothing.
#[test]
fn live_edit_keeps_the_process_and_each_event() {
    let Some(appliance) = start(&[]) else { return };
    let api = appliance.api();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (first, second) = (folder.path().join("first.jsonl"), folder.path().join("second.jsonl"));
    append(&first, 0..50);
    append(&second, 1_000..1_010);
    let (sink, other) = (EventSink::start(), EventSink::start());
    api.create(&source("lines", json!({ "transport": "file" }), json!({ "path": first, "follow": true }), &sink.url()));
    api.wait_ready("AdapterSource", NAMESPACE, "lines", TIMEOUT);
    let process = adapter_process(&appliance, "lines").unwrap();
    append(&first, 50..100);
    let edit = |spec: Value| api.patch("AdapterSource", NAMESPACE, "lines", &json!({ "spec": spec }));

    edit(json!({ "ceOverrides": { "extensions": { "team": "b" } } }));
    let mut written = 100;
    wait::until(TIMEOUT, "an event with the new override", || {
        append(&first, written..written + 1);
        written += 1;
        std::thread::sleep(std::time::Duration::from_millis(20)); // a writer's pace
        sink.received().iter().any(|event| event.attribute("team").as_deref() == Some("b")).then_some(())
    });
    api.patch("AdapterSource", NAMESPACE, "lines", &json!({ "metadata": { "labels": { "x": "y" } } }));
    edit(json!({ "sink": { "uri": other.url() } }));
    wait::until(TIMEOUT, "an event at the new sink", || {
        append(&first, written..written + 1);
        written += 1;
        std::thread::sleep(std::time::Duration::from_millis(20));
        (!other.received().is_empty()).then_some(())
    });
    let all = || [sink.received(), other.received()].concat();
    wait::until(TIMEOUT, "all events", || (all().len() >= written as usize).then_some(()));
    let ids: Vec<u32> = all().iter().map(|event| event.id().parse().unwrap()).collect();
    assert_eq!(ids, (0..written).collect::<Vec<_>>(), "each once and in order");

    edit(json!({ "source": { "path": second, "follow": true } }));
    wait::until(TIMEOUT, "events of the other file", || {
        other.received().iter().any(|event| event.id() == "1009").then_some(())
    });
    assert_eq!(adapter_process(&appliance, "lines"), Some(process), "the same process");
    api.wait_for("AdapterSource", NAMESPACE, "lines", TIMEOUT, is_ready);
}

/// TRN-50, TRN-56: an edit that the adapter refuses is told by the source, and the last good configuration stays in force.
#[test]
fn refused_edit_is_told_and_the_old_configuration_stays() {
    let Some(appliance) = start(&[]) else { return };
    let api = appliance.api();
    let sink = EventSink::start();
    let timer = json!({ "message": "tick", "period": 100 });
    api.create(&source("ticks", json!({ "transport": "timer" }), timer, &sink.url()));
    api.wait_ready("AdapterSource", NAMESPACE, "ticks", TIMEOUT);
    let process = adapter_process(&appliance, "ticks").unwrap();
    api.patch("AdapterSource", NAMESPACE, "ticks", &json!({ "spec": { "qos": 2 } }));
    let told = |source: &Value| {
        condition(source, "Deployed")
            .is_some_and(|one| one["status"] != "True" && one["message"].as_str().unwrap_or("").contains("qos"))
    };
    api.wait_for("AdapterSource", NAMESPACE, "ticks", TIMEOUT, told);
    let before = sink.received().len();
    sink.wait_for(before + 2, TIMEOUT);
    api.patch("AdapterSource", NAMESPACE, "ticks", &json!({ "spec": { "qos": 1 } }));
    api.wait_for("AdapterSource", NAMESPACE, "ticks", TIMEOUT, is_ready);
    assert_eq!(adapter_process(&appliance, "ticks"), Some(process), "the same process");
}

/// TRN-56: an AdapterType says that its adapter reads a changed file on SIGHUP. Without that, another process takes over, and
/// the first ends once it is ready.
#[test]
fn adapter_type_says_whether_an_edit_needs_another_process() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: python3 is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("adapter.py");
    std::fs::write(&program, PROGRAM).unwrap();
    let Some(appliance) = start(&[(OWN, format!("python3 {}", program.display()))]) else { return };
    let api = appliance.api();
    let own_type = |live: bool| {
        json!({
            "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterType", "metadata": { "name": "own" },
            "spec": { "adapter": { "image": OWN }, "live": live },
        })
    };
    api.create(&own_type(true));
    api.create(&source("own", json!({ "image": OWN }), json!({ "colour": "red" }), "http://127.0.0.1:9/"));
    let shown = |colour: &str| {
        let pods = api.list_selected("Pod", NAMESPACE, "serving.knative.dev/service=own-adapter");
        let log = |pod: &Value| {
            let name = pod["metadata"]["name"].as_str().unwrap();
            api.send(kit::HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/log"))).text()
        };
        let text: String = pods.iter().map(log).collect();
        let line = text.lines().find(|line| line.ends_with(&format!("colour {colour}")))?;
        Some(line.split(' ').nth(1).unwrap().to_owned())
    };
    let process = wait::until(TIMEOUT, "the first configuration", || shown("red"));
    api.wait_ready("AdapterSource", NAMESPACE, "own", TIMEOUT);
    let edit = |colour: &str| {
        api.patch("AdapterSource", NAMESPACE, "own", &json!({ "spec": { "source": { "colour": colour } } }));
        wait::until(TIMEOUT, "the new configuration", || shown(colour))
    };
    assert_eq!(edit("green"), process, "the same process");
    api.patch("AdapterType", "", "own", &json!({ "spec": { "live": false } }));
    assert_ne!(edit("blue"), process, "another process");
    api.wait_ready("AdapterSource", NAMESPACE, "own", TIMEOUT);
}
