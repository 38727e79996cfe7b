//! Which clients get which certificate, by which TLS version, and which are rejected.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use rustls::{HandshakeKind, ProtocolVersion, version};

use super::client::{BIN, BOTH, TlsAuthority, is_421, server};

/// A counter of handshakes, over all cores.
fn handshakes(appliance: &Appliance, outcome: &str) -> u64 {
    let text = HttpCall::get("/metrics").send(appliance.admin()).text();
    let label = format!("outcome=\"{outcome}\"");
    let lines = text.lines().filter(|line| line.starts_with("sluicegate_tls_handshakes_total"));
    let values = lines.filter(|line| line.contains(&label)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<u64>().unwrap()).sum()
}

#[test]
fn the_server_name_picks_the_certificate() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let certificates =
        [("one.example.com", "one.example.com"), ("*.example.com", "*.example.com"), ("*", "anybody.test")];
    let appliance = server(&authority, &certificates, &upstream);
    let client = authority.client(BOTH);
    for (name, shown) in
        [("one.example.com", "one.example.com"), ("two.example.com", "*.example.com"), ("anybody.test", "anybody.test")]
    {
        let mut connection = client.connect(appliance.https(), name).unwrap();
        assert!(connection.shown_for(shown), "{name}");
        let seen = connection.call(&HttpCall::get("/").host(name)).unwrap().json();
        assert_eq!((&seen["name"], &seen["headers"]["host"]), (&"one".into(), &name.into()));
    }
    // Shown anybody's, which is not good for this name: the client is the one that refuses.
    let why = client.connect(appliance.https(), "stranger.test").err().unwrap().to_string();
    assert!(why.contains("certificate"), "{why}");
}

#[test]
fn a_name_without_a_certificate_gets_an_alert() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("one.example.com", "one.example.com")], &upstream);
    let client = authority.client(BOTH);
    for name in ["two.example.com", "example.com", "127.0.0.1"] {
        let why = client.connect(appliance.https(), name).err().unwrap().to_string();
        assert!(why.contains("alert"), "{name}: {why}");
    }
    // Counted once the connection is over, which is after the client has seen its alert.
    wait::until(TIMEOUT, "the outcomes", || (handshakes(&appliance, "failed") == 3).then_some(()));
    client.connect(appliance.https(), "one.example.com").unwrap();
}

/// RT-HDR-06, RT-HDR-07: the instance learns that its client came by TLS.
#[test]
fn both_tls_versions_work_and_instance_sees_https() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    for (spoken, agreed) in [(&version::TLS12, ProtocolVersion::TLSv1_2), (&version::TLS13, ProtocolVersion::TLSv1_3)] {
        let client = authority.client(&[spoken]).alpn(&[b"http/1.1"]);
        let mut connection = client.connect(appliance.https(), "app.test").unwrap();
        assert_eq!(connection.tls.conn.protocol_version(), Some(agreed));
        assert_eq!(connection.tls.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        for _ in 0..3 {
            let seen = connection.call(&HttpCall::get("/").host("app.test")).unwrap().json();
            assert_eq!(seen["headers"]["x-forwarded-proto"], "https");
            let forwarded = seen["headers"]["forwarded"].as_str().unwrap().to_owned();
            assert!(forwarded.contains("proto=https"), "{forwarded}");
        }
    }
    let plain = HttpCall::get("/").host("app.test").send(appliance.http()).json();
    assert_eq!(plain["headers"]["x-forwarded-proto"], "http");
}

#[test]
fn client_without_common_alpn_gets_alert() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let client = authority.client(BOTH).alpn(&[b"imap"]);
    let why = client.connect(appliance.https(), "app.test").err().unwrap().to_string();
    assert!(why.contains("NoApplicationProtocol"), "{why}");
}

#[test]
fn a_client_that_comes_again_resumes_on_any_core() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let files = authority.issue("app", "app.test");
    let appliance = ApplianceSetup::new(BIN)
        .route("*", upstream.address())
        .flag("workers", "2")
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={files}"))
        .start();
    for spoken in [&version::TLS12, &version::TLS13] {
        let client = authority.client(&[spoken]);
        let kinds: Vec<_> = (0..9)
            .map(|_| {
                let mut connection = client.connect(appliance.https(), "app.test").unwrap();
                // Tickets of TLS 1.3 come behind the handshake.
                assert_eq!(connection.call(&HttpCall::get("/").host("app.test")).unwrap().status, 200);
                connection.tls.conn.handshake_kind().unwrap()
            })
            .collect();
        let wanted = [vec![HandshakeKind::Full], vec![HandshakeKind::Resumed; 8]].concat();
        assert_eq!(kinds, wanted, "{spoken:?}");
    }
    assert_eq!((handshakes(&appliance, "full"), handshakes(&appliance, "resumed")), (2, 16));
}

#[test]
fn plain_http_on_the_tls_port_gets_an_answer_and_a_clean_close() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let mut connection = kit::HttpConnection::open(appliance.https());
    connection.send(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
    let response = connection.receive();
    assert_eq!((response.status, response.text().contains("HTTPS")), (400, true));
    assert_eq!(connection.rest(), Some(Vec::new()));
    wait::until(TIMEOUT, "the outcome", || (handshakes(&appliance, "not_tls") == 1).then_some(()));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn bytes_that_are_no_tls_get_an_alert_and_a_close() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let garbage: [&[u8]; 4] = [
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
        &[0xff; 70_000],
        b"\x17\x03\x03\x00\x01x",
    ];
    for bytes in garbage {
        let mut connection = kit::HttpConnection::open(appliance.https());
        connection.send(bytes);
        assert!(connection.rest().is_some(), "{:?} was not closed", &bytes[..5]);
    }
    assert_eq!(authority.client(BOTH).call(appliance.https(), "app.test", &HttpCall::get("/")).unwrap().status, 200);
}

#[test]
fn a_handshake_that_does_not_come_to_its_end_is_cut_while_others_are_served() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let slow: Vec<_> = [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"]
        .into_iter()
        .map(|begun| {
            let mut socket = TcpStream::connect(appliance.https()).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.write_all(begun).unwrap();
            socket
        })
        .collect();
    let client = authority.client(BOTH);
    assert_eq!(client.call(appliance.https(), "app.test", &HttpCall::get("/")).unwrap().status, 200);
    for mut socket in slow {
        assert_eq!(wait::read(&mut socket, &mut [0; 64]).unwrap(), 0);
    }
    wait::until(TIMEOUT, "the outcome", || (handshakes(&appliance, "timeout") == 3).then_some(()));
}

#[test]
fn a_clients_of_silent_connections_gives_way_to_one_that_speaks() {
    const CLIENTS: usize = 600; // more than may shake hands at a time
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(appliance.https()).unwrap()).collect();
    let client = authority.client(BOTH);
    let speakers: Vec<_> = (0..8)
        .map(|_| {
            let (client, https) = (client.clone(), appliance.https());
            thread::spawn(move || client.call(https, "app.test", &HttpCall::get("/")).unwrap().status)
        })
        .collect();
    for speaker in speakers {
        assert_eq!(speaker.join().unwrap(), 200);
    }
    assert!(handshakes(&appliance, "overload") > 0);
    drop(clients);
}

#[test]
fn what_is_configured_by_half_stops_the_start() {
    let authority = TlsAuthority::new();
    let files = authority.issue("app", "app.test");
    let missing = format!("*={},{}", authority.file("none.pem").display(), authority.file("app.key").display());
    for (flags, said, code) in [
        (vec![("tls-cert", &*format!("*={files}"))], "--https", 2),
        (vec![("https", "127.0.0.1:0"), ("tls-cert", &*missing)], "none.pem", 1),
    ] {
        let setup = flags.into_iter().fold(ApplianceSetup::new(BIN), |setup, (name, value)| setup.flag(name, value));
        let refusal = setup.refused();
        assert_eq!(refusal.code, Some(code), "{refusal}");
        assert!(refusal.stderr.contains(said), "{refusal}");
    }
}

#[test]
fn an_old_version_can_be_ruled_out() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let certificate = authority.issue("a", "app.test");
    let appliance = ApplianceSetup::new(BIN)
        .route("*", upstream.address())
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={certificate}"))
        .flag("tls-min-version", "1.3")
        .start();
    let old = authority.client(&[&version::TLS12]).connect(appliance.https(), "app.test");
    assert!(old.err().unwrap().to_string().contains("alert"));
    authority.client(&[&version::TLS13]).connect(appliance.https(), "app.test").unwrap();
    let refusal = ApplianceSetup::new(BIN).flag("tls-min-version", "1.1").refused();
    assert!(refusal.code == Some(2) && refusal.stderr.contains("tls-min-version"), "{refusal}");
}

/// RT-PORT-06: HTTP/2 by TLS reaches an upstream that speaks HTTP/1.1. But a connection that was opened for one host is not
/// for another with another certificate (RFC 9113 9.1.1).
#[test]
fn a_stream_for_a_host_of_another_certificate_is_misdirected() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let certificates = [("one.test", "one.test"), ("two.test", "two.test")];
    let appliance = server(&authority, &certificates, &upstream);
    let client = authority.client(BOTH).alpn(&[b"h2"]);
    let mut connection = client.connect(appliance.https(), "one.test").unwrap();
    let statuses = connection.http2_heads(&["one.test", "two.test"]);
    assert_eq!(statuses[0][0], 0x88, "200 stands in HPACK's table");
    assert!(is_421(&statuses[1]), "{:?}", &statuses[1][..6]);
}
