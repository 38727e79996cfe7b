//! How to reach the broker, with TLS by rustls before the protocol begins.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Error, SecretFile};
use fe2o3_amqp::connection::{Connection, ConnectionHandle};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::{Session, SessionHandle};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

/// TCP, TLS, SASL and the first session take at most this long, and so does a link.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The broker closes a connection without frames for this long, and so does the adapter. The client does not always notice that a
/// broker was killed, so this is also how long such a connection is kept.
const IDLE_TIMEOUT_MS: u32 = 15_000;
/// Frames that the client buffers for one session, so that a slow sink stops the broker and memory stays small.
const SESSION_WINDOW: u32 = 2048;

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(super) struct Amqp10Connection {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) hostname: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretFile>,
    pub(super) tls: Option<Tls>,
}

/// A connection with one session. Both end if this is dropped.
pub(super) struct OpenSession {
    pub(super) session: SessionHandle<()>,
    connection: ConnectionHandle<()>,
}

impl OpenSession {
    pub(super) async fn close(mut self) {
        let _ = self.session.end().await;
        let _ = self.connection.close().await;
    }
}

impl Amqp10Connection {
    /// Without the user.
    pub(super) fn source(&self) -> String {
        format!("amqp://{}:{}", self.host, self.port())
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls().is_some() { 5671 } else { 5672 })
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref().filter(|tls| tls.is_enabled())
    }

    pub(super) async fn open(&self, container_id: &str) -> Result<OpenSession, Error> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(container_id)).await;
        opened.unwrap_or_else(|_| Err(Error::connection(format!("connect to {}: timeout", self.source()))))
    }

    async fn connect(&self, container_id: &str) -> Result<OpenSession, Error> {
        let place = format!("connect to {}", self.source());
        let sasl = match &self.user {
            Some(user) => {
                let password = self.password.as_ref().map(SecretFile::read).transpose()?.unwrap_or_default();
                SaslProfile::Plain { username: user.clone(), password }
            }
            None => SaslProfile::Anonymous,
        };
        let builder = Connection::builder()
            .container_id(container_id)
            .hostname(self.hostname.as_deref().unwrap_or(&self.host))
            .idle_time_out(IDLE_TIMEOUT_MS)
            .sasl_profile(sasl);
        let stream = TcpStream::connect((self.host.as_str(), self.port())).await;
        let stream = stream.map_err(|error| failed(&place, error))?;
        let _ = stream.set_nodelay(true);
        let connected = match self.tls() {
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|error| failed(&place, error))?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(&tls.client()?));
                let stream = connector.connect(name, stream).await.map_err(|error| failed(&place, error))?;
                builder.open_with_stream(stream).await
            }
            None => builder.open_with_stream(stream).await,
        };
        let mut connection = connected.map_err(|error| failed(&place, error))?;
        let session = Session::builder().incoming_window(SESSION_WINDOW).outgoing_window(SESSION_WINDOW);
        let session = session.begin(&mut connection).await.map_err(|error| failed("begin a session", error))?;
        Ok(OpenSession { session, connection })
    }
}

/// Waits for a link to be attached. The broker may never answer while it keeps the connection alive.
pub(super) async fn attached<L, E: Display>(
    address: &str,
    attach: impl Future<Output = Result<L, E>>,
) -> Result<L, Error> {
    let action = format!("attach to {address}");
    match tokio::time::timeout(CONNECT_TIMEOUT, attach).await {
        Ok(attached) => attached.map_err(|error| failed(&action, error)),
        Err(_) => Err(failed(&action, "timeout")),
    }
}

pub(super) fn failed(action: &str, error: impl Display) -> Error {
    Error::connection(format!("AMQP 1.0: {action}: {error}"))
}
