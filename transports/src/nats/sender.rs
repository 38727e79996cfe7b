//! Publishing, with JetStream's confirmation if a stream takes the subject.

use adapter::tls::Tls;
use adapter::{Context, Error, Event, MessageMode, SecretFile, SendError, child_of, encode_value, to_json};
use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, jetstream};
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::connection::NatsConnection;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// `nats://HOST:PORT` or `HOST:PORT`.
    servers: Vec<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    token: Option<SecretFile>,
    /// A `.creds` file with JWT and seed.
    credentials: Option<SecretFile>,
    nkey: Option<SecretFile>,
    tls: Option<Tls>,
    subject: String,
    /// False: core NATS, which confirms nothing.
    #[serde(default = "yes")]
    jetstream: bool,
    #[serde(default)]
    content_mode: MessageMode,
}

impl Config {
    fn connection(&self) -> NatsConnection {
        NatsConnection {
            servers: self.servers.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            token: self.token.clone(),
            credentials: self.credentials.clone(),
            nkey: self.nkey.clone(),
            tls: self.tls.clone(),
        }
    }
}

fn yes() -> bool {
    true
}

pub(crate) struct NatsSender {
    config: Config,
    open: Mutex<Option<(Client, jetstream::Context)>>,
}

impl adapter::Sender for NatsSender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        Ok(NatsSender { config, open: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        let client = self.config.connection().open().await?;
        *self.open.lock().await = Some((client.clone(), jetstream::new(client)));
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let (client, context) = self.client().await?;
        let (headers, body) = message(event, self.config.content_mode)?;
        check_size(&headers, &body, client.server_info().max_payload)?;
        let subject = self.config.subject.clone();
        let failed = |error: &dyn std::fmt::Display| {
            SendError::unavailable(format!("publish to {}: {error}", self.config.subject))
        };
        let result = if self.config.jetstream {
            match context.publish_with_headers(subject, headers, body).await {
                Ok(confirmation) => confirmation.await.map(|_| ()).map_err(|error| failed(&error)),
                Err(error) => Err(failed(&error)),
            }
        } else {
            match client.publish_with_headers(subject, headers, body).await {
                Ok(()) => client.flush().await.map_err(|error| failed(&error)),
                Err(error) => Err(failed(&error)),
            }
        };
        if result.is_err() && client.connection_state() != async_nats::connection::State::Connected {
            self.open.lock().await.take();
        }
        result
    }
}

impl NatsSender {
    async fn client(&self) -> Result<(Client, jetstream::Context), SendError> {
        let mut open = self.open.lock().await;
        if let Some(open) = &*open {
            return Ok(open.clone());
        }
        let client = self.config.connection().open().await.map_err(SendError::unavailable)?;
        Ok(open.insert((client.clone(), jetstream::new(client))).clone())
    }
}

/// The server closes the connection for a message over its limit, and would do so at each retry.
fn check_size(headers: &HeaderMap, body: &Bytes, bytes_max: usize) -> Result<(), SendError> {
    // `NATS/1.0`, and a line a header.
    let lines: usize = headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| name.to_string().len() + value.as_str().len() + 4))
        .sum();
    let bytes = 12 + lines + body.len();
    if bytes > bytes_max {
        let message = format!("the message has {bytes} bytes with its headers, limit of the NATS server {bytes_max}");
        return Err(SendError::Rejected { status: Some(413), message });
    }
    Ok(())
}

/// The NATS binding: `ce-` headers with `ce-datacontenttype`, or the JSON format.
fn message(event: &Event, mode: MessageMode) -> Result<(HeaderMap, Bytes), SendError> {
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| -> Result<(), SendError> {
        let name: HeaderName = name.parse().map_err(|error| SendError::rejected(format!("header {name}: {error}")))?;
        let value: HeaderValue = value.parse().map_err(|error| SendError::rejected(format!("header: {error}")))?;
        headers.insert(name, value);
        Ok(())
    };
    set("traceparent", &child_of(event))?;
    let body = match &event.opaque {
        Some(content_type) => {
            set("Content-Type", content_type)?;
            event.data.clone().unwrap_or_default()
        }
        None => {
            // JetStream drops a second message with this id within its duplicate window.
            set("Nats-Msg-Id", &encode_value(&format!("{}#{}", event.text("source"), event.id())))?;
            if mode == MessageMode::Structured {
                set("Content-Type", "application/cloudevents+json")?;
                to_json(event).into()
            } else {
                for (name, value) in event.attributes() {
                    set(&format!("ce-{name}"), &encode_value(&value.to_string()))?;
                }
                event.data.clone().unwrap_or_default()
            }
        }
    };
    Ok((headers, body))
}
