//! Upstream's KafkaSource and RabbitmqSource through the built binary, with their servers if these are installed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kit::api::{condition, is_ready};
use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn start() -> Option<Appliance> {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    if !program.is_file() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    Some(ApplianceSetup::new(BIN).start())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server in a process group of its own, which ends with it.
struct ProcessGroup(Child, #[expect(dead_code, reason = "removed at the end")] tempfile::TempDir);

impl ProcessGroup {
    fn start(mut command: Command, folder: tempfile::TempDir, port: u16) -> Option<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else {
            eprintln!("skipped: {name} is not installed");
            return None;
        };
        let server = Self(child, folder);
        // RabbitMQ takes half a minute on a busy host.
        wait::until(3 * TIMEOUT, "the server to listen", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(server)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
        let _ = self.0.wait();
    }
}

fn kafka() -> Option<(ProcessGroup, u16)> {
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let address = format!("tcp://127.0.0.1:{port}");
    let mut command = Command::new("tansu");
    command.args(["broker", "--listener-url", &address, "--advertised-listener-url", &address]);
    command.args(["--storage-engine", "memory://tansu/"]);
    let server = ProcessGroup::start(command, folder, port)?;
    let created = Command::new("tansu")
        .args(["topic", "create", "orders", "--partitions", "1", "--broker", &address])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(created.success());
    Some((server, port))
}

fn rabbitmq() -> Option<(ProcessGroup, u16)> {
    let (port, distribution, epmd) = (free_port(), free_port(), free_port());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    let config = format!("listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n");
    std::fs::write(folder.path().join("rabbitmq.conf"), config).unwrap();
    // Debian's command in PATH changes to another user, who cannot read the folder.
    let direct = "/usr/lib/rabbitmq/bin/rabbitmq-server";
    let mut command = Command::new(if Path::new(direct).is_file() { direct } else { "rabbitmq-server" });
    command
        .env("RABBITMQ_NODENAME", format!("kind{port}@localhost"))
        .env("RABBITMQ_CONFIG_FILE", format!("{dir}/rabbitmq.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", format!("{dir}/plugins"))
        .env("RABBITMQ_MNESIA_BASE", format!("{dir}/mnesia"))
        .env("RABBITMQ_LOG_BASE", format!("{dir}/log"))
        .env("RABBITMQ_DIST_PORT", distribution.to_string())
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", epmd.to_string())
        .env("HOME", &dir)
        .env("ERL_CRASH_DUMP", format!("{dir}/crash"));
    ProcessGroup::start(command, folder, port).map(|server| (server, port))
}

fn kafka_source(name: &str, port: u16, sink: &str) -> Value {
    json!({
        "apiVersion": "sources.knative.dev/v1", "kind": "KafkaSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "consumerGroup": format!("group-{name}"), "bootstrapServers": [format!("127.0.0.1:{port}")],
            "topics": ["orders"], "initialOffset": "earliest", "sink": { "uri": sink },
        },
    })
}

fn trigger(name: &str, kind: &str, version: &str) -> Value {
    json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger",
        "metadata": { "name": format!("to-{name}"), "namespace": NAMESPACE },
        "spec": { "broker": "main", "subscriber": { "ref": { "apiVersion": version, "kind": kind, "name": name } } },
    })
}

/// TRN-15, TRN-29: what a KafkaSink accepted is in the topic, and a KafkaSource sends it on.
#[test]
fn kafka_sink_and_source_pass_an_event_through_a_topic() {
    let (Some(appliance), Some((_server, port))) = (start(), kafka()) else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    api.create(&kit::manifest::broker("main"));
    api.create(&json!({
        "apiVersion": "eventing.knative.dev/v1alpha1", "kind": "KafkaSink",
        "metadata": { "name": "orders", "namespace": NAMESPACE },
        "spec": { "topic": "orders", "bootstrapServers": [format!("127.0.0.1:{port}")] },
    }));
    api.wait_for("KafkaSink", NAMESPACE, "orders", TIMEOUT, is_ready);
    api.create(&trigger("orders", "KafkaSink", "eventing.knative.dev/v1alpha1"));
    api.wait_ready("Trigger", NAMESPACE, "to-orders", TIMEOUT);
    let event = kit::TestEvent::new("k1").of_type("dev.example.order");
    assert_eq!(event.binary("/brokers/default/main").send(appliance.events()).status, 202);
    api.create(&kafka_source("reader", port, &sink.url()));
    let ready = api.wait_for("KafkaSource", NAMESPACE, "reader", TIMEOUT, is_ready);
    for kind in ["SinkProvided", "Deployed", "ConnectionEstablished", "InitialOffsetsCommitted", "OIDCIdentityCreated"]
    {
        assert_eq!(condition(&ready, kind).unwrap()["status"], "True", "{ready:#}");
    }
    assert_eq!(ready["status"]["consumers"], 1);
    let received = sink.wait_for(1, TIMEOUT);
    assert_eq!(
        (received[0].id().as_str(), received[0].attribute("type").as_deref()),
        ("k1", Some("dev.example.order"))
    );
}

/// SRC-28: `kubectl scale` sets the consumers, in both versions; none is allowed, and the group does not change.
#[test]
fn kafka_source_is_scaled_by_its_subresource() {
    let Some(appliance) = start() else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    api.create(&kafka_source("scaled", free_port(), &sink.url()));
    let path =
        |version: &str| format!("/apis/sources.knative.dev/{version}/namespaces/{NAMESPACE}/kafkasources/scaled");
    let scale = format!("{}/scale", path("v1"));
    assert_eq!(api.send(HttpCall::get(&scale)).json()["spec"]["replicas"], 1);
    let patch = HttpCall::new("PATCH", &scale)
        .header("Content-Type", "application/merge-patch+json")
        .body(json!({ "spec": { "replicas": 0 } }).to_string());
    assert_eq!(api.send(patch).status, 200);
    let beta = api.send(HttpCall::get(&path("v1beta1"))).json();
    assert_eq!((&beta["apiVersion"], &beta["spec"]["consumers"]), (&json!("sources.knative.dev/v1beta1"), &json!(0)));
    let found = api.wait_for("KafkaSource", NAMESPACE, "scaled", TIMEOUT, is_ready);
    assert_eq!(found["status"]["consumers"], 0, "{found:#}");
    assert!(api.list("Service", NAMESPACE).is_empty(), "no consumer is left");
    let other = json!({ "spec": { "consumerGroup": "other" } });
    assert_eq!(api.try_patch("KafkaSource", NAMESPACE, "scaled", &other).status, 422);
}

/// TRN-11, TRN-15, TRN-50: upstream's RabbitmqSource waits for its Secret, binds its queue to the exchange, and sends messages.
#[test]
fn rabbitmq_source_sends_messages_of_its_exchange() {
    let (Some(appliance), Some((_server, port))) = (start(), rabbitmq()) else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    api.create(&json!({
        "apiVersion": "sources.knative.dev/v1alpha1", "kind": "RabbitmqSource",
        "metadata": { "name": "orders", "namespace": NAMESPACE },
        "spec": {
            "rabbitmqClusterReference": { "connectionSecret": { "name": "rabbit" } },
            "rabbitmqResourcesConfig": { "exchangeName": "shop", "queueName": "orders", "queueType": "classic", "parallelism": 10 },
            "sink": { "uri": sink.url() },
        },
    }));
    let waits =
        |source: &Value| condition(source, "Deployed").is_some_and(|deployed| deployed["reason"] == "SecretNotFound");
    api.wait_for("RabbitmqSource", NAMESPACE, "orders", TIMEOUT, waits);
    let keys = json!({ "uri": "127.0.0.1:15672", "port": port.to_string(), "username": "guest", "password": "guest" });
    api.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "rabbit", "namespace": NAMESPACE }, "stringData": keys,
    }));
    api.wait_for("RabbitmqSource", NAMESPACE, "orders", TIMEOUT, is_ready);
    // A sink of ours publishes to the exchange.
    api.create(&json!({
        "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterSink",
        "metadata": { "name": "shop", "namespace": NAMESPACE },
        "spec": {
            "adapter": { "transport": "amqp" },
            "sink": { "host": "127.0.0.1", "port": port, "exchange": "shop", "routingKey": "new", "predeclared": true },
        },
    }));
    api.wait_for("AdapterSink", NAMESPACE, "shop", TIMEOUT, is_ready);
    api.create(&kit::manifest::broker("main"));
    api.create(&trigger("shop", "AdapterSink", "adapters.sluicegate.dev/v1alpha1"));
    api.wait_ready("Trigger", NAMESPACE, "to-shop", TIMEOUT);
    let event = kit::TestEvent::new("r1").of_type("dev.example.order");
    assert_eq!(event.binary("/brokers/default/main").send(appliance.events()).status, 202);
    let received = sink.wait_for(1, TIMEOUT);
    assert_eq!(
        (received[0].id().as_str(), received[0].attribute("type").as_deref()),
        ("r1", Some("dev.example.order"))
    );
}
