//! A TLS terminator on tokio, in front of a fixture without TLS.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{HandshakeKind, ServerConfig};

/// A running front; dropping it closes its port and all connections.
pub struct TlsFront {
    address: SocketAddr,
    counts: Arc<TlsFrontCounts>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TlsFrontCounts {
    full: AtomicU64,
    resumed: AtomicU64,
    failed: AtomicU64,
    named: std::sync::Mutex<Vec<String>>,
}

impl TlsFront {
    /// Before `to`, with a certificate and its key (PEM), and what it agrees to speak.
    pub fn start(certificate: &[u8], key: &[u8], alpn: &[&[u8]], to: SocketAddr) -> Self {
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let listener = StdListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(TlsFrontCounts::default());
        let (stop, stopped) = oneshot::channel();
        let (acceptor, seen) = (TlsAcceptor::from(Arc::new(config)), Arc::clone(&counts));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                tokio::select! {
                    () = accept(listener, acceptor, seen, to) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, counts, stop: Some(stop), thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Handshakes in full, resumed and failed.
    pub fn handshakes(&self) -> (u64, u64, u64) {
        let TlsFrontCounts { full, resumed, failed, .. } = &*self.counts;
        (full.load(SeqCst), resumed.load(SeqCst), failed.load(SeqCst))
    }

    /// The server names that clients asked for.
    pub fn named(&self) -> Vec<String> {
        self.counts.named.lock().unwrap().clone()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: StdListener, acceptor: TlsAcceptor, counts: Arc<TlsFrontCounts>, to: SocketAddr) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, counts) = (acceptor.clone(), Arc::clone(&counts));
        tokio::task::spawn_local(async move {
            let Ok(mut tls) = acceptor.accept(stream).await else {
                counts.failed.fetch_add(1, SeqCst);
                return;
            };
            let session = tls.get_ref().1;
            counts.named.lock().unwrap().push(session.server_name().unwrap_or_default().to_owned());
            match session.handshake_kind() {
                Some(HandshakeKind::Resumed) => counts.resumed.fetch_add(1, SeqCst),
                _ => counts.full.fetch_add(1, SeqCst),
            };
            let Ok(mut plain) = TcpStream::connect(to).await else { return };
            // A broken connection affects only its two ends.
            let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
        });
    }
}
