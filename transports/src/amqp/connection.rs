//! The connection to the server.

use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Error, SecretFile};
use lapin::ConnectionProperties;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri, AMQPUserInfo};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(crate) struct AmqpConnection {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) vhost: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretFile>,
    pub(super) tls: Option<Tls>,
}

impl AmqpConnection {
    pub(crate) async fn open(&self) -> Result<lapin::Connection, Error> {
        let tls = self.tls.as_ref().filter(|tls| tls.is_enabled());
        let password = self.password.as_ref().map(SecretFile::read).transpose()?;
        let uri = AMQPUri {
            scheme: if tls.is_some() { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.user.clone().unwrap_or_else(|| "guest".to_owned()),
                    password: password.unwrap_or_else(|| "guest".to_owned()),
                },
                host: self.host.clone(),
                port: self.port.unwrap_or(if tls.is_some() { 5671 } else { 5672 }),
            },
            vhost: self.vhost.clone().unwrap_or_else(|| "/".to_owned()),
            ..AMQPUri::default()
        };
        let properties = ConnectionProperties::default().with_connection_name("sluicegate-adapter".into());
        let runtime = lapin::runtime::default_runtime().map_err(|error| Error::connection(format!("AMQP: {error}")))?;
        let connect = lapin::Connection::connect_uri_with_config(uri, properties, tls_config(tls)?, runtime);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        let connected = connected.map_err(|_| Error::connection(format!("connect to {}: timeout", self.host)))?;
        connected.map_err(|error| Error::connection(format!("connect to {}: {error}", self.host)))
    }
}

fn tls_config(tls: Option<&Tls>) -> Result<OwnedTLSConfig, Error> {
    let Some(tls) = tls else { return Ok(OwnedTLSConfig::default()) };
    let identity = match tls.identity() {
        Some((cert, key)) => Some(OwnedIdentity::PKCS8 { pem: cert.read_bytes()?, key: key.read_bytes()? }),
        None => None,
    };
    Ok(OwnedTLSConfig { identity, cert_chain: tls.ca().map(|ca| ca.read()).transpose()? })
}

pub(crate) fn failed(error: lapin::Error) -> Error {
    Error::connection(format!("AMQP: {error}"))
}
