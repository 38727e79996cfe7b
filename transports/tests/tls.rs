//! TLS of adapters: the listener, the sink and a server, with certificates of files; a wrong name is refused.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::path::Path;

use support::adapter_process::Adapter;
use support::server::Server;
use support::sink::Sink;
use support::{free_port, wait};

/// Writes `tls.crt` and `tls.key` of a certificate for `name`, and `ca.crt` of the authority that signed it.
fn certificate(directory: &Path, name: &str) {
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, format!("authority of {name}"));
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let made = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("tls.crt"), made.pem()).unwrap();
    std::fs::write(directory.join("ca.crt"), authority_certificate.pem()).unwrap();
    std::fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
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

/// A server that asks for a client certificate.
struct MutualTls {
    kind: &'static str,
    /// Of the server, with the directory of its files.
    start: fn(&Path) -> Option<Server>,
    /// The fields of the connection.
    connection: fn(u16) -> serde_json::Value,
}

/// TRN-07, TRN-21: without a client certificate and with a wrong name there is a reason; with the right files the adapter is ready.
fn client_certificate_is_needed(transport: &MutualTls) {
    let directory = tempfile::tempdir().unwrap();
    let client = directory.path().join("client");
    certificate(&client, "client.test");
    for (name, with_certificates) in [("127.0.0.1", &[false, true][..]), ("other.test", &[true])] {
        let files = directory.path().join("server");
        certificate(&files, name);
        std::fs::copy(client.join("ca.crt"), files.join("clients.crt")).unwrap();
        let Some(server) = (transport.start)(&files) else { return };
        for with_certificate in with_certificates {
            let mut connection = (transport.connection)(server.port);
            connection["tls"] = serde_json::json!({"caCert": files.join("ca.crt")});
            if *with_certificate {
                connection["tls"]["cert"] = serde_json::json!(client.join("tls.crt"));
                connection["tls"]["key"] = serde_json::json!(client.join("tls.key"));
            }
            let connection = connection.to_string();
            let variables = [("ADAPTER_RECEIVER", connection.as_str()), ("K_SINK", "http://127.0.0.1:1/")];
            let adapter = Adapter::start(transport.kind, &variables);
            if *with_certificate && name == "127.0.0.1" {
                drop(adapter.wait_ready());
            } else {
                adapter.wait_reason("ConnectionFailed");
            }
        }
    }
}

#[test]
fn redis_asks_for_a_client_certificate() {
    client_certificate_is_needed(&MutualTls {
        kind: "redis",
        start: |files| {
            let files = files.to_owned();
            Server::start("redis-server", move |port, directory| {
                let file = |name: &str| files.join(name).display().to_string();
                let mut all =
                    ["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"].map(str::to_owned).to_vec();
                all.extend(["--dir", &directory.display().to_string(), "--save", ""].map(str::to_owned));
                all.extend([
                    "--tls-cert-file".to_owned(),
                    file("tls.crt"),
                    "--tls-key-file".to_owned(),
                    file("tls.key"),
                ]);
                all.extend(["--tls-ca-cert-file".to_owned(), file("clients.crt")]);
                all
            })
        },
        connection: |port| serde_json::json!({"address": format!("127.0.0.1:{port}"), "stream": "s", "group": "g"}),
    });
}

#[test]
fn nats_asks_for_a_client_certificate() {
    client_certificate_is_needed(&MutualTls {
        kind: "nats",
        start: |files| {
            let files = files.to_owned();
            Server::start("nats-server", move |port, directory| {
                let file = |name: &str| files.join(name).display().to_string();
                let mut all =
                    ["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd", &directory.display().to_string()]
                        .map(str::to_owned)
                        .to_vec();
                all.extend([
                    "--tlsverify".to_owned(),
                    "--tlscert".to_owned(),
                    file("tls.crt"),
                    "--tlskey".to_owned(),
                    file("tls.key"),
                ]);
                all.extend(["--tlscacert".to_owned(), file("clients.crt")]);
                all
            })
        },
        // Core NATS: a stream would have to be made over TLS first.
        connection: |port| serde_json::json!({"servers": [format!("127.0.0.1:{port}")], "subject": "s"}),
    });
}

#[test]
fn mosquitto_asks_for_a_client_certificate() {
    client_certificate_is_needed(&MutualTls {
        kind: "mqtt",
        start: |files| {
            let files = files.to_owned();
            // The broker leaves its user for one that may not read the files of a test.
            Server::start("mosquitto", move |port, directory| {
                let path = directory.join("mosquitto.conf");
                let files = files.display();
                let config = format!(
                    "user root\nlistener {port} 127.0.0.1\nallow_anonymous true\ncertfile {files}/tls.crt\nkeyfile {files}/tls.key\ncafile {files}/clients.crt\nrequire_certificate true\n"
                );
                std::fs::write(&path, config).unwrap();
                ["-c", &path.display().to_string()].map(str::to_owned).to_vec()
            })
        },
        connection: |port| serde_json::json!({"host": "127.0.0.1", "port": port, "topics": ["a"]}),
    });
}

fn rabbitmq(files: &Path) -> Option<Server> {
    let files = files.display();
    Server::rabbitmq_with(&|port| {
        format!(
            "listeners.tcp = none\nlisteners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {files}/clients.crt\nssl_options.certfile = {files}/tls.crt\nssl_options.keyfile = {files}/tls.key\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\nloopback_users = none\n"
        )
    })
}

#[test]
fn rabbitmq_asks_for_a_client_certificate() {
    client_certificate_is_needed(&MutualTls {
        kind: "amqp10",
        start: rabbitmq,
        connection: |port| serde_json::json!({"host": "127.0.0.1", "port": port, "address": "/queue/q"}),
    });
}

#[test]
fn rabbitmq_asks_for_a_client_certificate_in_0_9_1() {
    client_certificate_is_needed(&MutualTls {
        kind: "amqp",
        start: rabbitmq,
        connection: |port| serde_json::json!({"host": "127.0.0.1", "port": port, "queue": "q"}),
    });
}
