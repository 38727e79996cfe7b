//! AMQP 1.0: the source address of a link as receiver, a target address as sender.
//!
//! A delivery is settled as `accepted` after the sink accepted its event. The credit of the link is the window: the broker
//! sends at most as many messages as may be unsettled.

use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Intake, SecretFile};
use fe2o3_amqp::link::RecvError;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::types::definitions::{AmqpError, Error as AmqpCondition};
use fe2o3_amqp::types::messaging::{Body, Modified, Source, TerminusDurability};
use fe2o3_amqp::types::primitives::Value;
use serde::Deserialize;

mod connection;
mod message;
mod sender;

use connection::{Amqp10Connection, attached, failed};
use message::event_of;
pub(crate) use sender::Amqp10Sender;

/// Messages that the broker sends before they are settled.
const CREDIT: u16 = 512;
/// The link, its session and the connection are closed within this time.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    /// The `hostname` of the open frame, where a broker chooses a virtual host by it. Default: the host.
    hostname: Option<String>,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    /// The source of the link, in the broker's form: `orders`, or `/queue/orders` in RabbitMQ 3.
    address: String,
    /// Names this client, so that a broker with durable subscriptions keeps them. Default: namespace and name of the object.
    container_id: Option<String>,
    /// Messages that may be unsettled.
    credit: Option<u16>,
    /// The broker keeps messages that are rejected, so they are left to it.
    #[serde(default)]
    dead_letter_queue: bool,
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

pub(crate) struct Amqp10Receiver {
    config: Config,
    source: String,
    container_id: String,
}

impl adapter::Receiver for Amqp10Receiver {
    type Config = Config;
    type Token = DeliveryInfo;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        if config.credit == Some(0) {
            return Err(Error::config("ADAPTER_RECEIVER: credit: must be at least 1, or no message can come"));
        }
        let source = format!("{}/{}", config.connection().source(), config.address.trim_start_matches('/'));
        let container_id = config.container_id.clone();
        let container_id = container_id.unwrap_or_else(|| format!("{}-{}", context.namespace, context.name));
        Ok(Amqp10Receiver { config, source, container_id })
    }

    fn keeps_rejected(&self) -> bool {
        self.config.dead_letter_queue
    }

    async fn receive(&mut self, intake: &mut Intake<DeliveryInfo>) -> Result<(), Error> {
        let mut open = self.config.connection().open(&self.container_id).await?;
        let address = self.config.address.as_str();
        // A queue that RabbitMQ declares is then durable.
        let source = Source::builder().address(address).durable(TerminusDurability::UnsettledState).build();
        let attach = fe2o3_amqp::Receiver::builder()
            .name(format!("{}:{address}", self.container_id))
            .source(source)
            .credit_mode(CreditMode::Manual)
            .attach(&mut open.session);
        let mut link = attached(address, attach).await?;
        let credit = u32::from(self.config.credit.unwrap_or(CREDIT));
        link.set_credit(credit).await.map_err(|error| failed("grant credit", error))?;
        intake.ready();
        let mut stop = intake.stop();
        while !intake.finished() {
            let (has_room, stopping) = (intake.has_room(), intake.stopping());
            tokio::select! {
                settled = intake.settled() => {
                    let mut settled = Some(settled);
                    while let Some((delivery, outcome)) = settled {
                        settle(&link, delivery, outcome).await?;
                        settled = intake.try_settled();
                    }
                }
                received = link.recv::<Body<Value>>(), if has_room => match received {
                    Ok(delivery) => {
                        let (info, message) = delivery.into_parts();
                        intake.push(event_of(message, &self.source), Some(address), info);
                    }
                    Err(RecvError::MessageDecode(error)) => {
                        tracing::error!(address, error = %error.source, "a message is malformed AMQP and is rejected");
                        let condition = AmqpCondition::new(AmqpError::DecodeError, None, None);
                        link.reject(error.info, condition).await.map_err(|error| failed("reject", error))?;
                    }
                    Err(error) => return Err(failed(&format!("receive from {address}"), error)),
                },
                () = stop.wait(), if !stopping => {
                    link.set_credit(0).await.map_err(|error| failed("withdraw credit", error))?;
                }
            }
            // Credit comes back in portions of half the window, so that not every message costs a flow frame.
            let used = link.credit() + u32::try_from(intake.pending()).unwrap_or(u32::MAX);
            if intake.has_room() && used <= credit / 2 {
                let free = credit - used + link.credit();
                link.set_credit(free).await.map_err(|error| failed("grant credit", error))?;
            }
        }
        // What was delivered and not taken goes back to the broker.
        let closed = tokio::time::timeout(CLOSE_TIMEOUT, async {
            let _ = link.close().await;
            open.close().await;
        });
        let _ = closed.await;
        Ok(())
    }
}

async fn settle(link: &fe2o3_amqp::Receiver, delivery: DeliveryInfo, outcome: DeliveryResult) -> Result<(), Error> {
    let settled = match outcome {
        DeliveryResult::Accepted => link.accept(delivery).await,
        DeliveryResult::Rejected { message, .. } => {
            let condition = AmqpCondition::new(AmqpError::PreconditionFailed, Some(message), None);
            link.reject(delivery, condition).await
        }
        // The sink was asked, so the broker counts an attempt.
        DeliveryResult::Released { status: Some(_), .. } => {
            let failed = Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: None };
            link.modify(delivery, failed).await
        }
        DeliveryResult::Released { .. } => link.release(delivery).await,
    };
    settled.map_err(|error| failed("settle", error))
}
