//! TLS of adapters: the listener, the sink and a server, with certificates of files; a wrong name is refused.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::path::Path;

use support::adapter_process::Adapter;
use support::server::Server;
use support::sink::Sink;
use support::{free_port, wait};

/// Writes `tls.crt`, `tls.key` and `ca.crt` of a certificate for `name`.
fn certificate(directory: &Path, name: &str) {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("ca.crt"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
}

/// TRN-17: the https port uses the certificate of the secret, a sink is trusted by its CA, and a wrong name is refused.
#[test]
fn https_listener_and_sink_use_their_certificates() {
    let directory = tempfile::tempdir().unwrap();
    for (name, is_right) in [("127.0.0.1", true), ("other.test", false)] {
        let secret = directory.path().join(name);
        certificate(&secret, name);
        let sink = Sink::new();
        let port = free_port();
        let receiver =
            serde_json::json!({"servicePorts": [{"name": "https", "port": port}], "secret": secret}).to_string();
        let _listener =
            Adapter::start("http", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
        let sender =
            serde_json::json!({"sinkUri": format!("https://127.0.0.1:{port}/"), "caCerts": secret.join("ca.crt")});
        let timer = r#"{"message":"tick","period":50}"#;
        let adapter = Adapter::start("timer", &[("ADAPTER_RECEIVER", timer), ("ADAPTER_SENDER", &sender.to_string())]);
        if is_right {
            sink.wait_for(2);
        } else {
            wait("a refused handshake", || adapter.log().contains("not valid for name").then_some(()));
            assert_eq!(sink.accepted().len(), 0);
        }
    }
}

/// A server's certificate by its CA, a wrong name refused with a reason, and a new certificate used without a restart.
#[test]
fn redis_over_tls_refuses_a_wrong_name() {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().join("tls");
    certificate(&files, "other.test");
    let file = |name: &str| files.join(name).display().to_string();
    let arguments = [
        "--tls-cert-file",
        &file("tls.crt"),
        "--tls-key-file",
        &file("tls.key"),
        "--tls-ca-cert-file",
        &file("ca.crt"),
    ]
    .map(str::to_owned);
    let start = || {
        Server::start("redis-server", |port, directory| {
            let dir = directory.display().to_string();
            let mut all = ["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &dir]
                .map(str::to_owned)
                .to_vec();
            all.extend(["--tls-auth-clients", "no", "--save", ""].map(str::to_owned));
            all.extend(arguments.clone());
            all
        })
    };
    for (name, is_right) in [("other.test", false), ("127.0.0.1", true)] {
        certificate(&files, name);
        let Some(server) = start() else { return };
        let receiver = serde_json::json!({
            "address": format!("127.0.0.1:{}", server.port), "stream": "s", "group": "g", "tls": {"secret": files},
        });
        // The certificate of the server is no client certificate here.
        std::fs::rename(files.join("tls.key"), files.join("server.key")).unwrap();
        let adapter =
            Adapter::start("redis", &[("ADAPTER_RECEIVER", &receiver.to_string()), ("K_SINK", "http://127.0.0.1:1/")]);
        if is_right {
            drop(adapter.wait_ready());
        } else {
            let body = adapter.wait_reason("ConnectionFailed");
            assert!(body.to_lowercase().contains("certificate"), "{body}");
        }
    }
}
