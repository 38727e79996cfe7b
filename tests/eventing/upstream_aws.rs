//! Upstream's IntegrationSource and IntegrationSink for S3 and SQS, through the built binary and `moto_server`, if that is
//! installed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kit::api::is_ready;
use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// A server with the protocols of S3 and SQS, in a process group of its own.
struct AwsServer(Child, SocketAddr);

impl AwsServer {
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("moto_server");
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).process_group(0);
        let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            eprintln!("skipped: moto_server is not installed");
            return None;
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Self(child, address);
        // Python loads all of its services first.
        wait::until(3 * TIMEOUT, "the server to listen", || TcpStream::connect(address).ok());
        Some(server)
    }

    /// An unsigned request, as moto allows it.
    fn call(&self, service: &str, call: HttpCall) -> HttpResponse {
        let credential = format!("x/20260101/us-east-1/{service}/aws4_request");
        let value = format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=x");
        call.header("Authorization", &value).send(self.1)
    }

    fn sqs(&self, action: &str, input: &Value) -> Value {
        let call = HttpCall::post("/")
            .header("X-Amz-Target", &format!("AmazonSQS.{action}"))
            .header("Content-Type", "application/x-amz-json-1.0")
            .body(input.to_string());
        let answer = self.call("sqs", call);
        assert_eq!(answer.status, 200, "{answer}");
        answer.json()
    }

    fn queue(&self, name: &str) -> Value {
        self.sqs("CreateQueue", &json!({ "QueueName": name }))["QueueUrl"].clone()
    }

    fn s3(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        self.call("s3", HttpCall::new(method, path).header("Content-Type", "text/plain").body(body))
    }
}

impl Drop for AwsServer {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
        let _ = self.0.wait();
    }
}

fn start() -> Option<(Appliance, AwsServer)> {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    if !program.is_file() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    let server = AwsServer::start()?;
    let appliance = ApplianceSetup::new(BIN).flag("cluster-local", "127.0.0.1:0").start();
    Some((appliance, server))
}

fn secret() -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "my-secret", "namespace": NAMESPACE },
        "stringData": { "aws.accessKey": "access", "aws.secretKey": "very-secret" } })
}

/// The fields of a bucket or queue at the server.
fn at(server: &AwsServer, arn: &str) -> Value {
    json!({ "arn": arn, "region": "us-east-1", "uriEndpointOverride": format!("http://{}", server.1),
        "overrideEndpoint": true })
}

fn auth() -> Value {
    json!({ "secret": { "ref": { "name": "my-secret" } } })
}

fn source(name: &str, aws: &Value, sink: &EventSink) -> Value {
    json!({ "apiVersion": "sources.knative.dev/v1alpha1", "kind": "IntegrationSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "aws": aws, "sink": { "uri": sink.url() } } })
}

/// TRN-15, TRN-23: upstream's sources for S3 and SQS, which wait for their Secret.
#[test]
fn integration_source_sends_objects_and_messages() {
    let Some((appliance, server)) = start() else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    let queue = server.queue("orders");
    assert_eq!(server.s3("PUT", "/my-bucket", "").status, 200);
    api.create(&source(
        "sqs",
        &json!({ "sqs": at(&server, "arn:aws:sqs:us-east-1:123456789012:orders"), "auth": auth() }),
        &sink,
    ));
    api.create(&source("s3", &json!({ "s3": at(&server, "arn:aws:s3:::my-bucket"), "auth": auth() }), &sink));
    api.wait_for("IntegrationSource", NAMESPACE, "s3", TIMEOUT, |source| {
        source["status"].to_string().contains("Secret my-secret does not exist")
    });
    api.create(&secret());
    for name in ["s3", "sqs"] {
        api.wait_for("IntegrationSource", NAMESPACE, name, 3 * TIMEOUT, is_ready);
    }
    server.sqs("SendMessage", &json!({ "QueueUrl": queue, "MessageBody": "one message" }));
    assert_eq!(server.s3("PUT", "/my-bucket/key.txt", "one object").status, 200);
    let kinds = ["dev.knative.connector.event.aws-sqs", "dev.knative.connector.event.aws-s3"];
    wait::until(TIMEOUT, "an event of each", || {
        let seen: Vec<String> =
            sink.received().iter().map(|event| event.header("ce-type").unwrap_or_default().to_owned()).collect();
        kinds.iter().all(|kind| seen.iter().any(|one| one == kind)).then_some(())
    });
    // By default an object that was accepted is deleted.
    wait::until(TIMEOUT, "the deletion", || (server.s3("GET", "/my-bucket/key.txt", "").status == 404).then_some(()));
}

/// TRN-29: upstream's sinks for S3 and SQS. A 2xx says that the service has the event.
#[test]
fn integration_sink_writes_objects_and_messages() {
    let Some((appliance, server)) = start() else { return };
    let api = appliance.api();
    api.create(&secret());
    let queue = server.queue("out");
    assert_eq!(server.s3("PUT", "/out", "").status, 200);
    for (name, aws) in [
        ("to-s3", json!({ "s3": at(&server, "out"), "auth": auth() })),
        ("to-sqs", json!({ "sqs": at(&server, "out"), "auth": auth() })),
    ] {
        api.create(&json!({ "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "IntegrationSink",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": { "aws": aws } }));
        let ready = api.wait_for("IntegrationSink", NAMESPACE, name, 3 * TIMEOUT, is_ready);
        let host = ready["status"]["address"]["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let event = TestEvent::new("7").with("s3key", "seven").data("text/plain", "the data");
        let sent = event.binary("/").host(host.split('/').next().unwrap()).send(appliance.private());
        assert!((200..300).contains(&sent.status), "{name}: {sent}");
    }
    let object = server.s3("GET", "/out/seven", "");
    assert_eq!((object.status, object.text()), (200, "the data".to_owned()));
    let received = server.sqs("ReceiveMessage", &json!({ "QueueUrl": queue }));
    assert_eq!(received["Messages"][0]["Body"], "the data", "{received}");
}

/// What could not work, or would be done otherwise than upstream does it, is refused with its field.
#[test]
fn integration_source_without_its_needs_is_refused() {
    let appliance = ApplianceSetup::new(BIN).start();
    let sink = EventSink::start();
    let queue = json!({ "arn": "q", "region": "r" });
    for (aws, field) in [
        (json!({ "sqs": queue }), "spec.aws.auth.secret.ref.name"),
        (json!({ "sqs": { "arn": "q" }, "auth": auth() }), "spec.aws.sqs.region"),
        (json!({ "sqs": queue, "s3": queue, "auth": auth() }), "spec"),
        (
            json!({ "s3": { "arn": "b", "region": "r", "moveAfterRead": true }, "auth": auth() }),
            "spec.aws.s3.moveAfterRead",
        ),
        (json!({ "s3": { "arn": "b", "region": "r", "surprise": 1 }, "auth": auth() }), "surprise"),
    ] {
        let answer = appliance.api().try_create(&source("wrong", &aws, &sink));
        assert!(answer.status >= 400 && answer.text().contains(field), "{field}: {}", answer.text());
    }
}
