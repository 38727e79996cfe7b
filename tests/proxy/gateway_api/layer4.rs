//! TLSRoute, TCPRoute and UDPRoute: connections and datagrams that are relayed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;

use kit::tls::TlsFront;
use kit::wait;

use super::listeners::{listener, tls_secret};
use super::run_time_listeners::free_address;
use super::*;
use crate::tls::client::{BOTH, TlsAuthority};

/// A server that reads each connection to its end, and then answers with its name and what it has read.
fn tcp_server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).is_ok() {
                    let _ = stream.write_all(format!("{name}:{}", String::from_utf8_lossy(&all)).as_bytes());
                }
            });
        }
    });
    address
}

/// Sends `text`, finishes, and reads to the end; an error if the connection is broken before that.
fn ask(at: SocketAddr, text: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn stream_route(kind: &str, name: &str, section: &str, backends: Value) -> Value {
    json!({
        "apiVersion": GROUP, "kind": kind, "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "parentRefs": [{ "name": "l4", "sectionName": section }], "rules": [{ "backendRefs": backends }] },
    })
}

fn tls_route(name: &str, section: &str, hostname: &str) -> Value {
    let mut route = stream_route("TLSRoute", name, section, json!([to(name)]));
    route["spec"]["hostnames"] = json!([hostname]);
    route
}

fn accepted(route: &Value) -> [String; 2] {
    ["Accepted", "ResolvedRefs"].map(|kind| condition(conditions(route), kind))
}

const FINE: [&str; 2] = ["True Accepted", "True ResolvedRefs"];

fn tls_listener(name: &str, at: SocketAddr, hostname: Option<&str>, tls: Value) -> Value {
    let mut listener = json!({ "name": name, "port": at.port(), "protocol": "TLS", "tls": tls });
    if let Some(hostname) = hostname {
        listener["hostname"] = hostname.into();
    }
    listener
}

/// A server for `host` that ends TLS itself, behind a core Service.
fn tls_server(api: KitApi, authority: &TlsAuthority, service: &str, host: &str) -> (TlsFront, TestUpstream) {
    let upstream = TestUpstream::start(service);
    let files = authority.issue(service, host);
    let (chain, key) = files.split_once(',').unwrap();
    let [chain, key] = [chain, key].map(|file| std::fs::read(file).unwrap());
    let front = TlsFront::start(&chain, &key, &[b"http/1.1"], upstream.address());
    backend(api, NAMESPACE, service, front.address(), Some("https"));
    (front, upstream)
}

fn wait_metric(appliance: &Appliance, name: &str, label: &str, value: u64) {
    wait::until(TIMEOUT, name, || {
        (appliance.metric(&format!("sluicegate_{name}_total"), label) >= value).then_some(())
    });
}

/// TLSRouteSimpleSameNamespace, TLSRouteHostnameIntersection: the server name decides, and no byte is changed.
#[test]
fn tls_passes_through_by_its_server_name() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, authority, at) = (appliance.api(), TlsAuthority::new(), free_address());
    let fronts =
        [("one", "one.test"), ("wild", "a.wild.test")].map(|(name, host)| tls_server(api, &authority, name, host));
    let passthrough = json!({ "mode": "Passthrough" });
    let status = gateway(&appliance, "l4", json!([tls_listener("tls", at, None, passthrough)]));
    let own = listener(&status, "tls");
    assert_eq!(own["supportedKinds"], json!([{ "group": "gateway.networking.k8s.io", "kind": "TLSRoute" }]));
    assert_eq!(condition(&own["conditions"], "Programmed"), "True Programmed");
    assert_eq!(accepted(&serve(api, &tls_route("one", "tls", "one.test"))), FINE);
    assert_eq!(accepted(&serve(api, &tls_route("wild", "tls", "*.wild.test"))), FINE);

    let client = authority.client(BOTH);
    for (host, upstream) in [("one.test", "one"), ("a.wild.test", "wild")] {
        let response = client.call(at, host, &HttpCall::get("/")).unwrap();
        assert_eq!((response.status, response.header("x-upstream")), (200, Some(upstream)));
    }
    assert_eq!(
        (fronts[0].0.named(), fronts[1].0.named()),
        (vec!["one.test".to_owned()], vec!["a.wild.test".to_owned()])
    );
    assert!(client.connect(at, "other.test").is_err(), "no route has the name");
    wait_metric(&appliance, "relayed_connections", "completed", 2);
    wait_metric(&appliance, "relayed_connections", "no_route", 1);
    wait_metric(&appliance, "tls_handshakes", "forwarded", 2);

    // The route is gone, and with it the name.
    api.delete("TLSRoute", NAMESPACE, "one");
    wait::until(TIMEOUT, "the name is refused", || client.connect(at, "one.test").is_err().then_some(()));
    assert_eq!(client.call(at, "a.wild.test", &HttpCall::get("/")).unwrap().status, 200);
}

/// What begins like TLS and is not, or names no server, is closed and counted; pieces of a ClientHello are put together.
#[test]
fn hostile_client_hello_is_closed_and_counted() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, authority, at) = (appliance.api(), TlsAuthority::new(), free_address());
    let _front = tls_server(api, &authority, "one", "one.test");
    gateway(&appliance, "l4", json!([tls_listener("tls", at, Some("one.test"), json!({ "mode": "Passthrough" }))]));
    serve(api, &tls_route("one", "tls", "one.test"));
    let answer = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = stream.write_all(bytes); // the server may close before it has read all
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer); // a reset is an end too
        answer
    };
    let oversize = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 16_000]].concat();
    for (bytes, alert) in [
        (&[22, 3, 1, 0, 4, 2, 0, 0, 0][..], Some(50)),
        (&[22, 3, 1, 0, 0], Some(50)),
        (&[22, 9, 9, 0, 9], Some(50)),
        (&oversize, Some(50)),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", Some(50)),
        (b"GET / HTTP/1.1\r\n\r\n", None),
    ] {
        let answer = answer(bytes);
        match alert {
            Some(description) => assert_eq!(answer, [21, 3, 3, 0, 2, 2, description], "{bytes:02x?}"),
            None => assert!(answer.starts_with(b"HTTP/1.1 400"), "{answer:?}"),
        }
    }
    wait_metric(&appliance, "tls_handshakes", "failed", 5);
    wait_metric(&appliance, "tls_handshakes", "not_tls", 1);
    // A client that leaves in the middle is no failure of the others.
    drop(TcpStream::connect(at).unwrap().write_all(&[22, 3, 1]));
    wait_metric(&appliance, "tls_handshakes", "client_closed", 1);
    let response = authority.client(BOTH).call(at, "one.test", &HttpCall::get("/")).unwrap();
    assert_eq!(response.status, 200);
}

/// TLSRouteTerminateSimpleSameNamespace, TLSRouteMixedTerminationSameNamespace: one port has both modes and HTTPS, by hostname.
#[test]
fn tls_ends_before_a_backend_of_tcp() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, authority, at) = (appliance.api(), TlsAuthority::new(), free_address());
    for host in ["end.test", "web.test"] {
        api.create(&tls_secret(&authority, host, NAMESPACE, host));
    }
    backend(api, NAMESPACE, "end", tcp_server("end"), None);
    let _front = tls_server(api, &authority, "pass", "pass.test");
    let _upstreams = backends(&appliance, ["web"]);
    let certificate = |name: &str| json!({ "certificateRefs": [{ "name": name }] });
    let mut https = tls_listener("web", at, Some("web.test"), certificate("web.test"));
    https["protocol"] = "HTTPS".into();
    let listeners = json!([
        tls_listener("end", at, Some("end.test"), certificate("end.test")),
        tls_listener("pass", at, Some("pass.test"), json!({ "mode": "Passthrough" })),
        https,
    ]);
    let status = gateway(&appliance, "l4", listeners);
    for name in ["end", "pass", "web"] {
        assert_eq!(condition(&listener(&status, name)["conditions"], "Programmed"), "True Programmed", "{name}");
    }
    assert_eq!(accepted(&serve(api, &tls_route("end", "end", "end.test"))), FINE);
    assert_eq!(accepted(&serve(api, &tls_route("pass", "pass", "pass.test"))), FINE);
    let mut web = route("web", json!([{ "backendRefs": [to("web")] }]));
    web["spec"]["parentRefs"] = json!([{ "name": "l4", "sectionName": "web" }]);
    web["spec"]["hostnames"] = json!(["web.test"]);
    serve(api, &web);

    // Any protocol may be agreed on, and an end is passed on.
    let mut connection = authority.client(BOTH).alpn(&[b"x-unknown"]).connect(at, "end.test").unwrap();
    connection.tls.write_all(b"hello").unwrap();
    connection.tls.conn.send_close_notify();
    connection.tls.flush().unwrap();
    assert_eq!(connection.rest().unwrap(), b"end:hello");
    for host in ["pass.test", "web.test"] {
        let response = authority.client(BOTH).call(at, host, &HttpCall::get("/")).unwrap();
        assert_eq!(response.header("x-upstream"), host.split('.').next(), "{host}");
    }
    assert!(authority.client(BOTH).connect(at, "none.test").is_err());
}

/// TCPRoute: both ends of a connection end on their own; weights, grants, and backends that are not there.
#[test]
fn tcp_route_relays_to_its_backends() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, at) = (appliance.api(), free_address());
    namespace(api, "apps", json!({}));
    for (namespace, name) in [(NAMESPACE, "one"), (NAMESPACE, "two"), ("apps", "far")] {
        backend(api, namespace, name, tcp_server(name), None);
    }
    gateway(&appliance, "l4", json!([{ "name": "tcp", "port": at.port(), "protocol": "TCP" }]));
    assert!(ask(at, "early").is_err(), "there is no route yet");
    let weighted = |name: &str, weight: u32| json!({ "name": name, "port": 80, "weight": weight });
    let route = |backends: Value| stream_route("TCPRoute", "db", "tcp", backends);
    assert_eq!(accepted(&serve(api, &route(json!([weighted("one", 1), weighted("two", 0)])))), FINE);
    let large = "x".repeat(1 << 20);
    assert_eq!(ask(at, &large).unwrap(), format!("one:{large}"));
    assert!((0..20).all(|_| ask(at, "q").unwrap() == "one:q"));

    let rules = |backends: Value| {
        api.patch("TCPRoute", NAMESPACE, "db", &json!({ "spec": { "rules": [{ "backendRefs": backends }] } }));
    };
    rules(json!([weighted("one", 1), weighted("two", 1)]));
    wait::until(TIMEOUT, "both backends", || (ask(at, "q").unwrap() == "two:q").then_some(()));
    assert!((0..50).any(|_| ask(at, "q").unwrap() == "one:q"));

    let resolved = |wanted: &str| {
        api.wait_for("TCPRoute", NAMESPACE, "db", TIMEOUT, |route| {
            condition(conditions(route), "ResolvedRefs") == wanted
        });
    };
    rules(json!([{ "name": "far", "namespace": "apps", "port": 80 }]));
    resolved("False RefNotPermitted");
    wait::until(TIMEOUT, "the backend is not permitted", || ask(at, "q").is_err().then_some(()));
    api.create(&json!({
        "apiVersion": GROUP, "kind": "ReferenceGrant", "metadata": { "name": "g", "namespace": "apps" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "namespace": NAMESPACE }],
            "to": [{ "group": "", "kind": "Service" }] },
    }));
    resolved("True ResolvedRefs");
    wait::until(TIMEOUT, "the backend is permitted", || ask(at, "q").ok().filter(|answer| answer == "far:q"));
    rules(json!([to("missing")]));
    resolved("False BackendNotFound");
    rules(json!([{ "group": "serving.knative.dev", "kind": "Service", "name": "a" }]));
    resolved("False InvalidKind");
    wait_metric(&appliance, "relayed_connections", "no_healthy_upstream", 1);
    // A listener for TCP takes no other kind.
    let other = serve(api, &tls_route("other", "tcp", "a.test"));
    assert_eq!(condition(conditions(&other), "Accepted"), "False NotAllowedByListeners");
}

/// A backend without an endpoint, one that refuses, and one that dies in the middle.
#[test]
fn connection_to_a_backend_that_fails_is_reset() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, at) = (appliance.api(), free_address());
    let dying = TcpListener::bind("127.0.0.1:0").unwrap();
    backend(api, NAMESPACE, "dying", dying.local_addr().unwrap(), None);
    backend(api, NAMESPACE, "closed", SocketAddr::from(([127, 0, 0, 1], 1)), None); // no server has this port
    let metadata = json!({ "name": "empty", "namespace": NAMESPACE });
    let service =
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } });
    kit::kingress::core_service(api, &service);
    gateway(&appliance, "l4", json!([{ "name": "tcp", "port": at.port(), "protocol": "TCP" }]));
    serve(api, &stream_route("TCPRoute", "db", "tcp", json!([to("dying")])));
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(b"question").unwrap();
    let (mut server, _) = dying.accept().unwrap();
    let mut question = [0; 8];
    server.read_exact(&mut question).unwrap();
    server.write_all(b"half an ").unwrap();
    client.write_all(b"unread").unwrap();
    wait::until(TIMEOUT, "bytes that the server leaves", || (server.peek(&mut [0; 6]).unwrap() == 6).then_some(()));
    drop(server); // with unread bytes: a reset
    let mut answer = Vec::new();
    assert!(client.read_to_end(&mut answer).is_err(), "the client can tell that the answer is not whole");
    wait_metric(&appliance, "relayed_connections", "reset", 1);
    drop(dying); // a call that still takes the old route must not wait in its backlog
    for (service, outcome) in [("closed", "upstream_connect_failure"), ("empty", "no_healthy_upstream")] {
        let backends = json!([{ "backendRefs": [to(service)] }]);
        api.patch("TCPRoute", NAMESPACE, "db", &json!({ "spec": { "rules": backends } }));
        wait::until(TIMEOUT, outcome, || {
            let failed = ask(at, "q").is_err();
            (failed && appliance.metric("sluicegate_relayed_connections_total", outcome) > 0).then_some(())
        });
    }
}

fn datagram_endpoint(api: KitApi, port: u16) {
    api.create(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "dns", "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "dns" } },
        "endpoints": [{ "addresses": ["127.0.0.1"] }],
        "ports": [{ "name": "dns", "port": port, "protocol": "UDP" }],
    }));
}

/// A refusal ends the session, whichever call the kernel reports it to; without that each would hold a socket until its timeout.
#[test]
fn sessions_of_an_endpoint_that_refuses_datagrams_end() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, at) = (appliance.api(), free_address());
    let ports = json!([{ "name": "dns", "port": 53, "protocol": "UDP" }]);
    let metadata = json!({ "name": "dns", "namespace": NAMESPACE });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": ports } });
    kit::kingress::core_service(api, &service);
    datagram_endpoint(api, free_address().port());
    gateway(&appliance, "l4", json!([{ "name": "udp", "port": at.port(), "protocol": "UDP" }]));
    assert_eq!(
        accepted(&serve(api, &stream_route("UDPRoute", "dns", "udp", json!([{ "name": "dns", "port": 53 }])))),
        FINE
    );

    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(at).unwrap();
    for sent in 1..=20 {
        client.send(b"question").unwrap();
        wait_metric(&appliance, "relayed_received_datagrams", "", sent);
    }
    wait_metric(&appliance, "udp_sessions", "", 2);
    wait::until(TIMEOUT, "the sessions end", || {
        (appliance.metric("sluicegate_udp_sessions_open", "") == 0).then_some(())
    });
}

/// UDPRoute: a client has a session with one endpoint, and answers come from the listener.
#[test]
fn udp_route_relays_datagrams_by_client() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, at) = (appliance.api(), free_address());
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((count, peer)) = server.recv_from(&mut buffer) {
            let answer = format!("{}:{}", peer.port(), String::from_utf8_lossy(&buffer[..count]));
            let _ = server.send_to(answer.as_bytes(), peer);
        }
    });
    let metadata = json!({ "name": "dns", "namespace": NAMESPACE });
    let ports = json!([{ "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "tcp", "port": 54 }]);
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": ports } });
    kit::kingress::core_service(api, &service);
    datagram_endpoint(api, address.port());
    gateway(&appliance, "l4", json!([{ "name": "udp", "port": at.port(), "protocol": "UDP" }]));
    let route = serve(api, &stream_route("UDPRoute", "dns", "udp", json!([{ "name": "dns", "port": 53 }])));
    assert_eq!(accepted(&route), FINE);

    let client = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(at).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    };
    // The port at which the server sees the client, and what it has got.
    let ask = |socket: &UdpSocket, text: &str| {
        socket.send(text.as_bytes()).unwrap();
        let mut buffer = [0; 65_536];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    let (one, two) = (client(), client());
    let first = ask(&one, "a");
    let session = first.split(':').next().unwrap().to_owned();
    assert_eq!(
        [ask(&one, "b"), ask(&one, &"c".repeat(9000))],
        [format!("{session}:b"), format!("{session}:{}", "c".repeat(9000))]
    );
    assert!(!ask(&two, "d").starts_with(&format!("{session}:")), "another client has another session");
    wait_metric(&appliance, "udp_sessions", "", 2);
    wait_metric(&appliance, "relayed_sent_datagrams", "", 4);

    let rules = json!([{ "backendRefs": [{ "name": "dns", "port": 54 }] }]);
    api.patch("UDPRoute", NAMESPACE, "dns", &json!({ "spec": { "rules": rules } }));
    api.wait_for("UDPRoute", NAMESPACE, "dns", TIMEOUT, |route| {
        condition(conditions(route), "ResolvedRefs") == "False UnsupportedProtocol"
    });
    assert_eq!(ask(&one, "e"), format!("{session}:e"), "sessions stay with their endpoints");
    client().send(b"f").unwrap();
    wait_metric(&appliance, "relayed_datagrams_dropped", "no_healthy_upstream", 1);
}
