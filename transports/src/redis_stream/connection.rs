//! The connection to the server.

use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Error, SecretFile};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates,
};

/// A command is answered within this time; XREADGROUP blocks for less.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(crate) struct RedisStreamConnection {
    /// `redis://HOST:PORT[/DB]`, `rediss://…` for TLS, or `HOST:PORT`.
    pub(super) address: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretFile>,
    pub(super) tls: Option<Tls>,
}

impl RedisStreamConnection {
    fn info(&self) -> Result<ConnectionInfo, Error> {
        let wrong = |_: RedisError| Error::config("address: give redis://HOST:PORT or HOST:PORT");
        let text =
            if self.address.contains("://") { self.address.clone() } else { format!("redis://{}", self.address) };
        text.into_connection_info().map_err(wrong)
    }

    /// Host and port without credentials.
    pub(crate) fn authority(&self) -> Result<String, Error> {
        let info = self.info()?;
        if info.redis_settings().password().is_some() {
            return Err(Error::config(
                "address: must not hold a password; use password with the path of a secret file",
            ));
        }
        Ok(match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
            ConnectionAddr::Unix(path) => path.display().to_string(),
            _ => "redis".to_owned(),
        })
    }

    pub(crate) async fn open(&self) -> Result<MultiplexedConnection, Error> {
        let mut info = self.info()?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password.read()?);
        }
        info = info.set_redis_settings(settings);
        let client = match self.tls.as_ref().filter(|tls| tls.is_enabled()) {
            Some(tls) => Client::build_with_tls(over_tls(info), certificates(tls)?),
            None => Client::open(info),
        };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(Duration::from_secs(5)));
        let client = client.map_err(failed)?;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
    }
}

fn over_tls(info: ConnectionInfo) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::Tcp(host, port) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        other => other,
    };
    info.set_addr(addr)
}

fn certificates(tls: &Tls) -> Result<TlsCertificates, Error> {
    let client_tls = match tls.identity() {
        Some((cert, key)) => {
            Some(redis::ClientTlsConfig { client_cert: cert.read_bytes()?, client_key: key.read_bytes()? })
        }
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert: tls.ca().map(|ca| ca.read_bytes()).transpose()? })
}

pub(crate) fn failed(error: RedisError) -> Error {
    Error::connection(format!("Redis: {error}"))
}
