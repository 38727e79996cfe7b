//! Producing with acks=all. An event is confirmed once the partition has it.

use adapter::{Context, Error, Event, MessageMode, SendError, child_of, to_json};
use krafka::error::ErrorCode;
use krafka::producer::Producer;
use krafka::{KrafkaError, Record};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::connection::Net;
use super::{connect, failed};

/// The fields of upstream's KafkaSink.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    bootstrap_servers: Vec<String>,
    topic: String,
    #[serde(default)]
    content_mode: MessageMode,
    #[serde(default)]
    net: Net,
}

pub(crate) struct KafkaSender {
    config: Config,
    producer: Mutex<Option<std::rc::Rc<Producer>>>,
}

impl adapter::Sender for KafkaSender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        if config.bootstrap_servers.is_empty() {
            return Err(Error::config("ADAPTER_SENDER: bootstrapServers: at least one is needed"));
        }
        Ok(KafkaSender { config, producer: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        self.producer().await.map(|_| ())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let producer = self.producer().await.map_err(SendError::unavailable)?;
        let sent = producer.send(self.record(event)).await;
        // The client connects again by itself.
        sent.map(|_| ()).map_err(|error| match error {
            // Neither the client nor the broker will ever take a record over its limit.
            KrafkaError::Serialization { .. }
            | KrafkaError::Config { .. }
            | KrafkaError::Broker { code: ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge, .. } => {
                SendError::rejected(format!("Kafka: {error}"))
            }
            error => SendError::unavailable(format!("Kafka: {error}")),
        })
    }
}

impl KafkaSender {
    async fn producer(&self) -> Result<std::rc::Rc<Producer>, Error> {
        let mut producer = self.producer.lock().await;
        if let Some(producer) = &*producer {
            return Ok(producer.clone());
        }
        let kafka = connect(&self.config.bootstrap_servers, &self.config.net).await?;
        let built = kafka.producer().build().await.map_err(failed)?;
        Ok(producer.insert(std::rc::Rc::new(built)).clone())
    }

    /// The attribute partitionkey becomes the key of the record and stays an attribute.
    fn record(&self, event: &Event) -> Record {
        let topic = self.config.topic.as_str();
        let mut record = Record::new(topic, event.data.clone().unwrap_or_default());
        let key = event.text("partitionkey");
        if !key.is_empty() {
            record = record.key(key);
        }
        record = record.header("traceparent", child_of(event));
        if let Some(content_type) = &event.opaque {
            return record.header("content-type", content_type.clone());
        }
        if self.config.content_mode == MessageMode::Structured {
            return record.value(to_json(event)).header("content-type", "application/cloudevents+json");
        }
        for (name, value) in event.attributes() {
            record = match name {
                "datacontenttype" => record.header("content-type", value.to_string()),
                "traceparent" => record,
                _ => record.header(format!("ce_{name}"), value.to_string()),
            };
        }
        // An event without data is a record with a null value.
        if event.data.is_none() { record.without_value() } else { record }
    }
}
