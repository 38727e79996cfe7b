//! The connection to the server, with TLS by rustls.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Error, SecretFile};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Notification};

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(crate) struct PostgresqlConnection {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) password: Option<SecretFile>,
    pub(super) tls: Option<Tls>,
}

impl PostgresqlConnection {
    pub(crate) fn source(&self) -> String {
        format!("postgresql://{}:{}/{}", self.host, self.port.unwrap_or(5432), self.database)
    }

    /// Notifications go to `notifications`, which ends with the connection.
    pub(crate) async fn open(&self, notifications: Option<UnboundedSender<Notification>>) -> Result<Client, Error> {
        let mut config = tokio_postgres::Config::new();
        config.host(&self.host).port(self.port.unwrap_or(5432)).dbname(&self.database).user(&self.user);
        config.connect_timeout(Duration::from_secs(5)).application_name("sluicegate-adapter");
        config.keepalives_idle(Duration::from_secs(15));
        if let Some(password) = &self.password {
            config.password(password.read()?);
        }
        let tls = self.tls.as_ref().filter(|tls| tls.is_enabled()).map(Tls::client).transpose()?;
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let (client, mut connection) = config.connect(MakeTls(tls)).await.map_err(failed)?;
        tokio::task::spawn_local(async move {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        if notifications.as_ref().is_some_and(|sender| sender.send(notification).is_err()) {
                            return;
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return tracing::warn!(%error, "connection to PostgreSQL was lost"),
                    None => return,
                }
            }
        });
        Ok(client)
    }
}

pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(crate) fn failed(error: tokio_postgres::Error) -> Error {
    // The source names what the server said; the error alone says "db error".
    let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
    Error::connection(format!("PostgreSQL: {error}{source}"))
}

/// TLS with the configuration of the adapter; `None` where it is off.
struct MakeTls(Option<Arc<rustls::ClientConfig>>);

struct Handshake {
    config: Option<Arc<rustls::ClientConfig>>,
    name: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for MakeTls {
    type Stream = Stream<S>;
    type TlsConnect = Handshake;
    type Error = std::io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, Self::Error> {
        // The client calls this even if TLS is off; then no handshake follows.
        Ok(Handshake { config: self.0.clone(), name: domain.to_owned() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Stream<S>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream<S>, std::io::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| std::io::Error::other("TLS is off"))?;
            let name = ServerName::try_from(self.name).map_err(std::io::Error::other)?;
            tokio_rustls::TlsConnector::from(config).connect(name, stream).await.map(Stream)
        })
    }
}

struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
