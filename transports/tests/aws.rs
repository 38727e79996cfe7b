//! SQS and S3 through the built program and moto, which verifies signatures in one test.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a test waits as a thread")]

mod support;

use std::path::Path;
use std::time::Duration;

use support::adapter_process::Adapter;
use support::http::{Message, post_number, request};
use support::proxy::Proxy;
use support::server::{Server, aws_credentials};
use support::sink::Sink;
use support::wait;

fn section(port: u16, secret: &Path, rest: &str) -> String {
    let secret = secret.display();
    format!(r#"{{"uriEndpointOverride":"http://127.0.0.1:{port}","region":"us-east-1","secret":"{secret}",{rest}}}"#)
}

/// An unsigned request, as moto allows it.
fn call(port: u16, service: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Message {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=x"
    );
    let mut all = vec![("authorization", authorization.as_str())];
    all.extend(headers);
    request(port, method, path, &all, body).unwrap()
}

fn send_message(port: u16, queue: &str, body: &str) {
    let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "AmazonSQS.SendMessage")];
    let url = format!("http://127.0.0.1:{port}/123456789012/{queue}");
    let input = serde_json::json!({"QueueUrl": url, "MessageBody": body}).to_string();
    let response = call(port, "sqs", "POST", "/", &headers, input.as_bytes());
    assert_eq!(response.status(), 200, "{}", response.text());
}

fn put(port: u16, path: &str, body: &[u8]) {
    let response = call(port, "s3", "PUT", path, &[("content-type", "text/plain")], body);
    assert_eq!(response.status(), 200, "{}", response.text());
}

fn status_of(port: u16, path: &str) -> u16 {
    call(port, "s3", "GET", path, &[], b"").status()
}

/// TRN-29: a plain message has upstream's attributes, and a slow sink keeps it from being delivered twice.
#[test]
fn sqs_message_is_kept_until_the_sink_accepts() {
    let Some(server) = Server::moto() else { return };
    let secret = aws_credentials();
    let sink = Sink::answering(|_, _| 503);
    let receiver = section(server.port, &secret, r#""arn":"q","autoCreateQueue":true,"visibilityTimeout":2"#);
    let adapter = Adapter::start("sqs", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    send_message(server.port, "q", "{\"n\":0}");
    wait("retries", || (adapter.metric("adapter_send_retries_total") > 0).then_some(()));
    // Longer than the visibility timeout: without heartbeats the message would be delivered again.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(adapter.metric("adapter_events_received_total"), 1);
    sink.set(|_, _| 202);
    let event = &sink.wait_for(1)[0];
    let attributes: Vec<String> = ["type", "source", "subject"].map(|name| event.text(name)).to_vec();
    assert_eq!(
        attributes,
        ["dev.knative.connector.event.aws-sqs", "dev.knative.eventing.aws-sqs-source", "aws-sqs-source"]
    );
    // A standard queue has no order, and each message comes once.
    for number in 1..40 {
        send_message(server.port, "q", &format!("{{\"n\":{number}}}"));
    }
    wait("all messages", || (sink.numbers().len() == 40).then_some(()));
    wait("the deletions", || (adapter.metric("adapter_events_pending") == 0).then_some(()));
    assert_eq!(adapter.stop(), Some(0));
    std::thread::sleep(Duration::from_secs(3));
    let _adapter = Adapter::start("sqs", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    send_message(server.port, "q", "{\"n\":40}");
    wait("the last message", || (sink.numbers().len() == 41).then_some(()));
    assert_eq!(sink.accepted().len(), 41, "deleted messages do not come again");
}

/// TRN-29: an object is deleted after the 2xx and not before; its key and its data are in the event.
#[test]
fn s3_object_is_deleted_after_the_sink_accepted_it() {
    let Some(server) = Server::moto() else { return };
    let secret = aws_credentials();
    let sink = Sink::answering(|_, _| 503);
    let receiver = section(
        server.port,
        &secret,
        r#""arn":"arn:aws:s3:::inbox","autoCreateBucket":true,"prefix":"new/","delay":50"#,
    );
    let adapter = Adapter::start("s3", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    put(server.port, "/inbox/other/0", b"0");
    put(server.port, "/inbox/new/%C3%BC%20a%2Bb", b"0");
    wait("retries", || (adapter.metric("adapter_send_retries_total") > 0).then_some(()));
    assert_eq!(status_of(server.port, "/inbox/new/%C3%BC%20a%2Bb"), 200);
    sink.set(|_, _| 202);
    let event = &sink.wait_for(1)[0];
    let seen = ["type", "source", "subject", "s3bucket", "s3key", "datacontenttype"].map(|name| event.text(name));
    let wanted = [
        "dev.knative.connector.event.aws-s3",
        "dev.knative.eventing.aws-s3-source",
        "aws-s3-source",
        "inbox",
        "new/ü a+b",
        "text/plain",
    ];
    assert_eq!((seen.to_vec(), event.data.as_deref()), (wanted.map(str::to_owned).to_vec(), Some(&b"0"[..])));
    wait("the deletion", || (status_of(server.port, "/inbox/new/%C3%BC%20a%2Bb") == 404).then_some(()));
    for number in 1..30 {
        put(server.port, &format!("/inbox/new/{number}"), number.to_string().as_bytes());
    }
    wait("all objects", || (sink.numbers().len() == 30).then_some(()));
    assert_eq!(sink.accepted().len(), 30);
    assert_eq!(status_of(server.port, "/inbox/other/0"), 200);
}

/// Objects that stay are remembered through a kill; a new version of one is a new event.
#[test]
fn s3_object_that_stays_is_sent_once() {
    let Some(server) = Server::moto() else { return };
    let (secret, state) = (aws_credentials(), tempfile::tempdir().unwrap());
    let sink = Sink::new();
    let receiver =
        section(server.port, &secret, r#""arn":"inbox","autoCreateBucket":true,"deleteAfterRead":false,"delay":50"#);
    let directory = state.path().display().to_string();
    let url = sink.url();
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", &url), ("ADAPTER_STATE", &directory)];
    let adapter = Adapter::start("s3", &variables).wait_ready();
    // More than one page of moto would need 1,000 objects; the pages have a unit test.
    for number in 0..20 {
        put(server.port, &format!("/inbox/{number}"), number.to_string().as_bytes());
    }
    wait("all objects", || (sink.numbers().len() == 20).then_some(()));
    wait("the file", || (adapter.metric("adapter_events_pending") == 0).then_some(()));
    adapter.kill();
    let adapter = Adapter::start("s3", &variables).wait_ready();
    put(server.port, "/inbox/3", b"20");
    wait("the new version", || (sink.numbers().len() == 21).then_some(()));
    assert_eq!(sink.accepted().len(), 21);
    assert_eq!(adapter.stop(), Some(0));
}

/// TRN-29: an object is there before the 202, and is its event again for a receiver.
#[test]
fn s3_sender_writes_what_the_receiver_reads() {
    let Some(server) = Server::moto() else { return };
    let secret = aws_credentials();
    let sink = Sink::new();
    let receiver = section(server.port, &secret, r#""arn":"bucket","autoCreateBucket":true,"delay":50"#);
    for mode in ["binary", "structured"] {
        let rest = format!(r#""arn":"bucket","autoCreateBucket":true,"prefix":"p/","contentMode":"{mode}""#);
        let sender = section(server.port, &secret, &rest);
        let sender = Adapter::start("s3", &[("ADAPTER_SENDER", &sender)]).wait_ready();
        assert_eq!(post_number(sender.port, 7).unwrap().status(), 202);
        let object = call(server.port, "s3", "GET", "/bucket/p/test/7", &[], b"");
        let meta = (object.header("x-amz-meta-ce-type"), object.header("content-type"));
        match mode {
            "binary" => assert_eq!((meta, object.text()), ((Some("test"), Some("text/plain")), "7".to_owned())),
            _ => assert_eq!(meta, (None, Some("application/cloudevents+json"))),
        }
    }
    let _adapter = Adapter::start("s3", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let event = &sink.wait_for(1)[0];
    assert_eq!(
        (event.text("type"), event.id(), event.data.as_deref()),
        ("test".to_owned(), "7".to_owned(), Some(&b"7"[..]))
    );
}

/// The service verifies signatures: right credentials work, wrong ones and a missing bucket are reasons, rotated ones are used
/// without a restart, and no log shows them.
#[test]
fn signature_is_verified_and_rotated_credentials_are_used() {
    // Three requests without verification: the user, its key and its policy.
    let Some(server) = Server::moto_with(&[("INITIAL_NO_AUTH_ACTION_COUNT", "3")]) else { return };
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let iam = |query: &str| {
        let response = call(server.port, "iam", "POST", "/", &form, format!("{query}&Version=2010-05-08").as_bytes());
        assert_eq!(response.status(), 200, "{}", response.text());
        response.text()
    };
    iam("Action=CreateUser&UserName=u");
    let keys = iam("Action=CreateAccessKey&UserName=u");
    let policy = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C%22Action%22%3A%22*%22%2C%22Resource%22%3A%22*%22%7D%5D%7D";
    iam(&format!("Action=PutUserPolicy&UserName=u&PolicyName=p&PolicyDocument={policy}"));
    let field = |name: &str| {
        let rest = keys.split(&format!("<{name}>")).nth(1).unwrap();
        rest.split('<').next().unwrap().to_owned()
    };
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("aws.accessKey"), field("AccessKeyId")).unwrap();
    std::fs::write(secret.path().join("aws.secretKey"), "wr0ng").unwrap();
    let sink = Sink::new();
    let url = sink.url();
    for (kind, rest) in [
        ("s3", r#""arn":"b c","autoCreateBucket":true,"delay":50"#),
        ("s3", r#""arn":"bucket","autoCreateBucket":true,"delay":50"#),
        ("sqs", r#""arn":"q","autoCreateQueue":true"#),
    ] {
        std::fs::write(secret.path().join("aws.secretKey"), "wr0ng").unwrap();
        let receiver = section(server.port, secret.path(), rest);
        let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", &url), ("ADAPTER_LOG", "trace")];
        let adapter = Adapter::start(kind, &variables);
        adapter.wait_reason("RequestRefused");
        if rest.contains("b c") {
            continue;
        }
        std::fs::write(secret.path().join("aws.secretKey"), field("SecretAccessKey")).unwrap();
        let adapter = adapter.wait_ready();
        assert!(!adapter.log().contains("wr0ng") && !adapter.log().contains(&field("SecretAccessKey")));
    }
}

/// A missing file is a reason; once it is there the adapter is ready by itself.
#[test]
fn missing_credentials_are_a_reason_until_they_are_there() {
    let Some(server) = Server::moto() else { return };
    let secret = tempfile::tempdir().unwrap();
    let receiver = section(server.port, secret.path(), r#""arn":"bucket","autoCreateBucket":true"#);
    let adapter = Adapter::start("s3", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", "http://127.0.0.1:1/")]);
    adapter.wait_reason("SecretMissing");
    for name in ["accessKey", "secretKey"] {
        std::fs::write(secret.path().join(name), "x").unwrap();
    }
    drop(adapter.wait_ready());
}

/// TRN-49, SRC-38: kills of the adapter and a cut connection lose nothing; what a killed adapter had comes again after the
/// visibility timeout. Order is not asked for: moto mixes up a group of a FIFO queue after that timeout.
#[test]
fn sqs_loses_nothing() {
    let Some(server) = Server::moto() else { return };
    let secret = aws_credentials();
    let proxy = Proxy::to(server.port);
    let sink = Sink::new();
    let receiver = section(proxy.port, &secret, r#""arn":"q","autoCreateQueue":true,"visibilityTimeout":3"#);
    let url = sink.url();
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", &url)];
    let mut adapter = Adapter::start("sqs", &variables).wait_ready();
    let sender = section(server.port, &secret, r#""arn":"q""#);
    let sender = Adapter::start("sqs", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    let mut next = 0;
    let mut publish = |events: u64| {
        for _ in 0..events {
            assert_eq!(post_number(sender.port, next).unwrap().status(), 202);
            next += 1;
        }
        next
    };
    let arrive = |wanted: u64| wait("all numbers", || (sink.numbers().len() as u64 == wanted).then_some(()));
    arrive(publish(50));
    sink.set(|_, _| 503);
    publish(50);
    wait("retries", || (adapter.metric("adapter_send_retries_total") > 0).then_some(()));
    adapter.kill();
    adapter = Adapter::start("sqs", &variables);
    sink.set(|_, _| 202);
    arrive(publish(50));
    adapter.kill();
    adapter = Adapter::start("sqs", &variables).wait_ready();
    proxy.cut();
    publish(50);
    adapter.wait_reason("ConnectionFailed");
    proxy.restore();
    arrive(publish(1));
    assert_eq!(adapter.wait_ready().stop(), Some(0));
    // A FIFO queue: one group in order.
    let fifo = section(server.port, &secret, r#""arn":"q.fifo","autoCreateQueue":true,"waitTimeSeconds":0"#);
    let sink = Sink::new();
    let _adapter = Adapter::start("sqs", &[("ADAPTER_RECEIVER", &fifo), ("K_SINK", &sink.url())]).wait_ready();
    let sender = section(server.port, &secret, r#""arn":"q.fifo""#);
    let sender = Adapter::start("sqs", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    for number in 0..40 {
        assert_eq!(post_number(sender.port, number).unwrap().status(), 202);
    }
    assert_eq!(sink.wait_for_numbers(40), 0);
}
