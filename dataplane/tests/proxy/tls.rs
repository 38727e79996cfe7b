//! TLS in every weather: a client with a rustls of its own, on the kernel's ring and on simulated machines.

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

use crate::fixture::{ProxyFixture, Reply, backend, in_every_storm, in_house, instance, on_every_machine};

/// Publishes an echo behind the host `app`, and its certificate; gives a client's settings.
fn furnish(house: &ProxyFixture) -> Arc<ClientConfig> {
    let made = rcgen::generate_simple_self_signed(["app".to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let mut certificates = CertificateStore::default();
    certificates.insert("app", TlsIdentity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap());

    let address = instance(&house.ring, |seen| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.body.len());
        vec![Reply::Send([head.as_bytes(), &seen.body].concat())]
    });
    let mut table = RoutingTable { certificates: Arc::new(certificates), ..RoutingTable::default() };
    let splits = vec![BackendShare::new(1, Arc::new(backend(&[address], 0, None)))];
    table.hosts.insert("app", Arc::new(Route::of(splits)));
    house.tables.publish(table);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// A client; `None` from its calls: the connection broke.
struct TlsClient {
    stream: RingStream,
    session: ClientConnection,
    plain: Vec<u8>,
}

impl TlsClient {
    async fn connect(house: &ProxyFixture, config: &Arc<ClientConfig>) -> Option<Self> {
        let stream = RingStream::connect(&house.ring, house.https).await.ok()?;
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

    /// Takes bytes in; `Some(false)`: the server said that it has finished.
    async fn more(&mut self) -> Option<bool> {
        let chunk = self.stream.recv().await.ok()?;
        if chunk.is_empty() {
            return None; // an end that nobody announced
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
fn requests_arrive_and_ends_are_announced_however_the_bytes_come() {
    on_every_machine(&CoreLimits::default(), |house| async move {
        let config = furnish(&house);
        let mut client = TlsClient::connect(&house, &config).await.unwrap();
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

/// X-KI-13: without TLS a client is sent to the same host and path; whoever came by TLS is served.
#[test]
fn a_route_for_https_only_redirects_and_only_where_tls_is_served() {
    on_every_machine(&CoreLimits::default(), |house| async move {
        let config = furnish(&house);
        let redirecting = |port: u16, certificates: Arc<CertificateStore>| {
            let splits = house.tables.load().hosts["app"].splits[0].backend.clone();
            let splits = vec![BackendShare::new(1, splits)];
            let mut table = RoutingTable { certificates, ..RoutingTable::default() };
            table.hosts.insert("app", Arc::new(Route { splits, https_redirect: Some(port), ..Route::default() }));
            house.tables.publish(table);
        };
        let mut plain = house.client().await;
        for (port, there) in [(443, "App"), (8443, "App:8443")] {
            redirecting(port, Arc::clone(&house.tables.load().certificates));
            let seen = plain.get("App:8080", "/a%20b?c=d").await;
            assert!(seen.head.starts_with("HTTP/1.1 301 "), "{}", seen.head);
            assert!(seen.head.contains(&format!("\r\nLocation: https://{there}/a%20b?c=d\r\n")), "{}", seen.head);
        }
        let mut client = TlsClient::connect(&house, &config).await.unwrap();
        assert!(client.post(b"body", false).await.unwrap() == b"body");

        redirecting(443, Arc::default());
        assert!(plain.get("app", "/").await.head.starts_with("HTTP/1.1 200 "));
    });
}

/// X-KI-13: a redirect leads to where its host is shown a certificate, or nowhere; and callers inside are not sent to it.
#[test]
fn only_the_public_is_redirected_and_only_where_its_host_has_a_certificate() {
    on_every_machine(&CoreLimits::default(), |house| async move {
        furnish(&house);
        let before = house.tables.load();
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
                let route = Route { splits, https_redirect: Some(443), ..Route::default() };
                table.hosts.insert(host, Arc::new(route));
            }
            house.tables.publish(table);
        };
        let (mut public, mut inside) = (house.client().await, house.client_of(house.private).await);
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
            let answer = inside.get(host, "/").await.head;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{name} for {host}: {answer}");
        }
        redirecting(Arc::default(), named("app.test"));
        assert!(public.get("app.test", "/").await.head.starts_with("HTTP/1.1 200 "), "it is not shown there");
    });
}

/// Many clients at once, connections that break at any byte: whoever gets an answer gets the right one, and
/// nothing of a broken connection stays.
#[test]
fn what_breaks_in_a_storm_is_never_mistaken_for_whole() {
    let whole = Rc::new(Cell::new(0));
    let storms = Cell::new(0);
    in_every_storm(|seed| {
        storms.set(storms.get() + 1);
        let seen = Rc::clone(&whole);
        let weather = FaultProfile { resets: 3_000, segment_bytes_max: 400, ..FaultProfile::windy() };
        let ring = Simulation::with_options(seed, weather, RingOptions::default()).ring();
        in_house(&ring, &CoreLimits::default(), move |house| async move {
            let config = furnish(&house);
            let open = Rc::new(Cell::new(8));
            for number in 0..open.get() {
                let (house, config) = (house.clone(), Arc::clone(&config));
                let (open, seen) = (Rc::clone(&open), Rc::clone(&seen));
                house.ring.clone().spawn(async move {
                    if let Some(mut client) = TlsClient::connect(&house, &config).await {
                        for round in 0..4 {
                            let body = vec![number * 16 + round; 3_000];
                            let Some(answer) = client.post(&body, false).await else { break };
                            assert!(answer == body, "somebody else's answer");
                            seen.set(seen.get() + 1);
                        }
                    }
                    open.set(open.get() - 1);
                });
            }
            while open.get() > 0 {
                house.pause(50).await;
            }
        });
    });
    let most = storms.get() * 8 * 4;
    let replayed = storms.get() == 1;
    assert!(replayed || (1..most).contains(&whole.get()), "{} of {most}: no storm, or nothing else", whole.get());
}

/// The clock of a simulated machine: no waiting.
#[test]
fn a_handshake_has_its_time_and_a_silent_one_gives_way_before() {
    let tls = TlsLimits { handshakes_max: 2, ..TlsLimits::default() };
    let limits = CoreLimits { tls, ..CoreLimits::default() };
    in_house(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, move |house| async move {
        let ended = {
            let counters = Arc::clone(&house.counters);
            move |outcome: HandshakeOutcome| counters.handshakes[outcome.index()].load(Relaxed)
        };
        let config = furnish(&house);
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(RingStream::connect(&house.ring, house.https).await.unwrap());
            house.pause(1).await;
        }
        assert_eq!((ended(HandshakeOutcome::Crowded), ended(HandshakeOutcome::Slow)), (1, 0));
        assert!(silent[0].recv().await.unwrap().is_empty(), "the longest silent one goes");

        let _client = TlsClient::connect(&house, &config).await.unwrap();
        house.pause(1).await;
        assert_eq!((ended(HandshakeOutcome::Crowded), ended(HandshakeOutcome::Full)), (2, 1));

        house.ring.sleep(tls.handshake_max - Duration::from_millis(100)).await;
        assert_eq!(ended(HandshakeOutcome::Slow), 0);
        house.pause(200).await;
        assert_eq!(ended(HandshakeOutcome::Slow), 1);
        assert!(silent[2].recv().await.unwrap().is_empty());
    });
}

/// The clock of a simulated machine. Whoever only says hello has its seat for a while, and not until its time is up.
#[test]
fn clients_that_only_say_hello_keep_nobody_else_out() {
    let tls = TlsLimits { handshakes_max: 2, ..TlsLimits::default() };
    let limits = CoreLimits { tls, ..CoreLimits::default() };
    in_house(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, move |house| async move {
        let config = furnish(&house);
        let mut mute = Vec::new();
        for _ in 0..tls.handshakes_max {
            let stream = RingStream::connect(&house.ring, house.https).await.unwrap();
            let mut session = ClientConnection::new(Arc::clone(&config), "app".try_into().unwrap()).unwrap();
            let mut hello = Vec::new();
            session.write_tls(&mut hello).unwrap();
            stream.send(hello).await.unwrap();
            assert!(!stream.recv().await.unwrap().is_empty(), "our answer to it");
            mute.push(stream);
        }
        assert!(TlsClient::connect(&house, &config).await.is_none(), "they may be about to go on");
        house.ring.sleep(tls.answer_min).await;
        assert!(TlsClient::connect(&house, &config).await.is_some());
        let count = |outcome: HandshakeOutcome| house.counters.handshakes[outcome.index()].load(Relaxed);
        house.pause(1).await;
        assert_eq!((count(HandshakeOutcome::Crowded), count(HandshakeOutcome::Full)), (2, 1));
    });
}
