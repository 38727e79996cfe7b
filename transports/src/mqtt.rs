//! MQTT 5 and 3.1.1: topic filters as receiver, a topic as sender.
//!
//! A message of quality 1 is acknowledged (PUBACK) after the sink accepted it, in the order of arrival as MQTT asks. The
//! session is stored by the broker, so messages that arrive while the adapter is down are delivered later.

use std::collections::VecDeque;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Event, Intake, SecretFile, from_json};
use serde::Deserialize;

mod link;
mod sender;

use link::{Acknowledgement, Incoming, Link, MqttSignal};
pub(crate) use sender::MqttSender;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Version {
    #[default]
    #[serde(rename = "5")]
    V5,
    #[serde(rename = "3.1.1")]
    V311,
}

/// How to reach the broker.
#[derive(Debug, Clone)]
pub(crate) struct MqttConnection {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) version: Version,
    pub(crate) client_id: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<SecretFile>,
    pub(crate) tls: Option<Tls>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    /// `5` or `3.1.1`.
    #[serde(default)]
    version: Version,
    /// The session belongs to this id. Default: namespace and name of the object.
    client_id: Option<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    /// Filters, wildcards allowed. `$share/GROUP/FILTER` shares messages between adapters with an own `clientId` each.
    topics: Vec<String>,
}

pub(crate) struct MqttReceiver {
    connection: MqttConnection,
    topics: Vec<String>,
    source: String,
    at_least_once: bool,
}

/// The order of arrival, for acknowledgements in order.
pub(crate) type Token = u64;

impl adapter::Receiver for MqttReceiver {
    type Config = Config;
    type Token = Token;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        if config.topics.is_empty() {
            return Err(Error::config("ADAPTER_RECEIVER: topics: at least one filter is needed"));
        }
        let connection = MqttConnection {
            client_id: config.client_id.unwrap_or_else(|| format!("{}-{}", context.namespace, context.name)),
            host: config.host,
            port: config.port,
            version: config.version,
            user: config.user,
            password: config.password,
            tls: config.tls,
        };
        let source = format!("mqtt://{}:{}", connection.host, connection.port());
        Ok(MqttReceiver { connection, topics: config.topics, source, at_least_once: context.qos != Some(0) })
    }

    async fn receive(&mut self, intake: &mut Intake<Token>) -> Result<(), Error> {
        let mut link = Link::open(&self.connection, true)?;
        let mut unacknowledged: VecDeque<(Token, Acknowledgement, bool)> = VecDeque::new();
        let mut arrivals: Token = 0;
        let mut stop = intake.stop();
        while !intake.finished() {
            let stopping = intake.stopping();
            tokio::select! {
                (token, outcome) = intake.settled() => {
                    settle(&mut unacknowledged, token, outcome, &link)?;
                }
                // The broker sends at most as many unacknowledged messages as the window holds.
                signal = link.signal(), if !stopping => match signal? {
                    MqttSignal::Connected => link.subscribe(&self.topics, self.at_least_once)?,
                    MqttSignal::Subscribed(true) => intake.ready(),
                    MqttSignal::Subscribed(false) => {
                        return Err(Error { reason: "SubscriptionRefused", ..Error::connection(format!("the broker refuses {:?}", self.topics)) });
                    }
                    MqttSignal::Message(message) => {
                        if message.acknowledgement.is_none() && !intake.has_room() {
                            tracing::warn!(topic = message.topic, "a message of quality 0 was dropped, because the sink is slow");
                            continue;
                        }
                        arrivals += 1;
                        let event = event_of(&message, &self.source);
                        if let Some(acknowledgement) = message.acknowledgement {
                            unacknowledged.push_back((arrivals, acknowledgement, false));
                        }
                        intake.push(event, Some(&message.topic), arrivals);
                    }
                    MqttSignal::Published(_) | MqttSignal::Confirmed(..) => {}
                },
                () = stop.wait(), if !stopping => {}
            }
        }
        link.close().await;
        Ok(())
    }
}

/// Acknowledges the accepted ones before the first that is not.
fn settle(
    unacknowledged: &mut VecDeque<(Token, Acknowledgement, bool)>,
    token: Token,
    outcome: DeliveryResult,
    link: &Link,
) -> Result<(), Error> {
    if outcome != DeliveryResult::Accepted {
        return Ok(());
    }
    if let Ok(at) = unacknowledged.binary_search_by_key(&token, |(token, ..)| *token) {
        unacknowledged[at].2 = true;
    }
    while let Some((_, acknowledgement, true)) = unacknowledged.front() {
        link.acknowledge(acknowledgement)?;
        unacknowledged.pop_front();
    }
    Ok(())
}

/// The MQTT binding of CloudEvents; any other message becomes an event.
fn event_of(message: &Incoming, source: &str) -> Event {
    let content_type = message.content_type.as_deref().unwrap_or("");
    let structured = content_type.to_ascii_lowercase().starts_with("application/cloudevents");
    let is_json = !structured || content_type.to_ascii_lowercase().starts_with("application/cloudevents+json");
    if structured && !is_json {
        return Event::opaque(content_type, message.payload.clone());
    }
    // Version 3.1.1 has no content type: there an event is structured always.
    if (structured || message.content_type.is_none())
        && let Ok(event) = from_json(&message.payload)
    {
        return event;
    }
    let property =
        |wanted: &str| message.properties.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    if property("specversion").is_some() {
        let mut event = Event::default();
        for (name, value) in &message.properties {
            // The trace context stands beside the event, as the sender writes it.
            match name.as_str() {
                "datacontenttype" => {}
                "traceparent" => event.traceparent = Some(value.clone()),
                _ => event.set(name, value.as_str()),
            }
        }
        if !content_type.is_empty() {
            event.set("datacontenttype", content_type);
        }
        event.data = Some(message.payload.clone()).filter(|data| !data.is_empty());
        if event.check().is_ok() {
            return event;
        }
    }
    let data_type = match content_type {
        "" if std::str::from_utf8(&message.payload).is_ok() => "text/plain",
        "" => "application/octet-stream",
        content_type => content_type,
    };
    let id = uuid::Uuid::new_v4().to_string();
    let mut event = Event::new("dev.sluicegate.mqtt.message", source, id)
        .with("subject", message.topic.as_str())
        .with_data(data_type, message.payload.clone());
    event.traceparent = property("traceparent").map(str::to_owned);
    event
}
