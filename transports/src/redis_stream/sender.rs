//! XADD.

use adapter::tls::Tls;
use adapter::{Context, Error, Event, SecretFile, SendError, to_json};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::connection::RedisStreamConnection;
use super::entry::EVENT_FIELD;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// `redis://HOST:PORT[/DB]`, `rediss://…` for TLS, or `HOST:PORT`.
    address: String,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    stream: String,
}

impl Config {
    fn connection(&self) -> RedisStreamConnection {
        RedisStreamConnection {
            address: self.address.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls.clone(),
        }
    }
}

pub(crate) struct RedisStreamSender {
    config: Config,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl adapter::Sender for RedisStreamSender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        config.connection().authority()?;
        Ok(RedisStreamSender { config, open: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        let opened = self.config.connection().open().await?;
        *self.open.lock().await = Some(opened);
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        if event.opaque.is_some() {
            return Err(SendError::rejected("the event has a format that is not JSON"));
        }
        let mut open = self.open.lock().await;
        let mut connection = match &*open {
            Some(connection) => connection.clone(),
            None => {
                let opened = self.config.connection().open().await.map_err(SendError::unavailable)?;
                open.insert(opened).clone()
            }
        };
        drop(open);
        let mut command = cmd("XADD");
        command.arg(&self.config.stream).arg("*");
        match fields(event) {
            Some(fields) => command.arg(fields),
            None => command.arg(EVENT_FIELD).arg(to_json(event)),
        };
        match command.query_async::<String>(&mut connection).await {
            Ok(_) => Ok(()),
            Err(error) => {
                if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() {
                    self.open.lock().await.take();
                }
                Err(SendError::unavailable(format!("Redis: {error}")))
            }
        }
    }
}

/// An entry that came from a stream is written as it was: alternating names and values.
fn fields(event: &Event) -> Option<Vec<String>> {
    if event.text("type") != "dev.knative.sources.redisstream" {
        return None;
    }
    let fields: Vec<String> = serde_json::from_slice(event.data.as_deref()?).ok()?;
    (!fields.is_empty() && fields.len().is_multiple_of(2)).then_some(fields)
}
