//! Certificates by ACME: orders, renewals and failures against pebble, the test server of Let's Encrypt.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use kit::{Appliance, ApplianceSetup, HttpCall, Ports, TIMEOUT, TestUpstream, wait};
use serde_json::json;

use super::client::{BIN, BOTH, TlsAuthority, TlsTestClient};

const HOST: &str = "app.sluicegate.org";
const OTHER: &str = "shop.sluicegate.org";

/// A directory of pebble, which resolves every name to 127.0.0.1.
struct AcmeDirectory {
    processes: Vec<Child>,
    authority: TlsAuthority,
    address: SocketAddr,
    management: SocketAddr,
    /// Where it validates HTTP-01: the appliance has to listen there.
    http: SocketAddr,
}

impl Drop for AcmeDirectory {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Different ports: all are bound before the first is released.
fn free_ports<const N: usize>() -> [SocketAddr; N] {
    let bound = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    bound.map(|listener| listener.local_addr().unwrap())
}

impl AcmeDirectory {
    /// `None` where pebble is not installed. Its certificates are valid for `seconds`.
    fn start(seconds: u64) -> Option<Self> {
        let has = |program: &str| Command::new(program).arg("-h").stderr(Stdio::null()).output().is_ok();
        if !has("pebble") || !has("pebble-challtestsrv") {
            eprintln!("skipped: pebble is not installed");
            return None;
        }
        let authority = TlsAuthority::new();
        let files = authority.issue("directory", "localhost");
        let (certificate, key) = files.split_once(',').unwrap();
        let [address, management, http, tls, names_management] = free_ports();
        let dns = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = json!({ "pebble": {
            "listenAddress": address.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": certificate,
            "privateKey": key,
            "httpPort": http.port(),
            "tlsPort": tls.port(),
            "externalAccountBindingRequired": false,
            "certificateValidityPeriod": seconds,
        } });
        let path = authority.file("pebble.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let spawn = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut names = Command::new("pebble-challtestsrv");
        names.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]);
        names.args(["-dns01", &dns.to_string(), "-management", &names_management.to_string()]);
        let mut pebble = Command::new("pebble");
        pebble.arg("-config").arg(&path).args(["-dnsserver", &dns.to_string()]);
        // Without its random waits, rejected nonces and reuse of authorizations.
        pebble.envs([("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_WFE_NONCEREJECT", "0"), ("PEBBLE_AUTHZREUSE", "0")]);
        let processes = vec![spawn(&mut names), spawn(&mut pebble)];
        let client = authority.client(BOTH);
        let is_up =
            || client.call(address, "localhost", &HttpCall::get("/dir")).is_ok_and(|answer| answer.status == 200);
        wait::until(TIMEOUT, "the directory of pebble", || is_up().then_some(()));
        Some(Self { processes, authority, address, management, http })
    }

    /// An appliance that orders here.
    fn setup(&self) -> ApplianceSetup {
        let [events, api, admin] = free_ports();
        ApplianceSetup::new(BIN)
            .ports(Ports { http: self.http, events, api, admin })
            .flag("https", "127.0.0.1:0")
            .flag("acme-email", "admin@sluicegate.org")
            .flag("acme-directory", &format!("https://localhost:{}/dir", self.address.port()))
            .flag("acme-ca", &self.authority.own_file().display().to_string())
    }

    /// A client that trusts the certificates of this directory.
    fn client(&self) -> TlsTestClient {
        let client = self.authority.client(BOTH);
        let root = client.call(self.management, "localhost", &HttpCall::get("/roots/0").host("localhost")).unwrap();
        TlsTestClient::believing(&root.text(), BOTH)
    }
}

fn wait_for_certificates(appliance: &Appliance, count: u64) {
    let has = || (appliance.metric("sluicegate_acme_certificates", "") == count).then_some(());
    wait::until(TIMEOUT, "certificates", has);
}

fn orders(appliance: &Appliance) -> (u64, u64) {
    (appliance.metric("sluicegate_acme_orders_total", ""), appliance.metric("sluicegate_acme_failures_total", ""))
}

/// Each public host is served by TLS, names of special use have no certificate, and a restart orders nothing.
#[test]
fn public_hosts_get_certificates_which_stay_over_a_restart() {
    let Some(directory) = AcmeDirectory::start(90 * 86_400) else { return };
    let upstream = TestUpstream::start("one");
    let setup = directory.setup().route(HOST, upstream.address()).route(OTHER, upstream.address());
    let mut appliance = setup.route("app.localhost", upstream.address()).start();
    wait_for_certificates(&appliance, 2);
    assert_eq!((orders(&appliance), appliance.metric("sluicegate_acme_hosts", "")), ((2, 0), 2));
    let client = directory.client();
    let serves = |appliance: &Appliance, host: &str| {
        client.call(appliance.https(), host, &HttpCall::get("/").host(host)).is_ok_and(|answer| answer.status == 200)
    };
    assert!(serves(&appliance, HOST) && serves(&appliance, OTHER) && !serves(&appliance, "app.localhost"));

    appliance.restart_on_same_ports();
    assert!(serves(&appliance, HOST) && serves(&appliance, OTHER), "the certificates are there with the first table");
    assert_eq!(orders(&appliance), (0, 0));
    let successor = appliance.successor();
    assert!(serves(&successor, HOST));
    assert_eq!(orders(&successor), (0, 0));
}

/// A certificate is renewed when two thirds of its life have passed.
#[test]
fn certificate_is_renewed_before_it_expires() {
    let Some(directory) = AcmeDirectory::start(9) else { return };
    let upstream = TestUpstream::start("one");
    let appliance = directory.setup().route(HOST, upstream.address()).start();
    let renewed = || (orders(&appliance).0 >= 2).then_some(());
    wait::until(TIMEOUT, "a renewal", renewed);
    appliance.wait_says("issued by ACME");
    assert_eq!(orders(&appliance).1, 0);
}

/// A host whose challenge cannot be validated waits, the log has the reason, and other hosts get theirs.
#[test]
fn failed_challenge_is_reported_and_other_hosts_are_served() {
    let Some(directory) = AcmeDirectory::start(90 * 86_400) else { return };
    let upstream = TestUpstream::start("one");
    // Nothing listens where the authority asks.
    let setup = directory.setup().flag("http", "127.0.0.1:0").route(HOST, upstream.address());
    let appliance = setup.flag("acme-hosts", "*.sluicegate.org").start();
    appliance.wait_says("no certificate was issued by ACME");
    appliance.wait_says("the HTTP-01 challenge failed");
    assert_eq!((orders(&appliance), appliance.metric("sluicegate_acme_certificates", "")), ((1, 1), 0));
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200, "HTTP is served meanwhile");
    assert!(directory.client().connect(appliance.https(), HOST).is_err());
}

/// A directory that answers with something else, or without end, costs one failed order.
#[test]
fn hostile_directory_is_a_failed_order() {
    let upstream = TestUpstream::start("one");
    let authority = TlsAuthority::new();
    let files = authority.issue("directory", "localhost");
    let (certificate, key) = files.split_once(',').unwrap();
    let [certificate, key] = [certificate, key].map(|path| std::fs::read(path).unwrap());
    for (answer, reason) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngarbage", "JSON"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "read a response of at most"),
        ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "JSON"),
        ("garbage\r\n\r\n", "HTTP"),
    ] {
        let server = endless_server(answer);
        let front = kit::tls::TlsFront::start(&certificate, &key, &[], server);
        let appliance = ApplianceSetup::new(BIN)
            .flag("https", "127.0.0.1:0")
            .route(HOST, upstream.address())
            .flag("acme-email", "admin@sluicegate.org")
            .flag("acme-directory", &format!("https://localhost:{}/dir", front.address().port()))
            .flag("acme-ca", &authority.own_file().display().to_string())
            .start();
        appliance.wait_says("no certificate was issued by ACME");
        let log = appliance.stderr();
        assert!(log.contains(reason), "{answer:?}: {log}");
        assert_eq!(orders(&appliance), (1, 1));
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
}

/// Answers each connection with `head`; if it is chunked, with chunks until the client closes.
fn endless_server(head: &'static str) -> SocketAddr {
    use std::io::{Read as _, Write as _};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (started, wait) = mpsc::channel();
    std::thread::spawn(move || {
        started.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let chunk = format!("10000\r\n{}\r\n", "a".repeat(0x10000));
            let mut sent = stream.write_all(head.as_bytes());
            while sent.is_ok() && head.contains("chunked") {
                sent = stream.write_all(chunk.as_bytes());
            }
        }
    });
    wait.recv().unwrap();
    address
}
