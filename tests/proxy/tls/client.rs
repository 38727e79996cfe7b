//! A blocking TLS client and certificates of its own: rustls on a plain socket, none of our code.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use kit::message::HttpResponse;
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version};

pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
pub(crate) const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// The authority of a test's certificates, and the path of its file.
pub(crate) struct TlsAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl TlsAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer, folder: tempfile::tempdir().unwrap() }
    }

    /// A new certificate for `name`, in the files `stem.pem` and `stem.key`: the value of `--tls-cert`
    /// after the host.
    pub(crate) fn issue(&self, stem: &str, name: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let [chain_file, key_file] = ["pem", "key"].map(|end| self.file(&format!("{stem}.{end}")));
        std::fs::write(&chain_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        format!("{},{}", chain_file.display(), key_file.display())
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The key that it signs with.
    pub(crate) fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Its own certificate, in a file.
    pub(crate) fn own_file(&self) -> PathBuf {
        let path = self.file("authority.pem");
        std::fs::write(&path, self.issuer.pem()).unwrap();
        path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client that trusts this authority. Clones share their tickets.
    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> TlsTestClient {
        TlsTestClient::believing(&self.pem(), versions)
    }
}

/// An appliance with one upstream behind every host, on one core.
pub(crate) fn server(authority: &TlsAuthority, certificates: &[(&str, &str)], upstream: &TestUpstream) -> Appliance {
    // A client that has said goodbye may wait for its answer.
    let setup = ApplianceSetup::new(BIN).route("*", upstream.address()).flag("workers", "1");
    let setup = setup.flag("half-close-timeout", "10s");
    certificates
        .iter()
        .fold(setup.flag("https", "127.0.0.1:0"), |setup, (host, name)| {
            let files = authority.issue(&host.replace('*', "any"), name);
            setup.flag("tls-cert", &format!("{host}={files}"))
        })
        .start()
}

#[derive(Clone)]
pub(crate) struct TlsTestClient {
    config: Arc<ClientConfig>,
}

impl TlsTestClient {
    /// One that trusts the authority with this certificate (PEM).
    pub(crate) fn believing(authority: &str, versions: &[&'static SupportedProtocolVersion]) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(8);
        Self { config: Arc::new(config) }
    }

    /// Offers these protocols.
    pub(crate) fn alpn(mut self, protocols: &[&[u8]]) -> Self {
        let offered = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::make_mut(&mut self.config).alpn_protocols = offered;
        self
    }

    /// Connects and shakes hands; an error if the server will not, or its certificate is not for `name`.
    pub(crate) fn connect(&self, to: SocketAddr, name: &str) -> io::Result<Connection> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let session = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let socket = TcpStream::connect(to)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let mut tls = StreamOwned::new(session, socket);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(Connection { tls, peer: to, received: Vec::new() })
    }

    /// One call on a connection of its own.
    pub(crate) fn call(&self, to: SocketAddr, name: &str, call: &HttpCall) -> io::Result<HttpResponse> {
        self.connect(to, name)?.call(&call.clone().host(name))
    }
}

/// One connection after its handshake.
pub(crate) struct Connection {
    pub(crate) tls: StreamOwned<ClientConnection, TcpStream>,
    peer: SocketAddr,
    received: Vec<u8>,
}

impl Connection {
    pub(crate) fn call(&mut self, call: &HttpCall) -> io::Result<HttpResponse> {
        self.tls.write_all(&call.to_bytes(self.peer))?;
        self.tls.flush()?;
        self.receive()
    }

    pub(crate) fn receive(&mut self) -> io::Result<HttpResponse> {
        let mut closed = false;
        loop {
            let parsed = HttpResponse::parse(&self.received, false, closed).map_err(|why| io::Error::other(why.0))?;
            if let Some((response, length)) = parsed {
                self.received.drain(..length);
                return Ok(response);
            }
            if closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut piece = vec![0; 64 * 1024];
            let length = wait::read(&mut self.tls, &mut piece)?; // an error without close_notify
            self.received.extend_from_slice(&piece[..length]);
            closed = length == 0;
        }
    }

    /// GETs of these hosts by HTTP/2, each as a stream of this connection: the header blocks of the responses.
    pub(crate) fn http2_heads(&mut self, hosts: &[&str]) -> Vec<Vec<u8>> {
        // Preface and settings, then the streams: GET / by https with the authority as a literal.
        let mut wire = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for (stream, host) in (1..).step_by(2).zip(hosts) {
            let mut block = vec![0x82, 0x87, 0x84, 0x01, host.len() as u8];
            block.extend_from_slice(host.as_bytes());
            wire.extend_from_slice(&[0, 0, block.len() as u8, 0x01, 0x05, 0, 0, 0, stream]);
            wire.extend_from_slice(&block);
        }
        self.tls.write_all(&wire).unwrap();
        let mut heads = BTreeMap::new();
        while heads.len() < hosts.len() {
            let mut head = [0; 9];
            self.tls.read_exact(&mut head).unwrap();
            let mut content = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.tls.read_exact(&mut content).unwrap();
            if head[3] == 0x01 {
                heads.insert(head[8], content);
            }
        }
        heads.into_values().collect()
    }

    /// What is left until the server says that it has finished; an error if it never does.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = std::mem::take(&mut self.received);
        self.tls.read_to_end(&mut rest)?;
        Ok(rest)
    }

    /// The names for which the server's certificate is good, as its bytes have them.
    pub(crate) fn shown_for(&self, name: &str) -> bool {
        let shown = &self.tls.conn.peer_certificates().unwrap()[0];
        shown.windows(name.len()).any(|window| window == name.as_bytes())
    }
}

/// Whether a header block has the status 421. It does not stand in HPACK's table: `:status` by name (index 8), then its digits,
/// perhaps in Huffman's code.
pub(crate) fn is_421(block: &[u8]) -> bool {
    block.starts_with(b"\x48\x03421") || block.starts_with(b"\x48\x82\x68\x41")
}
