//! Publishing with confirms.

use adapter::tls::Tls;
use adapter::{Context, Error, Event, SecretFile, SendError, child_of, encode_value};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::connection::{AmqpConnection, failed};

/// The message is written to disk by a durable queue.
const PERSISTENT: u8 = 2;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    vhost: Option<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    /// The default exchange, whose routing keys are names of queues, if it is absent.
    #[serde(default)]
    exchange: String,
    routing_key: String,
    /// With the default exchange: the queue exists; otherwise a durable one is declared.
    #[serde(default)]
    predeclared: bool,
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

pub(crate) struct AmqpSender {
    config: Config,
    open: Mutex<Option<(lapin::Connection, Channel)>>,
}

impl adapter::Sender for AmqpSender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        Ok(AmqpSender { config, open: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        let opened = self.open().await?;
        *self.open.lock().await = Some(opened);
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let channel = self.channel().await?;
        let (properties, data) = message(event)?;
        // Without a queue for it, the message comes back instead of being dropped.
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (self.config.exchange.as_str().into(), self.config.routing_key.as_str().into());
        let published = channel.basic_publish(exchange, key, options, data, properties).await;
        let confirmed = match published {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        match confirmed {
            Ok(Confirmation::Ack(None)) => Ok(()),
            Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))) => {
                let message = format!(
                    "no queue takes routing key {} of exchange {:?}",
                    self.config.routing_key, self.config.exchange
                );
                Err(SendError::Refused { status: None, message })
            }
            Ok(_) => Err(SendError::unavailable("the server did not confirm the message")),
            Err(error) => {
                self.open.lock().await.take();
                Err(SendError::unavailable(format!("AMQP: {error}")))
            }
        }
    }
}

impl AmqpSender {
    async fn open(&self) -> Result<(lapin::Connection, Channel), Error> {
        let connection = self.config.connection().open().await?;
        let channel = connection.create_channel().await.map_err(failed)?;
        if self.config.exchange.is_empty() && !self.config.predeclared {
            let queue = self.config.routing_key.as_str().into();
            channel
                .queue_declare(queue, QueueDeclareOptions::durable(), FieldTable::default())
                .await
                .map_err(failed)?;
        }
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok((connection, channel))
    }

    async fn channel(&self) -> Result<Channel, SendError> {
        let mut open = self.open.lock().await;
        if let Some((_, channel)) = &*open {
            return Ok(channel.clone());
        }
        let opened = self.open().await.map_err(SendError::unavailable)?;
        Ok(open.insert(opened).1.clone())
    }
}

fn message(event: &Event) -> Result<(BasicProperties, &[u8]), SendError> {
    let mut headers = FieldTable::default();
    let mut set = |name: String, value: AMQPValue| -> Result<(), SendError> {
        let name = ShortString::try_new(name).map_err(|error| SendError::rejected(format!("header name: {error}")))?;
        headers.insert(name, value);
        Ok(())
    };
    set("traceparent".to_owned(), AMQPValue::LongString(child_of(event).into()))?;
    let mut content_type = event.opaque.clone();
    if content_type.is_none() {
        for (name, value) in event.attributes() {
            match name {
                "datacontenttype" => content_type = Some(value.to_string()),
                _ => set(format!("ce-{name}"), AMQPValue::LongString(encode_value(&value.to_string()).into()))?,
            }
        }
    }
    let mut properties = BasicProperties::default().with_headers(headers).with_delivery_mode(PERSISTENT);
    if let Some(content_type) = content_type {
        let text = ShortString::try_new(content_type)
            .map_err(|error| SendError::rejected(format!("content type: {error}")))?;
        properties = properties.with_content_type(text);
    }
    if let Ok(id) = ShortString::try_new(event.id()) {
        properties = properties.with_message_id(id);
    }
    Ok((properties, event.data.as_deref().unwrap_or_default()))
}
