//! The API over TLS: access by certificate, by token, or none.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT};
use rcgen::{CertificateParams, CertifiedIssuer, DistinguishedName, DnType, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The authority, and the paths of its files.
struct AccessAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl AccessAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, folder: TempDir::new().unwrap() };
        std::fs::write(authority.file("ca.pem"), authority.issuer.pem()).unwrap();
        authority
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The files of a certificate for the host `localhost` that names this user and group.
    fn issue(&self, user: &str, group: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (chain, secret) = (self.file(&format!("{user}.pem")), self.file(&format!("{user}.key")));
        std::fs::write(&chain, certificate.pem()).unwrap();
        std::fs::write(&secret, key.serialize_pem()).unwrap();
        (chain, secret)
    }

    fn get(&self, at: SocketAddr, path: &str, credentials: Option<&(PathBuf, PathBuf)>, token: &str) -> String {
        get_over_tls(at, path, self.issuer.der().clone(), "localhost", credentials, token)
    }
}

/// Status of a GET over TLS of a listener whose certificate the appliance made.
pub(super) fn get_with_token(at: SocketAddr, path: &str, ca: &str, token: &str) -> String {
    let root = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
    get_over_tls(at, path, root, "sluicegate", None, token)
}

/// Status of a GET over TLS, with a certificate or a token or neither.
fn get_over_tls(
    at: SocketAddr,
    path: &str,
    root: CertificateDer<'static>,
    name: &'static str,
    credentials: Option<&(PathBuf, PathBuf)>,
    token: &str,
) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match credentials {
        Some((chain, key)) => {
            let chain = CertificateDer::pem_file_iter(chain).unwrap().map(Result::unwrap).collect();
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from(name).unwrap();
    let socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket);
    let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n");
    // An unauthenticated client may find the connection closed before its request.
    if stream.write_all(request.as_bytes()).is_err() {
        return String::new();
    }
    let mut answer = Vec::new();
    // A close without TLS's goodbye is an error after everything was read.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split_whitespace().nth(1).unwrap_or_default().to_owned()
}

fn pair((certificate, key): &(PathBuf, PathBuf)) -> String {
    format!("{},{}", certificate.display(), key.display())
}

fn kubectl(home: &Path, config: &Path, line: &str) -> Option<std::process::Output> {
    let mut command = Command::new("kubectl");
    command.args(line.split_whitespace()).env("HOME", home).env("KUBECONFIG", config).output().ok()
}

/// An appliance whose API is public over TLS, and trusts the authority's certificates and carol's token.
fn guarded(authority: &AccessAuthority) -> Appliance {
    let server = authority.issue("server", "none");
    let tokens = authority.file("tokens.csv");
    std::fs::write(&tokens, "s3cret,carol,3,\"system:masters\"\n").unwrap();
    let setup = ApplianceSetup::new(BINARY)
        .flag("api", "0.0.0.0:0")
        .flag("api-tls-cert", &pair(&server))
        .flag("api-client-ca", &authority.file("ca.pem").display().to_string())
        .flag("api-tokens", &tokens.display().to_string());
    setup.start()
}

/// APP-38: over TLS a client certificate or a token authenticates the client; the API listens beyond loopback then, and
/// only then. Where it does, a connection over loopback proves nothing: a proxy of this host would let every client in.
#[test]
fn the_api_speaks_tls_and_believes_certificates_and_tokens() {
    let authority = AccessAuthority::new();
    let (admin, bob) = (authority.issue("admin", "system:masters"), authority.issue("bob", "crew"));
    let appliance = guarded(&authority);
    let at = SocketAddr::from(([127, 0, 0, 1], appliance.api().address().port()));
    for (credentials, token, expected) in [
        (Some(&admin), "", "200"),
        (Some(&bob), "", "403"),
        (None, "s3cret", "200"),
        (None, "guess", "401"),
        (None, "", "401"),
    ] {
        assert_eq!(authority.get(at, MAPS, credentials, token), expected, "{credentials:?} {token:?}");
    }
    let other = AccessAuthority::new();
    let forged = other.issue("admin", "system:masters");
    assert_ne!(authority.get(at, MAPS, Some(&forged), ""), "200", "somebody else's authority signed it");

    let config = authority.file("config");
    let made = Command::new(BINARY)
        .args(["kubeconfig", "--api", &at.to_string(), "--token", "s3cret", "--ca"])
        .arg(authority.file("ca.pem"))
        .output()
        .unwrap();
    std::fs::write(&config, made.stdout).unwrap();
    // What `auth whoami` asks, which kubectl knows from 1.28 on.
    let review = authority.file("review.json");
    let kind = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}"#;
    std::fs::write(&review, kind).unwrap();
    let line = format!("create -f {} -o yaml", review.display());
    if let Some(said) = kubectl(authority.folder.path(), &config, &line) {
        let output = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(output.contains("carol"), "{output}{}", String::from_utf8_lossy(&said.stderr));
    }
}

/// APP-38, APP-39: a backup is made and restored over TLS, with the kubeconfig's credentials: a token or a client
/// certificate. An unknown or unauthorized user, or a wrong request, gets an error that says what to do.
#[test]
fn backup_uses_user_of_kubeconfig() {
    let authority = AccessAuthority::new();
    let appliance = guarded(&authority);
    let at = SocketAddr::from(([127, 0, 0, 1], appliance.api().address().port())).to_string();
    let kubeconfig = |name: &str, ca: &str, user: &str| {
        let path = authority.file(name);
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\
             clusters: [{{name: c, cluster: {{server: 'https://{at}', certificate-authority: {ca}}}}}],\
             users: [{{name: u, user: {{{user}}}}}]}}"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let credentials = |(certificate, key): (PathBuf, PathBuf)| {
        format!("client-certificate: {}, client-key: {}", certificate.display(), key.display())
    };
    let file = authority.file("objects.jsonl");
    let tool = |verb: &str, config: &Path| {
        let mut command = Command::new(BINARY);
        let output = command.args(["api", verb]).arg(&file).arg("--kubeconfig").arg(config).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let ca = authority.file("ca.pem").display().to_string();
    let bob = kubeconfig("bob", &ca, &credentials(authority.issue("bob", "crew")));
    let (made, output) = tool("backup", &bob);
    assert!(!made && output.contains("nonResourceURLs") && !file.exists(), "{output}");
    let (made, output) = tool("backup", &kubeconfig("guess", &ca, "token: guess"));
    assert!(!made && output.contains("give --kubeconfig or --token"), "{output}");
    let unauthorized = AccessAuthority::new();
    let other = unauthorized.file("ca.pem").display().to_string();
    let (made, output) = tool("backup", &kubeconfig("stranger", &other, "token: s3cret"));
    assert!(!made && output.contains("--kubeconfig"), "{output}");

    let carol = kubeconfig("carol", &ca, "token: s3cret");
    let admin = kubeconfig("admin", &ca, &credentials(authority.issue("admin", "system:masters")));
    for config in [&carol, &admin] {
        for verb in ["backup", "restore"] {
            let (done, output) = tool(verb, config);
            assert!(done, "{verb}: {output}");
        }
    }
    // So much that it is still being sent when the answer is there.
    std::fs::write(&file, vec![b'x'; 32 << 20]).unwrap();
    for (config, why) in [(bob, "nonResourceURLs"), (kubeconfig("guess", &ca, "token: guess"), "or --token")] {
        let (done, output) = tool("restore", &config);
        assert!(!done && output.contains(why), "{output}");
    }
    let bare = Command::new(BINARY).args(["api", "backup", "x.jsonl", "--api", &at]).output().unwrap();
    let output = String::from_utf8_lossy(&bare.stderr).into_owned();
    assert!(!bare.status.success() && output.contains("--kubeconfig"), "{output}");
}

/// APP-38: each half alone is refused at the start, with what is missing.
#[test]
fn public_api_without_authentication_is_refused() {
    let authority = AccessAuthority::new();
    let server = authority.issue("server", "none");
    let public = || ApplianceSetup::new(BINARY).flag("api", "0.0.0.0:0");
    let ca = authority.file("ca.pem").display().to_string();
    for (setup, output) in [
        (public().flag("api-tls-cert", &pair(&server)), "--api-tokens"),
        (public(), "--api-tokens"),
        (public().switch("api-tls"), "--api-tokens"),
        (ApplianceSetup::new(BINARY).flag("api-tls-cert", &format!("{ca},{ca}")), "ca.pem"),
        (ApplianceSetup::new(BINARY).flag("api-tokens", &ca), "line 1"),
    ] {
        let refusal = setup.refused();
        assert!(refusal.stderr.contains(output), "{output}: {}", refusal.stderr);
    }
}

/// APP-38: without a certificate the API creates one: kubectl works at once with the kubeconfig in the appliance's
/// folder, by any address, also after a restart; clients without credentials are still refused.
#[test]
fn a_certificate_of_its_own_making_is_enough() {
    let home = TempDir::new().unwrap();
    let tokens = home.path().join("tokens.csv");
    std::fs::write(&tokens, "s3cret,carol,3,\"system:masters\"\n").unwrap();
    let setup = ApplianceSetup::new(BINARY).flag("api", "0.0.0.0:0").flag("api-tokens", &tokens.display().to_string());
    let mut appliance = setup.start();
    let folder = setup.data().join("api");
    let ca = std::fs::read_to_string(folder.join("ca.pem")).unwrap();
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let get = |port: u16, token: &str| {
        let root = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
        get_over_tls(at(port), MAPS, root, "sluicegate", None, token)
    };
    let port = appliance.api().address().port();
    for (token, expected) in [("s3cret", "200"), ("guess", "401"), ("", "401")] {
        assert_eq!(get(port, token), expected, "{token:?}");
    }

    let printed = Command::new(BINARY).args(["kubeconfig", "--data"]).arg(setup.data()).output().unwrap();
    let left = std::fs::read_to_string(folder.join("kubeconfig")).unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), left);
    assert!(left.contains(&format!("https://127.0.0.1:{port}")) && left.contains("tls-server-name"), "{left}");
    if let Some(said) = kubectl(home.path(), &folder.join("kubeconfig"), "get namespaces -o name") {
        let output = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(output.contains("namespace/default"), "{output}{}", String::from_utf8_lossy(&said.stderr));
    }

    // A kubeconfig locates the API and its CA, also for our own tools.
    let redriven = Command::new(BINARY)
        .args(["event", "redrive", "--trigger", "default/none", "--patch", "{\"uri\":\"http://a/\"}"])
        .args(["--admin", &appliance.admin().to_string(), "--kubeconfig"])
        .arg(folder.join("kubeconfig"))
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&redriven.stderr).into_owned();
    assert!(output.contains("there is no Trigger and no Subscription default/none"), "{output}");

    // ... and for another address the client uses only the credentials that it was given.
    let elsewhere = ["kubeconfig", "--api", "10.0.0.5:6443", "--data"];
    let printed = Command::new(BINARY).args(elsewhere).arg(setup.data()).output().unwrap();
    let own = std::fs::read_to_string(folder.join("own.token")).unwrap();
    assert!(left.contains(&own) && !String::from_utf8_lossy(&printed.stdout).contains(&own));

    appliance.restart();
    let port = appliance.api().address().port();
    assert_eq!((get(port, "s3cret").as_str(), get(port, &own).as_str()), ("200", "200"), "both stay");
}

/// APP-38: the Unix socket is its owner's: trusted, closed to others, never taken from a live process, and
/// taken over from a dead one.
#[test]
fn the_unix_socket_is_for_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    let home = TempDir::new().unwrap();
    let path = home.path().join("api.sock");
    let setup = ApplianceSetup::new(BINARY).flag("api-socket", &path.display().to_string());
    let mut appliance = setup.start();
    let ask = |line: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!((ask(&format!("GET {MAPS}")).as_str(), ask("GET /nothing").as_str()), ("200", "404"));

    let refusal = ApplianceSetup::new(BINARY).flag("api-socket", &path.display().to_string()).refused();
    assert!(refusal.stderr.contains("another process"), "{refusal}");
    assert_eq!(ask(&format!("GET {MAPS}")), "200", "it goes on");
    appliance.restart(); // killed: the file is left behind
    assert_eq!(ask(&format!("GET {MAPS}")), "200");
    let _new = appliance.successor();
    assert_eq!(appliance.wait().code(), Some(0));
    assert_eq!(ask(&format!("GET {MAPS}")), "200", "the successor listens there");
}

/// Files of a certificate that has expired; it is its own authority.
fn expired(folder: &Path) -> (PathBuf, PathBuf) {
    let mut params = CertificateParams::new(["old.example.com".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let (chain, secret) = (folder.join("old.pem"), folder.join("old.key"));
    std::fs::write(&chain, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&secret, key.serialize_pem()).unwrap();
    (chain, secret)
}

#[test]
fn expired_certificates_are_logged_and_counted() {
    let folder = TempDir::new().unwrap();
    let files = expired(folder.path());
    let ca = files.0.display().to_string();
    let appliance = ApplianceSetup::new(BINARY)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("old.example.com={}", pair(&files)))
        .flag("api-client-ca", &ca)
        .flag("route", &format!("a.example.com=https://127.0.0.1:9?ca={ca}"))
        .start();
    appliance.wait_says("the certificate has expired");
    let metrics = HttpCall::get("/metrics").send(appliance.admin());
    for source in ["tls-cert", "api-client-ca", "route-ca"] {
        let series = format!("sluicegate_certificates_expired{{source=\"{source}\"}} 1");
        assert!(metrics.text().contains(&series), "{series}: {metrics}");
    }
    assert!(metrics.text().contains("sluicegate_certificates_expired{source=\"secret\"} 0"), "{metrics}");
}
