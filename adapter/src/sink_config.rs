//! The `sink` section of a source's adapter.

use std::time::Duration;

use serde::Deserialize;

use crate::binding::MessageMode;
use crate::error::Error;
use crate::response::Backoff;
use crate::secret::SecretFile;

/// The `sink` section of a source's adapter.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SinkConfig {
    pub(crate) sink_uri: String,
    #[serde(default)]
    pub(crate) mode: MessageMode,
    /// The sink takes `application/cloudevents-batch+json` and accepts a batch as a whole, as Sluicegate's Brokers and Channels do.
    #[serde(default)]
    pub(crate) batch: bool,
    /// PEM text or the path of a PEM file.
    pub(crate) ca_certs: Option<String>,
    pub(crate) cert: Option<SecretFile>,
    pub(crate) key: Option<SecretFile>,
    /// A bearer token.
    pub(crate) token: Option<SecretFile>,
    #[serde(default)]
    pub(crate) delivery: DeliveryConfig,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DeliveryConfig {
    pub(crate) retry: Option<u32>,
    backoff_policy: Option<SinkBackoff>,
    backoff_delay: Option<String>,
    pub(crate) timeout: Option<String>,
    pub(crate) dead_letter_sink: Option<DeadLetterSink>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SinkBackoff {
    Linear,
    Exponential,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum DeadLetterSink {
    Text(String),
    Object { uri: String },
}

impl SinkConfig {
    pub(crate) fn new(sink_uri: String) -> SinkConfig {
        SinkConfig {
            sink_uri,
            mode: MessageMode::Binary,
            batch: false,
            ca_certs: None,
            cert: None,
            key: None,
            token: None,
            delivery: DeliveryConfig::default(),
        }
    }

    /// The same client for the dead letter sink, one event a request.
    pub(crate) fn dead_letter(&self) -> Option<SinkConfig> {
        let (DeadLetterSink::Text(uri) | DeadLetterSink::Object { uri }) = self.delivery.dead_letter_sink.clone()?;
        Some(SinkConfig { sink_uri: uri, batch: false, ..self.clone() })
    }

    pub(crate) fn backoff(&self) -> Result<Backoff, Error> {
        let default = Backoff::default();
        let first = duration("delivery.backoffDelay", self.delivery.backoff_delay.as_deref())?.unwrap_or(default.first);
        Ok(Backoff { first, linear: self.delivery.backoff_policy == Some(SinkBackoff::Linear) })
    }
}

pub(crate) fn duration(field: &str, text: Option<&str>) -> Result<Option<Duration>, Error> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || Error::config(format!("ADAPTER_SENDER: {field}: {text:?} is not an ISO 8601 duration such as PT2S"));
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map(Some).map_err(|_| wrong())
}
