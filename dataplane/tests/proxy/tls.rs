//! TLS under network faults: a client with its own rustls, on the kernel's ring and on simulated machines.

use std::cell::Cell;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use ring::{RingOptions, RingStream};
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::table::{BackendShare, Route, RoutingTable};
use sluicegate_dataplane::tls::{CertificateStore, HandshakeOutcome, TlsIdentity, TlsLimits};

use crate::fixture::{ProxyFixture, Reply, backend, for_every_seed, instance, on_every_driver, run_with_proxy};

/// Publishes an echo instance for the host `app` with its certificate; returns a client's configuration.
fn publish_echo(fixture: &ProxyFixture) -> Arc<ClientConfig> {
    let made = rcgen::generate_simple_self_signed(["app".to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let mut certificates = CertificateStore::default();
    certificates.insert("app", TlsIdentity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap());

    let address = instance(&fixture.ring, |seen| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.body.len());
        vec![Reply::Send([head.as_bytes(), &seen.body].concat())]
    });
    let mut table = RoutingTable { certificates: Arc::new(certificates), ..RoutingTable::default() };
    let splits = vec![BackendShare::new(1, Arc::new(backend(&[address], 0, None)))];
    table.hosts.insert("app", Arc::new(Route::of(splits)));
    fixture.tables.publish(table);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// A client. Its calls return `None` when the connection broke.
struct TlsClient {
    stream: RingStream,
    session: ClientConnection,
    plain: Vec<u8>,
}

impl TlsClient {
    async fn connect(fixture: &ProxyFixture, config: &Arc<ClientConfig>) -> Option<Self> {
        let stream = RingStream::connect(&fixture.ring, fixture.https).await.ok()?;
        let session = ClientConnection::new(Arc::clone(config), "app".try_into().unwrap()).unwrap();
        let mut client = Self { stream, session, plain: Vec::new() };
        while client.session.is_handshaking() {
            client.flush().await?;
            if client.session.is_handshaking() && !client.more().await? {
                return None;
            }
        }
        client.flush().await?;
        Some(client)
    }

    async fn post(&mut self, body: &[u8], close: bool) -> Option<Vec<u8>> {
        let connection = if close { "close" } else { "keep-alive" };
        let head = format!(
            "POST / HTTP/1.1\r\nHost: app\r\nConnection: {connection}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.session.set_buffer_limit(None);
        self.session.writer().write_all(&[head.as_bytes(), body].concat()).unwrap();
        self.flush().await?;
        loop {
            let end = self.plain.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(end) = end
                && self.plain.len() >= end + 4 + body.len()
            {
                assert!(self.plain.starts_with(b"HTTP/1.1 200 OK\r\n"));
                let answer = self.plain[end + 4..end + 4 + body.len()].to_vec();
                self.plain.drain(..end + 4 + body.len());
                return Some(answer);
            }
            if !self.more().await? {
                return None;
            }
        }
    }

    /// Receives bytes; `Some(false)`: the server sent close_notify.
    async fn more(&mut self) -> Option<bool> {
        let chunk = self.stream.recv().await.ok()?;
        if chunk.is_empty() {
            return None; // an end without close_notify
        }
        let mut rest: &[u8] = &chunk;
        while !rest.is_empty() {
            self.session.read_tls(&mut rest).unwrap();
            let state = self.session.process_new_packets().expect("the server keeps to TLS");
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let mut reader = self.session.reader();
                let piece = reader.fill_buf().unwrap().to_vec();
                reader.consume(piece.len());
                left -= piece.len();
                self.plain.extend_from_slice(&piece);
            }
            if state.peer_has_closed() {
                return Some(false);
            }
        }
        Some(true)
    }

    async fn flush(&mut self) -> Option<()> {
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records).unwrap();
        }
        self.stream.send(records).await.ok()
    }
}

#[test]
fn tls_requests_arrive_and_end_with_close_notify() {
    on_every_driver(&CoreLimits::default(), |fixture| async move {
        let config = publish_echo(&fixture);
        let mut client = TlsClient::connect(&fixture, &config).await.unwrap();
        for bytes in [0, 1, 5_000, 40_000] {
            let body: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
            assert!(client.post(&body, false).await.unwrap() == body, "{bytes} bytes");
        }
        client.post(b"last", true).await.unwrap();
        let end = loop {
            match client.more().await {
                Some(true) => {}
                end => break end,
            }
        };
        assert_eq!(end, Some(false), "a whole answer ends by close_notify");
    });
}

/// X-KI-13: a client without TLS is redirected to the same host and path; a client with TLS is served.
#[test]
fn https_only_route_redirects_if_tls_is_served() {
    on_every_driver(&CoreLimits::default(), |fixture| async move {
        let config = publish_echo(&fixture);
        let redirecting = |port: u16, certificates: Arc<CertificateStore>| {
            let splits = fixture.tables.load().hosts["app"].splits[0].backend.clone();
            let splits = vec![BackendShare::new(1, splits)];
            let mut table = RoutingTable { certificates, ..RoutingTable::default() };
            let mut route = Route::of(splits);
            route.https_redirect = Some(port);
            table.hosts.insert("app", Arc::new(route));
            fixture.tables.publish(table);
        };
        let mut plain = fixture.client().await;
        for (port, there) in [(443, "App"), (8443, "App:8443")] {
            redirecting(port, Arc::clone(&fixture.tables.load().certificates));
            let seen = plain.get("App:8080", "/a%20b?c=d").await;
            assert!(seen.head.starts_with("HTTP/1.1 301 "), "{}", seen.head);
            assert!(seen.head.contains(&format!("\r\nLocation: https://{there}/a%20b?c=d\r\n")), "{}", seen.head);
        }
        let mut client = TlsClient::connect(&fixture, &config).await.unwrap();
        assert!(client.post(b"body", false).await.unwrap() == b"body");

        redirecting(443, Arc::default());
        assert!(plain.get("app", "/").await.head.starts_with("HTTP/1.1 200 "));
    });
}

/// X-KI-13: a redirect requires a certificate for the host, and cluster-local clients are never redirected.
#[test]
fn redirect_requires_a_certificate_and_a_public_client() {
    on_every_driver(&CoreLimits::default(), |fixture| async move {
        publish_echo(&fixture);
        let before = fixture.tables.load();
        let identity = before.certificates.find(Some("app")).unwrap().clone();
        let named = |name: &str| {
            let mut certificates = CertificateStore::default();
            certificates.insert(name, identity.clone());
            Arc::new(certificates)
        };
        let redirecting = |certificates, inner_certificates| {
            let mut table = RoutingTable { certificates, inner_certificates, ..RoutingTable::default() };
            for host in ["app", "app.test"] {
                let splits = vec![BackendShare::new(1, Arc::clone(&before.hosts["app"].splits[0].backend))];
                let mut route = Route::of(splits);
                route.https_redirect = Some(443);
                table.hosts.insert(host, Arc::new(route));
            }
            fixture.tables.publish(table);
        };
        let (mut public, mut cluster_local) = (fixture.client().await, fixture.client_of(fixture.private).await);
        for (name, host, sent_on) in [
            ("app.test", "App.Test.:8080", true),
            ("*.test", "app.test", true),
            ("*", "app.test", true),
            ("app.test", "app", false),
            ("*.test", "app", false),
            ("other.test", "app.test", false),
        ] {
            redirecting(named(name), Arc::default());
            let answer = public.get(host, "/").await.head;
            assert_eq!(answer.starts_with("HTTP/1.1 301 "), sent_on, "{name} for {host}: {answer}");
            assert!(sent_on || answer.starts_with("HTTP/1.1 200 "), "{name} for {host}: {answer}");
            let answer = cluster_local.get(host, "/").await.head;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{name} for {host}: {answer}");
        }
        redirecting(Arc::default(), named("app.test"));
        assert!(public.get("app.test", "/").await.head.starts_with("HTTP/1.1 200 "), "it is not shown there");
    });
}

/// Many concurrent clients, and connections that break at any byte: every received response is the right one, and
/// broken connections leave nothing behind.
#[test]
fn broken_tls_connection_never_looks_complete() {
    let whole = Rc::new(Cell::new(0));
    let runs = Cell::new(0);
    for_every_seed(|seed| {
        runs.set(runs.get() + 1);
        let seen = Rc::clone(&whole);
        let faults = FaultProfile { resets: 3_000, segment_bytes_max: 400, ..FaultProfile::moderate() };
        let ring = Simulation::with_options(seed, faults, RingOptions::default()).ring();
        run_with_proxy(&ring, &CoreLimits::default(), move |fixture| async move {
            let config = publish_echo(&fixture);
            let open = Rc::new(Cell::new(8));
            for number in 0..open.get() {
                let (fixture, config) = (fixture.clone(), Arc::clone(&config));
                let (open, seen) = (Rc::clone(&open), Rc::clone(&seen));
                fixture.ring.clone().spawn(async move {
                    if let Some(mut client) = TlsClient::connect(&fixture, &config).await {
                        for round in 0..4 {
                            let body = vec![number * 16 + round; 3_000];
                            let Some(answer) = client.post(&body, false).await else { break };
                            assert!(answer == body, "response of another request");
                            seen.set(seen.get() + 1);
                        }
                    }
                    open.set(open.get() - 1);
                });
            }
            while open.get() > 0 {
                fixture.pause(50).await;
            }
        });
    });
    let most = runs.get() * 8 * 4;
    let replayed = runs.get() == 1;
    assert!(replayed || (1..most).contains(&whole.get()), "{} of {most}: no faults, or only faults", whole.get());
}

/// On simulated time, so without waiting.
#[test]
fn handshake_times_out_and_a_silent_one_is_evicted_first() {
    let tls = TlsLimits { handshakes_max: 2, ..TlsLimits::default() };
    let limits = CoreLimits { tls, ..CoreLimits::default() };
    run_with_proxy(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, move |fixture| async move {
        let ended = {
            let counters = Arc::clone(&fixture.counters);
            move |outcome: HandshakeOutcome| counters.handshakes[outcome.index()].load(Relaxed)
        };
        let config = publish_echo(&fixture);
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(RingStream::connect(&fixture.ring, fixture.https).await.unwrap());
            fixture.pause(1).await;
        }
        assert_eq!((ended(HandshakeOutcome::Overload), ended(HandshakeOutcome::Slow)), (1, 0));
        assert!(silent[0].recv().await.unwrap().is_empty(), "the longest silent one is evicted");

        let _client = TlsClient::connect(&fixture, &config).await.unwrap();
        fixture.pause(1).await;
        assert_eq!((ended(HandshakeOutcome::Overload), ended(HandshakeOutcome::Full)), (2, 1));

        fixture.ring.sleep(tls.handshake_max - Duration::from_millis(100)).await;
        assert_eq!(ended(HandshakeOutcome::Slow), 0);
        fixture.pause(200).await;
        assert_eq!(ended(HandshakeOutcome::Slow), 1);
        assert!(silent[2].recv().await.unwrap().is_empty());
    });
}

/// On simulated time. A client that only sends a ClientHello keeps its permit for a while, but not until its timeout.
#[test]
fn hello_only_clients_do_not_block_handshakes() {
    let tls = TlsLimits { handshakes_max: 2, ..TlsLimits::default() };
    let limits = CoreLimits { tls, ..CoreLimits::default() };
    run_with_proxy(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, move |fixture| async move {
        let config = publish_echo(&fixture);
        let mut hello_only = Vec::new();
        for _ in 0..tls.handshakes_max {
            let stream = RingStream::connect(&fixture.ring, fixture.https).await.unwrap();
            let mut session = ClientConnection::new(Arc::clone(&config), "app".try_into().unwrap()).unwrap();
            let mut hello = Vec::new();
            session.write_tls(&mut hello).unwrap();
            stream.send(hello).await.unwrap();
            assert!(!stream.recv().await.unwrap().is_empty(), "the server's flight");
            hello_only.push(stream);
        }
        assert!(TlsClient::connect(&fixture, &config).await.is_none(), "their answers are not overdue yet");
        fixture.ring.sleep(tls.answer_min).await;
        assert!(TlsClient::connect(&fixture, &config).await.is_some());
        let count = |outcome: HandshakeOutcome| fixture.counters.handshakes[outcome.index()].load(Relaxed);
        fixture.pause(1).await;
        assert_eq!((count(HandshakeOutcome::Overload), count(HandshakeOutcome::Full)), (2, 1));
    });
}
