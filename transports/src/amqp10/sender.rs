//! Sending to a target address; the broker's outcome is the confirmation.

use adapter::limits::SINK_TIMEOUT;
use adapter::tls::Tls;
use adapter::{Context, Error, Event, MessageMode, SecretFile, SendError};
use fe2o3_amqp::link::SendError as LinkError;
use fe2o3_amqp::types::definitions::{AmqpError, Error as AmqpCondition, ErrorCondition};
use fe2o3_amqp::types::messaging::{Outcome, Target, TerminusDurability};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::connection::{Amqp10Connection, OpenSession, attached, failed};
use super::message::message_of;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    hostname: Option<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    /// The target of the link, in the broker's form: `orders`, or `/queue/orders` in RabbitMQ 3.
    address: String,
    #[serde(default)]
    content_mode: MessageMode,
}

impl Config {
    fn connection(&self) -> Amqp10Connection {
        Amqp10Connection {
            host: self.host.clone(),
            port: self.port,
            hostname: self.hostname.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls.clone(),
        }
    }
}

/// A link and what it lives on.
struct SenderLink {
    link: fe2o3_amqp::Sender,
    /// Distinguishes this link from those before and after it.
    name: String,
    _session: OpenSession,
}

pub(crate) struct Amqp10Sender {
    config: Config,
    open: Mutex<Option<SenderLink>>,
}

impl adapter::Sender for Amqp10Sender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        Ok(Amqp10Sender { config, open: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        let opened = self.open().await?;
        *self.open.lock().await = Some(opened);
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let message = message_of(event, self.config.content_mode == MessageMode::Structured)?;
        // The lock covers the transfer, which keeps the order, and not the wait for the outcome.
        let (sent, name) = {
            let mut open = self.open.lock().await;
            let opened = match open.take() {
                Some(opened) => opened,
                None => self.open().await.map_err(SendError::unavailable)?,
            };
            let opened = open.insert(opened);
            let name = opened.name.clone();
            // A broker whose queue is full grants no credit.
            let sent = tokio::time::timeout(SINK_TIMEOUT, opened.link.send_batchable(message)).await;
            if sent.is_err() {
                open.take();
            }
            (sent.map_err(|_| self.timed_out("no credit"))?, name)
        };
        let outcome = match sent {
            Ok(outcome) => match tokio::time::timeout(SINK_TIMEOUT, outcome).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    self.open.lock().await.take_if(|opened| opened.name == name);
                    return Err(self.timed_out("no outcome"));
                }
            },
            Err(error) => Err(error),
        };
        match outcome {
            Ok(outcome) => verdict(outcome),
            Err(LinkError::MessageSizeExceeded(error)) => {
                Err(SendError::Rejected { status: Some(413), message: format!("AMQP 1.0: {error} bytes") })
            }
            Err(error) => {
                if !error.recovery().link_is_usable() {
                    // Another event may have opened a new link meanwhile.
                    self.open.lock().await.take_if(|opened| opened.name == name);
                }
                Err(SendError::unavailable(failed(&format!("send to {}", self.config.address), error).message))
            }
        }
    }
}

impl Amqp10Sender {
    fn timed_out(&self, what: &str) -> SendError {
        let address = &self.config.address;
        SendError::unavailable(format!("AMQP 1.0: send to {address}: {what} from the broker within {SINK_TIMEOUT:?}"))
    }

    async fn open(&self) -> Result<SenderLink, Error> {
        let name = format!("sluicegate-adapter-{}", uuid::Uuid::new_v4());
        let mut session = self.config.connection().open(&name).await?;
        let address = self.config.address.as_str();
        let target = Target::builder().address(address).durable(TerminusDurability::UnsettledState).build();
        let attach = fe2o3_amqp::Sender::builder().name(name.as_str()).target(target).attach(&mut session.session);
        let link = attached(address, attach).await?;
        Ok(SenderLink { link, name, _session: session })
    }
}

/// What the broker did with the message.
fn verdict(outcome: Outcome) -> Result<(), SendError> {
    match outcome {
        Outcome::Accepted(_) => Ok(()),
        Outcome::Rejected(rejected) => Err(rejection(rejected.error)),
        Outcome::Released(_) => Err(SendError::unavailable("AMQP 1.0: the broker released the message")),
        Outcome::Modified(modified) if modified.undeliverable_here == Some(true) => Err(SendError::Refused {
            status: None,
            message: "AMQP 1.0: the message is undeliverable at this address".to_owned(),
        }),
        Outcome::Modified(_) => Err(SendError::unavailable("AMQP 1.0: the broker did not take the message")),
    }
}

fn rejection(error: Option<AmqpCondition>) -> SendError {
    let message = match &error {
        Some(error) => format!("AMQP 1.0: the broker rejected the message: {error}"),
        None => "AMQP 1.0: the broker rejected the message".to_owned(),
    };
    match error.map(|error| error.condition) {
        Some(ErrorCondition::AmqpError(AmqpError::ResourceLimitExceeded | AmqpError::InternalError)) => {
            SendError::unavailable(message)
        }
        Some(ErrorCondition::AmqpError(
            AmqpError::NotFound | AmqpError::UnauthorizedAccess | AmqpError::NotAllowed | AmqpError::ResourceDeleted,
        )) => SendError::Refused { status: None, message },
        _ => SendError::Rejected { status: None, message },
    }
}
