//! One connection to a broker in either version of the protocol. A lost connection ends the link; the next one has a new
//! event loop, because an old one would send acknowledgements of the lost connection.

use std::time::Duration;

use adapter::{Error, SecretFile};
use bytes::Bytes;
use rumqttc::{Transport, v5};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{MqttConnection, Version};

mod version311;
mod version5;

/// Messages that the broker sends before they are acknowledged: fewer than the window of the adapter.
const RECEIVE_MAXIMUM: u16 = 512;
/// Messages of the sender that wait for the broker's confirmation. The client has a slot of 250 bytes for each from its start, which
/// would be 16 MiB for the 65,535 of the protocol.
const SEND_MAXIMUM: u16 = 512;
/// Packets that wait to be written.
const REQUESTS_MAX: usize = 4096;
/// Bytes of one packet.
const PACKET_BYTES_MAX: u32 = 2 << 20;
/// Time for the last acknowledgements to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT_SECONDS: u64 = 5;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) struct Incoming {
    pub(super) topic: String,
    pub(super) payload: Bytes,
    pub(super) content_type: Option<String>,
    pub(super) properties: Vec<(String, String)>,
    /// `None`: quality 0.
    pub(super) acknowledgement: Option<Acknowledgement>,
}

pub(super) enum Acknowledgement {
    V5(v5::mqttbytes::v5::Publish),
    V311(rumqttc::Publish),
}

pub(super) struct Outgoing {
    pub(super) topic: String,
    pub(super) payload: Bytes,
    pub(super) content_type: Option<String>,
    pub(super) properties: Vec<(String, String)>,
}

pub(super) enum MqttSignal {
    Connected,
    Subscribed(bool),
    Message(Box<Incoming>),
    /// A message of the sender left with this packet id.
    Published(u16),
    /// The broker confirmed or refused the message with this packet id.
    Confirmed(u16, bool),
}

enum Client {
    V5(v5::AsyncClient),
    V311(rumqttc::AsyncClient),
}

pub(super) struct Link {
    client: Client,
    signals: mpsc::UnboundedReceiver<Result<MqttSignal, Error>>,
    tasks: JoinSet<()>,
}

impl MqttConnection {
    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_tls() { 8883 } else { 1883 })
    }

    fn is_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_enabled())
    }

    fn transport(&self) -> Result<Option<Transport>, Error> {
        match self.tls.as_ref().filter(|tls| tls.is_enabled()) {
            Some(tls) => Ok(Some(Transport::tls_with_config(rumqttc::TlsConfiguration::Rustls(tls.client()?)))),
            None => Ok(None),
        }
    }

    fn credentials(&self) -> Result<Option<(String, String)>, Error> {
        let password = self.password.as_ref().map(SecretFile::read).transpose()?;
        Ok(self.user.clone().map(|user| (user, password.unwrap_or_default())))
    }
}

impl Link {
    /// `keeps_session`: the broker remembers subscriptions and messages of this client.
    pub(super) fn open(connection: &MqttConnection, keeps_session: bool) -> Result<Link, Error> {
        let (sender, signals) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let client = match connection.version {
            Version::V5 => {
                let (client, events) =
                    v5::AsyncClient::new(version5::options(connection, keeps_session)?, REQUESTS_MAX);
                tasks.spawn_local(version5::run(events, sender));
                Client::V5(client)
            }
            Version::V311 => {
                let (client, events) =
                    rumqttc::AsyncClient::new(version311::options(connection, keeps_session)?, REQUESTS_MAX);
                tasks.spawn_local(version311::run(events, sender));
                Client::V311(client)
            }
        };
        Ok(Link { client, signals, tasks })
    }

    /// Safe to use in `select!`.
    pub(super) async fn signal(&mut self) -> Result<MqttSignal, Error> {
        self.signals.recv().await.unwrap_or_else(|| Err(Error::connection("the connection to the broker ended")))
    }

    pub(super) fn subscribe(&self, topics: &[String], at_least_once: bool) -> Result<(), Error> {
        for topic in topics {
            match &self.client {
                Client::V5(client) => {
                    let qos =
                        if at_least_once { v5::mqttbytes::QoS::AtLeastOnce } else { v5::mqttbytes::QoS::AtMostOnce };
                    client.try_subscribe(topic, qos).map_err(full)?;
                }
                Client::V311(client) => {
                    let qos = if at_least_once { rumqttc::QoS::AtLeastOnce } else { rumqttc::QoS::AtMostOnce };
                    client.try_subscribe(topic, qos).map_err(full)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn acknowledge(&self, acknowledgement: &Acknowledgement) -> Result<(), Error> {
        match (&self.client, acknowledgement) {
            (Client::V5(client), Acknowledgement::V5(publish)) => client.try_ack(publish).map_err(full),
            (Client::V311(client), Acknowledgement::V311(publish)) => client.try_ack(publish).map_err(full),
            _ => Ok(()),
        }
    }

    /// Quality 1. The order of [`MqttSignal::Published`] is the order of the calls.
    pub(super) fn publish(&self, message: Outgoing) -> Result<(), Error> {
        match &self.client {
            Client::V5(client) => {
                let properties = v5::mqttbytes::v5::PublishProperties {
                    user_properties: message.properties,
                    content_type: message.content_type,
                    ..Default::default()
                };
                let qos = v5::mqttbytes::QoS::AtLeastOnce;
                client.try_publish_with_properties(message.topic, qos, false, message.payload, properties).map_err(full)
            }
            Client::V311(client) => {
                client.try_publish(message.topic, rumqttc::QoS::AtLeastOnce, false, message.payload).map_err(full)
            }
        }
    }

    /// Lets acknowledgements leave, then says goodbye.
    pub(super) async fn close(mut self) {
        let asked = match &self.client {
            Client::V5(client) => client.try_disconnect().is_ok(),
            Client::V311(client) => client.try_disconnect().is_ok(),
        };
        if asked {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.join_next()).await;
        }
    }
}

fn full(error: impl std::fmt::Display) -> Error {
    Error::connection(format!("queue of packets to the broker: {error}"))
}
