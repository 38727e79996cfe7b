//! AMQP 0-9-1, as RabbitMQ speaks it: a queue as receiver, an exchange as sender with publisher confirms.
//!
//! CloudEvents are bound as upstream's eventing-rabbitmq does it: `ce-` headers and the content type.

use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Event, Intake, SecretFile, from_headers};
use bytes::Bytes;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use serde::Deserialize;

mod connection;
mod sender;

use connection::{AmqpConnection, failed};
pub(crate) use sender::AmqpSender;

/// Messages that the server sends before they are acknowledged.
const PREFETCH: u16 = 512;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    vhost: Option<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    queue: String,
    /// The queue exists; otherwise a durable one is declared.
    #[serde(default)]
    predeclared: bool,
    /// The type of the declared queue: `classic` or `quorum`.
    queue_type: Option<String>,
    /// The declared queue gets the messages of this exchange, which is declared if it does not exist.
    exchange: Option<String>,
    /// The queue has a dead letter exchange, which takes what the sink rejects.
    #[serde(default)]
    dead_letter_exchange: bool,
    prefetch: Option<u16>,
}

impl Config {
    fn connection(&self) -> AmqpConnection {
        AmqpConnection {
            host: self.host.clone(),
            port: self.port,
            vhost: self.vhost.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls.clone(),
        }
    }
}

pub(crate) struct AmqpReceiver {
    config: Config,
    source: String,
}

impl adapter::Receiver for AmqpReceiver {
    type Config = Config;
    /// It acknowledges itself.
    type Token = Delivery;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        if config.prefetch == Some(0) {
            return Err(Error::config("ADAPTER_RECEIVER: prefetch: must be at least 1; 0 means no limit in AMQP"));
        }
        let source =
            format!("/apis/v1/namespaces/{}/rabbitmqsources/{}#{}", context.namespace, context.name, config.queue);
        Ok(AmqpReceiver { config, source })
    }

    fn keeps_rejected(&self) -> bool {
        self.config.dead_letter_exchange
    }

    async fn receive(&mut self, intake: &mut Intake<Delivery>) -> Result<(), Error> {
        let connection = self.config.connection().open().await?;
        let channel = connection.create_channel().await.map_err(failed)?;
        let queue = self.config.queue.as_str();
        if !self.config.predeclared {
            self.declare(&connection, &channel).await?;
        }
        channel
            .basic_qos(self.config.prefetch.unwrap_or(PREFETCH), BasicQosOptions::default())
            .await
            .map_err(failed)?;
        let consume =
            channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer = consume.await.map_err(failed)?;
        intake.ready();
        let mut stop = intake.stop();
        while !intake.finished() {
            let (open, stopping) = (intake.has_room(), intake.stopping());
            tokio::select! {
                (acker, outcome) = intake.settled() => settle(&acker, outcome).await?,
                delivery = consumer.next(), if open => {
                    let delivery = delivery.ok_or_else(|| Error::connection(format!("consumer of queue {queue} was cancelled")))?;
                    let mut delivery = delivery.map_err(failed)?;
                    let event = event_of(&mut delivery, &self.source);
                    intake.push(event, Some(queue), delivery);
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        // What was delivered and not taken goes back to the queue.
        let closed = tokio::time::timeout(Duration::from_secs(2), connection.close(200, "stop".into())).await;
        closed.unwrap_or(Ok(())).map_err(failed)
    }
}

impl AmqpReceiver {
    /// Declares the queue, and binds it to its exchange.
    async fn declare(&self, connection: &lapin::Connection, channel: &Channel) -> Result<(), Error> {
        let queue = self.config.queue.as_str();
        let mut arguments = FieldTable::default();
        if let Some(kind) = &self.config.queue_type {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.as_str().into()));
        }
        let declared = channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await;
        declared.map_err(failed)?;
        let Some(exchange) = self.config.exchange.as_deref() else { return Ok(()) };
        // A failed question closes its channel, so it has a channel of its own. An exchange that exists keeps its type.
        let question = connection.create_channel().await.map_err(failed)?;
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let asked =
            question.exchange_declare(exchange.into(), ExchangeKind::Headers, passive, FieldTable::default()).await;
        if asked.is_err() {
            let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            let declared =
                channel.exchange_declare(exchange.into(), ExchangeKind::Headers, durable, FieldTable::default()).await;
            declared.map_err(failed)?;
        }
        // All messages: of a topic exchange by the key, of the types headers and fanout in any case.
        let bind = channel.queue_bind(
            queue.into(),
            exchange.into(),
            "#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bind.await.map_err(failed)
    }
}

async fn settle(acker: &Delivery, outcome: DeliveryResult) -> Result<(), Error> {
    let settled = match outcome {
        DeliveryResult::Accepted => acker.ack(BasicAckOptions::default()).await,
        DeliveryResult::Rejected { .. } => acker.reject(BasicRejectOptions { requeue: false }).await,
        DeliveryResult::Released { .. } => acker.nack(BasicNackOptions { multiple: false, requeue: true }).await,
    };
    settled.map(|_| ()).map_err(failed)
}

/// A CloudEvent by its headers or content type; any other message becomes upstream's event.
fn event_of(delivery: &mut Delivery, source: &str) -> Event {
    let body = Bytes::from(std::mem::take(&mut delivery.data));
    let properties = &delivery.properties;
    let mut headers: Vec<(String, String)> = Vec::new();
    if let Some(table) = properties.headers() {
        let pairs = table.inner().iter();
        headers.extend(pairs.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))));
    }
    let content_type = properties.content_type().as_ref().map(|value| value.as_str().to_owned());
    if let Some(content_type) = &content_type {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
        headers.push(("content-type".to_owned(), content_type.clone()));
    }
    let pairs = || headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    match from_headers(pairs(), Some(body.clone()).filter(|body| !body.is_empty())) {
        Ok(Some(event)) => return event,
        Ok(None) => {}
        Err(error) => tracing::warn!(error, "malformed CloudEvent is passed on as a plain message"),
    }
    let id = properties.message_id().as_ref().map(|id| id.as_str().to_owned());
    let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let mut event = Event::new("dev.knative.rabbitmq.event", source, id)
        .with("subject", delivery.routing_key.as_str())
        .with_data(content_type.as_deref().unwrap_or("application/octet-stream"), body);
    event.traceparent =
        pairs().find(|(name, _)| name.eq_ignore_ascii_case("traceparent")).map(|(_, value)| value.to_owned());
    event
}

fn text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.as_str().to_owned(),
        AMQPValue::Boolean(truth) => truth.to_string(),
        AMQPValue::ShortShortInt(number) => number.to_string(),
        AMQPValue::ShortInt(number) => number.to_string(),
        AMQPValue::LongInt(number) => number.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        _ => return None,
    })
}
