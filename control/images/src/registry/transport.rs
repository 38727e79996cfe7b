//! HTTP/1.1 connections to registries, token services and object stores, and the pool of idle ones.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::PROXY_AUTHORIZATION;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::proxy::{ProxyServer, ProxySettings};
use super::retry::Failure;
use super::settings::Security;
use crate::limits::{IDLE_CONNECTIONS_MAX, IDLE_ORIGINS_MAX, PROXY_HEAD_BYTES_MAX, RequestLimits};

/// The key of a TLS configuration.
type TlsKey = (Security, Option<PathBuf>);
type Sender = SendRequest<Full<Bytes>>;

/// A host and port with its transport security. A connection to an equal origin can be reused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    host: String,
    port: u16,
    pub(super) security: Security,
    ca_file: Option<PathBuf>,
}

impl Origin {
    pub(super) fn new(uri: &Uri, security: Security, ca_file: Option<PathBuf>) -> Result<Self, String> {
        let host = uri.host().ok_or_else(|| format!("{uri} has no host"))?;
        let default_port = if security == Security::Plain { 80 } else { 443 };
        let port = uri.port_u16().unwrap_or(default_port);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        Ok(Self { host, port, security, ca_file })
    }
}

#[derive(Debug, Default)]
pub(super) struct RegistryTransport {
    limits: RequestLimits,
    proxy: ProxySettings,
    idle: Mutex<HashMap<Origin, Vec<Sender>>>,
    /// Insecure hosts that answered a TLS handshake with something else.
    without_tls: Mutex<HashSet<(String, u16)>>,
    tls: Mutex<HashMap<TlsKey, Arc<ClientConfig>>>,
}

/// A response, and its connection: [`Exchange::reuse`] once the body has been read to its end.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) response: Response<Incoming>,
    sender: Sender,
    origin: Origin,
}

impl Exchange {
    pub(super) fn reuse(self, transport: &RegistryTransport) {
        let mut idle = lock(&transport.idle);
        idle.retain(|_, senders| {
            senders.retain(|sender| !sender.is_closed());
            !senders.is_empty()
        });
        // Redirects may lead to any number of hosts.
        if idle.len() >= IDLE_ORIGINS_MAX {
            idle.clear();
        }
        let senders = idle.entry(self.origin).or_default();
        if senders.len() < IDLE_CONNECTIONS_MAX {
            senders.push(self.sender);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // each change is one step
}

fn without_delay(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true); // only costs time if it fails
    stream
}

/// Has a proxy connect this stream to `origin`.
async fn open_tunnel(stream: &mut TcpStream, origin: &Origin, proxy: &ProxyServer) -> Result<(), String> {
    let host = if origin.host.contains(':') { format!("[{}]", origin.host) } else { origin.host.clone() };
    let target = format!("{host}:{}", origin.port);
    let login = proxy.authorization.as_ref().map(|login| format!("Proxy-Authorization: {login}\r\n"));
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{}\r\n", login.unwrap_or_default());
    let broken = |why: std::io::Error| format!("the proxy {proxy:?} broke the connection: {why}");
    stream.write_all(head.as_bytes()).await.map_err(broken)?;
    // Byte by byte: what follows the head is the other end's. The head is short, and there is one a connection.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= PROXY_HEAD_BYTES_MAX {
            return Err(format!("the proxy {proxy:?} answers with a head of more than {PROXY_HEAD_BYTES_MAX} bytes"));
        }
        answer.push(stream.read_u8().await.map_err(broken)?);
    }
    let first = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    match first.split_whitespace().nth(1) {
        Some(status) if status.starts_with('2') => Ok(()),
        Some("407") => Err(format!("the proxy {proxy:?} wants another login; see HTTPS_PROXY")),
        _ => Err(format!("the proxy {proxy:?} does not connect to {target}: {first}")),
    }
}

impl RegistryTransport {
    pub(super) fn new(limits: RequestLimits, proxy: ProxySettings) -> Self {
        Self { limits, proxy, ..Self::default() }
    }

    /// Sends `request`, whose URI is absolute, and waits for the head of its response.
    pub(super) async fn send(&self, origin: &Origin, request: Request<Full<Bytes>>) -> Result<Exchange, Failure> {
        // A connection from the pool may be closed by its other end at any moment; a new one is tried then.
        if let Some(mut sender) = self.take_idle(origin)
            && let Ok(exchange) = self.send_on(origin, &mut sender, request.clone()).await
        {
            return Ok(Exchange { response: exchange, sender, origin: origin.clone() });
        }
        let connect = timeout(self.limits.connect_timeout, self.connect(origin));
        let elapsed = |_| Failure::Timeout { what: "the connection", limit: self.limits.connect_timeout };
        let mut sender = connect.await.map_err(elapsed)??;
        let response = self.send_on(origin, &mut sender, request).await?;
        Ok(Exchange { response, sender, origin: origin.clone() })
    }

    fn take_idle(&self, origin: &Origin) -> Option<Sender> {
        let mut idle = lock(&self.idle);
        let senders = idle.get_mut(origin)?;
        std::iter::from_fn(|| senders.pop()).find(|sender| sender.is_ready())
    }

    async fn send_on(
        &self,
        origin: &Origin,
        sender: &mut Sender,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Failure> {
        if let Some(proxy) = self.forwarding_proxy(origin) {
            // It wants the whole URI, and its own login.
            if let Some(login) = proxy.authorization.as_deref().and_then(|login| HeaderValue::try_from(login).ok()) {
                request.headers_mut().insert(PROXY_AUTHORIZATION, login);
            }
        } else {
            // A server wants the path only, and the authority as Host, which the caller has set.
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let path = path.parse().map_err(|_| Failure::Unreachable(format!("{path} is not a valid path")))?;
            *request.uri_mut() = path;
        }
        match timeout(self.limits.response_timeout, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(why)) => Err(Failure::Unreachable(format!("the connection broke: {}", with_causes(&why)))),
            Err(_) => Err(Failure::Timeout { what: "the response", limit: self.limits.response_timeout }),
        }
    }

    async fn connect(&self, origin: &Origin) -> Result<Sender, Failure> {
        let address = (origin.host.clone(), origin.port);
        let tcp = self.connect_tcp(origin).await?;
        if origin.security == Security::Plain || lock(&self.without_tls).contains(&address) {
            return start(tcp).await;
        }
        let tls = TlsConnector::from(self.tls_config(origin).map_err(Failure::Unreachable)?);
        let name = ServerName::try_from(origin.host.clone())
            .map_err(|_| Failure::Unreachable(format!("{} is not a host name", origin.host)))?;
        match tls.connect(name, tcp).await {
            Ok(stream) => start(stream).await,
            Err(why) if origin.security == Security::Insecure => {
                if is_answer_without_tls(&why) {
                    lock(&self.without_tls).insert(address);
                }
                start(self.connect_tcp(origin).await?).await
            }
            Err(why) => Err(Failure::Unreachable(format!("TLS: {why}"))),
        }
    }

    /// The proxy that requests for a plain origin are sent to. All others are tunnelled.
    fn forwarding_proxy(&self, origin: &Origin) -> Option<&ProxyServer> {
        let is_plain = origin.security == Security::Plain;
        is_plain.then(|| self.proxy.server(&origin.host, origin.port, false)).flatten()
    }

    async fn connect_tcp(&self, origin: &Origin) -> Result<TcpStream, Failure> {
        let is_plain = origin.security == Security::Plain;
        let Some(proxy) = self.proxy.server(&origin.host, origin.port, !is_plain) else {
            let connected = TcpStream::connect((origin.host.as_str(), origin.port)).await;
            let failed = |why| Failure::Unreachable(format!("no connection to port {}: {why}", origin.port));
            return Ok(without_delay(connected.map_err(failed)?));
        };
        let connected = TcpStream::connect((proxy.host.as_str(), proxy.port)).await;
        let failed = |why| Failure::Unreachable(format!("no connection to the proxy {proxy:?}: {why}"));
        let mut stream = without_delay(connected.map_err(failed)?);
        if !is_plain {
            open_tunnel(&mut stream, origin, proxy).await.map_err(Failure::Unreachable)?;
        }
        Ok(stream)
    }

    fn tls_config(&self, origin: &Origin) -> Result<Arc<ClientConfig>, String> {
        let key = (origin.security, origin.ca_file.clone());
        if let Some(config) = lock(&self.tls).get(&key) {
            return Ok(Arc::clone(config));
        }
        let config = match origin.security {
            Security::Insecure => super::tls::unverified()?,
            _ => super::tls::verified(origin.ca_file.as_deref())?,
        };
        lock(&self.tls).insert(key, Arc::clone(&config));
        Ok(config)
    }
}

/// True if the host sent bytes that are not TLS. A handshake that fails for another reason, such as a restart of the registry,
/// may succeed the next time.
fn is_answer_without_tls(why: &std::io::Error) -> bool {
    let cause = why.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

async fn start(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Sender, Failure> {
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|why| Failure::Unreachable(with_causes(&why)))?;
    // Ends with the sender; its errors are seen there.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// True if a host that answers one handshake with `answer` is reached by plain HTTP from then on.
    async fn is_remembered(answer: &'static [u8]) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let uri: Uri = format!("https://{}/", listener.local_addr().expect("bound")).parse().expect("valid");
        let server = std::thread::spawn(move || {
            let (mut first, _) = listener.accept().expect("the handshake");
            assert!(first.read(&mut [0; 4096]).expect("a ClientHello") > 0);
            first.write_all(answer).expect("an open connection");
            drop(first);
            drop(listener.accept());
        });
        let transport = RegistryTransport::new(RequestLimits::default(), ProxySettings::default());
        let origin = Origin::new(&uri, Security::Insecure, None).expect("a host");
        transport.connect(&origin).await.expect("plain HTTP");
        server.join().expect("no panic");
        !lock(&transport.without_tls).is_empty()
    }

    #[tokio::test]
    async fn broken_handshake_is_not_remembered_as_plain_http() {
        assert!(is_remembered(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await);
        assert!(!is_remembered(b"").await);
    }
}
