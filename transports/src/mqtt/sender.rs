//! Publishing at quality 1: a message is confirmed by the broker's PUBACK.

use std::collections::{HashMap, VecDeque};

use adapter::tls::Tls;
use adapter::{Context, Error, Event, MessageMode, SecretFile, SendError, child_of, to_json};
use serde::Deserialize;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::link::{Link, MqttSignal, Outgoing};
use super::{MqttConnection, Version};

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    #[serde(default)]
    version: Version,
    client_id: Option<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    topic: String,
    /// `structured` is the only mode of version 3.1.1.
    #[serde(default)]
    content_mode: MessageMode,
}

/// A message and what waits for its confirmation.
type Submission = (Outgoing, oneshot::Sender<Result<(), SendError>>);

pub(crate) struct MqttSender {
    connection: MqttConnection,
    topic: String,
    is_binary: bool,
    submissions: Mutex<Option<mpsc::UnboundedSender<Submission>>>,
}

impl adapter::Sender for MqttSender {
    type Config = Config;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        let is_binary = config.version == Version::V5 && config.content_mode == MessageMode::Binary;
        let connection = MqttConnection {
            client_id: config.client_id.unwrap_or_else(|| format!("{}-{}-sink", context.namespace, context.name)),
            host: config.host,
            port: config.port,
            version: config.version,
            user: config.user,
            password: config.password,
            tls: config.tls,
        };
        Ok(MqttSender { connection, topic: config.topic, is_binary, submissions: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        let opened = self.open().await?;
        *self.submissions.lock().await = Some(opened);
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let message = self.message(event)?;
        let (confirm, confirmed) = oneshot::channel();
        let lost = || SendError::unavailable("the connection to the MQTT broker was lost");
        {
            let mut submissions = self.submissions.lock().await;
            if submissions.as_ref().is_none_or(mpsc::UnboundedSender::is_closed) {
                *submissions = Some(self.open().await.map_err(SendError::unavailable)?);
            }
            let submissions = submissions.as_ref().ok_or_else(lost)?;
            submissions.send((message, confirm)).map_err(|_| lost())?;
        }
        confirmed.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl MqttSender {
    /// Connects and drives the link in a task of its own.
    async fn open(&self) -> Result<mpsc::UnboundedSender<Submission>, Error> {
        let mut link = Link::open(&self.connection, false)?;
        loop {
            if let MqttSignal::Connected = link.signal().await? {
                break;
            }
        }
        let (sender, submissions) = mpsc::unbounded_channel();
        tokio::task::spawn_local(drive(link, submissions));
        Ok(sender)
    }

    fn message(&self, event: &Event) -> Result<Outgoing, SendError> {
        let mut message = Outgoing {
            topic: self.topic.clone(),
            payload: Default::default(),
            content_type: None,
            properties: Vec::new(),
        };
        if let Some(content_type) = &event.opaque {
            if self.connection.version == Version::V311 {
                return Err(SendError::rejected("MQTT 3.1.1 carries structured JSON events only"));
            }
            message.content_type = Some(content_type.clone());
            message.payload = event.data.clone().unwrap_or_default();
            return Ok(message);
        }
        if !self.is_binary {
            message.content_type = Some("application/cloudevents+json".to_owned());
            message.payload = to_json(event).into();
            return Ok(message);
        }
        for (name, value) in event.attributes() {
            match name {
                "datacontenttype" => message.content_type = Some(value.to_string()),
                "traceparent" => {}
                _ => message.properties.push((name.to_owned(), value.to_string())),
            }
        }
        message.properties.push(("traceparent".to_owned(), child_of(event)));
        message.payload = event.data.clone().unwrap_or_default();
        Ok(message)
    }
}

/// Ends with the connection; then all that waits gets an error.
async fn drive(mut link: Link, mut submissions: mpsc::UnboundedReceiver<Submission>) {
    let mut leaving: VecDeque<oneshot::Sender<Result<(), SendError>>> = VecDeque::new();
    let mut confirming = HashMap::new();
    loop {
        tokio::select! {
            signal = link.signal() => match signal {
                Ok(MqttSignal::Published(id)) => {
                    if let Some(waiting) = leaving.pop_front() {
                        confirming.insert(id, waiting);
                    }
                }
                Ok(MqttSignal::Confirmed(id, good)) => {
                    let refused = || SendError::Refused { status: None, message: "the MQTT broker refuses the message".to_owned() };
                    if let Some(waiting) = confirming.remove(&id) {
                        let _ = waiting.send(if good { Ok(()) } else { Err(refused()) });
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(error = %error.message, "connection of the sender was lost");
                    return;
                }
            },
            submission = submissions.recv() => {
                let Some((message, waiting)) = submission else { return link.close().await };
                match link.publish(message) {
                    Ok(()) => leaving.push_back(waiting),
                    Err(error) => drop(waiting.send(Err(SendError::unavailable(error)))),
                }
            }
        }
    }
}
