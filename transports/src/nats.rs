//! NATS: core subjects at quality of service 0, JetStream consumers at 1 and 2.

use std::cell::Cell;
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Event, Headers, Intake, SecretFile, from_headers};
use async_nats::jetstream::{self, AckKind};
use async_nats::{HeaderMap, Message};
use futures_util::StreamExt;
use serde::Deserialize;

mod connection;
mod jetstream_receiver;
mod sender;

use crate::ordering::Ordering;
use connection::NatsConnection;
pub(crate) use sender::NatsSender;

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
    /// What to subscribe to. Wildcards are allowed. With `stream`, a filter of the consumer.
    subject: Option<String>,
    /// Core only: members of a queue group share the messages.
    queue: Option<String>,
    /// JetStream: the stream to consume.
    stream: Option<String>,
    /// JetStream: the durable consumer. Default: the name of the object. It is made if it does not exist.
    consumer: Option<String>,
    /// JetStream: where a new consumer begins.
    #[serde(default)]
    deliver_policy: DeliverPolicy,
    /// JetStream: `unordered` consumers may be shared by several adapters; after a kill, messages in flight come late.
    #[serde(default)]
    ordering: Ordering,
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum DeliverPolicy {
    #[default]
    All,
    New,
}

pub(crate) struct NatsReceiver {
    config: Config,
    consumer: String,
    source: String,
    /// Where the consumer begins that replaces a deleted one, until it exists.
    replacement_start: Cell<Option<u64>>,
}

/// What acknowledges a message. `None` for core NATS.
pub(crate) type Token = Option<jetstream::message::Acker>;

impl adapter::Receiver for NatsReceiver {
    type Config = Config;
    type Token = Token;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        if config.stream.is_none() && config.subject.is_none() {
            return Err(Error::config("ADAPTER_RECEIVER: subject: is needed unless stream is set"));
        }
        let from = config.stream.as_deref().or(config.subject.as_deref()).unwrap_or_default();
        let source = format!("{}/{from}", config.connection().authority());
        // Names of consumers must not hold these.
        let consumer = config.consumer.clone().unwrap_or_else(|| context.name.replace(['.', '*', '>', ' '], "-"));
        Ok(NatsReceiver { config, consumer, source, replacement_start: Cell::new(None) })
    }

    fn qos_max(&self) -> u8 {
        if self.config.stream.is_some() { 2 } else { 0 }
    }

    /// `term`: the message stays in the stream and is not delivered again.
    fn keeps_rejected(&self) -> bool {
        self.config.stream.is_some()
    }

    async fn receive(&mut self, intake: &mut Intake<Token>) -> Result<(), Error> {
        let client = self.config.connection().open().await?;
        match self.config.stream.clone() {
            Some(stream) => self.receive_jetstream(client, &stream, intake).await,
            None => self.receive_core(client, intake).await,
        }
    }
}

impl NatsReceiver {
    async fn receive_core(&self, client: async_nats::Client, intake: &mut Intake<Token>) -> Result<(), Error> {
        let subject = self.config.subject.clone().unwrap_or_default();
        let failed = |error: &dyn std::fmt::Display| Error::connection(format!("subscribe to {subject}: {error}"));
        let mut messages = match &self.config.queue {
            Some(queue) => client.queue_subscribe(subject.clone(), queue.clone()).await,
            None => client.subscribe(subject.clone()).await,
        }
        .map_err(|error| failed(&error))?;
        client.flush().await.map_err(|error| failed(&error))?;
        intake.ready();
        let mut stop = intake.stop();
        while !intake.finished() {
            let stopping = intake.stopping();
            tokio::select! {
                _ = intake.settled() => {}
                message = messages.next(), if !stopping => {
                    let message = message.ok_or_else(|| failed(&"the subscription ended"))?;
                    if !intake.has_room() {
                        tracing::warn!(subject = %message.subject, "a message was dropped, because the sink is slow");
                        continue;
                    }
                    let id = || uuid::Uuid::new_v4().to_string();
                    let event = event_of(&message, &self.source, id)?;
                    intake.push(event, Some(message.subject.as_str()), None);
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }
}

/// A CloudEvent by its headers or content type; any other message becomes one.
fn event_of(message: &Message, source: &str, id: impl Fn() -> String) -> Result<Event, Error> {
    let headers: Headers = message
        .headers
        .iter()
        .flat_map(HeaderMap::iter)
        .flat_map(|(name, values)| values.iter().map(|value| (name.to_string(), value.as_str().to_owned())))
        .collect();
    let pairs = || headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let body = Some(message.payload.clone()).filter(|body| !body.is_empty());
    match from_headers(pairs(), body) {
        Ok(Some(event)) => return Ok(event),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(subject = %message.subject, error, "malformed CloudEvent is passed on as a plain message")
        }
    }
    let header =
        |wanted: &str| pairs().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.to_owned());
    let content_type = header("content-type").unwrap_or_else(|| guess(&message.payload).to_owned());
    let mut event = Event::new("dev.sluicegate.nats.message", source, id())
        .with("subject", message.subject.as_str())
        .with_data(&content_type, message.payload.clone());
    event.traceparent = header("traceparent");
    Ok(event)
}

fn guess(payload: &[u8]) -> &'static str {
    if serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok() {
        "application/json"
    } else if std::str::from_utf8(payload).is_ok() {
        "text/plain"
    } else {
        "application/octet-stream"
    }
}
