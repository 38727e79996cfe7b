//! Kafka: a consumer group as receiver, a topic as sender.
//!
//! An offset is committed once every record before it was accepted by the sink.

use std::time::Duration;

use adapter::{Context, Error, Intake};
use krafka::Kafka;
use serde::Deserialize;

mod connection;
mod consumer;
mod record;
mod sender;

use crate::ordering::Ordering;
use connection::Net;
use consumer::{ConsumerSession, Position};
pub(crate) use sender::KafkaSender;

/// The fields of upstream's KafkaSource.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    bootstrap_servers: Vec<String>,
    topics: Vec<String>,
    /// Default: made of namespace and name of the object.
    consumer_group: Option<String>,
    #[serde(default)]
    initial_offset: OffsetReset,
    #[serde(default)]
    ordering: Ordering,
    #[serde(default)]
    net: Net,
    /// The group drops a dead consumer after this time.
    #[serde(default = "session_timeout")]
    session_timeout_ms: u64,
    /// How record keys become the attribute `key`.
    #[serde(default)]
    key_type: record::KeyType,
}

fn session_timeout() -> u64 {
    10_000
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum OffsetReset {
    #[default]
    Latest,
    Earliest,
}

pub(crate) struct KafkaReceiver {
    config: Config,
    group: String,
    source: String,
}

impl adapter::Receiver for KafkaReceiver {
    type Config = Config;
    type Token = Position;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        if config.bootstrap_servers.is_empty() || config.topics.is_empty() {
            return Err(Error::config("ADAPTER_RECEIVER: bootstrapServers and topics: at least one of each is needed"));
        }
        let group = config.consumer_group.clone();
        let group = group.unwrap_or_else(|| format!("sluicegate-{}-{}", context.namespace, context.name));
        let source = format!("/apis/v1/namespaces/{}/kafkasources/{}", context.namespace, context.name);
        Ok(KafkaReceiver { config, group, source })
    }

    /// Offsets stay.
    fn qos_max(&self) -> u8 {
        2
    }

    async fn receive(&mut self, intake: &mut Intake<Position>) -> Result<(), Error> {
        let kafka = connect(&self.config.bootstrap_servers, &self.config.net).await?;
        let mut session = ConsumerSession::start(&kafka, &self.config, &self.group).await?;
        let result = session.run(intake, &self.config, &self.source).await;
        // Leaving the group lets another consumer take the partitions at once.
        let _ = tokio::time::timeout(Duration::from_secs(3), session.close()).await;
        result
    }
}

async fn connect(servers: &[String], net: &Net) -> Result<Kafka, Error> {
    let builder = Kafka::builder(servers.join(","))
        .client_id("sluicegate-adapter")
        .connect_timeout(Duration::from_secs(5))
        .request_timeout(Duration::from_secs(15))
        .security(net.security()?);
    builder.connect().await.map_err(failed)
}

fn failed(error: krafka::KrafkaError) -> Error {
    Error::connection(format!("Kafka: {error}"))
}
