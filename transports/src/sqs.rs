//! Amazon SQS: a queue as receiver and as sender.
//!
//! A message is deleted after the sink accepted its event. Until then its visibility timeout is extended, so it comes again
//! only if the adapter is gone. Messages of one group of a FIFO queue stay in order.

use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Intake, SecretFile};
use serde::Deserialize;

mod actions;
mod message;
mod queue;
mod sender;

use crate::aws::CredentialFiles;
use actions::SqsActions;
use message::event_of;
use queue::{BATCH_MAX, SqsMessage, SqsQueue, SqsQueueConfig};
pub(crate) use sender::SqsSender;

/// Without heartbeats for so long, SQS delivers a message again.
const VISIBILITY_TIMEOUT_SECONDS: u32 = 30;
/// SQS waits at most this long for a message.
const WAIT_SECONDS_MAX: u32 = 20;
/// Between polls that do not wait, so that an empty queue costs few requests.
const SHORT_POLL_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// The name or the ARN of the queue.
    arn: String,
    /// Default: the region of the ARN.
    region: Option<String>,
    /// The endpoint of another service with this protocol.
    uri_endpoint_override: Option<String>,
    access_key: Option<SecretFile>,
    secret_key: Option<SecretFile>,
    session_token: Option<SecretFile>,
    /// A directory with the credentials.
    secret: Option<PathBuf>,
    tls: Option<Tls>,
    #[serde(default)]
    auto_create_queue: bool,
    /// Seconds; default 30.
    visibility_timeout: Option<u32>,
    /// Seconds that SQS waits for a message; default 20.
    wait_time_seconds: Option<u32>,
    /// Messages of one poll, 1 to 10.
    max_messages_per_poll: Option<u32>,
}

impl Config {
    fn queue(&self) -> SqsQueueConfig {
        SqsQueueConfig {
            arn: self.arn.clone(),
            region: self.region.clone(),
            endpoint: self.uri_endpoint_override.clone(),
            credentials: CredentialFiles {
                secret: self.secret.clone(),
                access_key: self.access_key.clone(),
                secret_key: self.secret_key.clone(),
                session_token: self.session_token.clone(),
            },
            tls: self.tls.clone(),
            creates: self.auto_create_queue,
        }
    }
}

pub(crate) struct SqsReceiver {
    config: Config,
    queue: Rc<SqsQueue>,
}

/// What deletes a message.
pub(crate) type ReceiptHandle = String;

type Poll = Pin<Box<dyn Future<Output = Result<Vec<SqsMessage>, Error>>>>;

impl adapter::Receiver for SqsReceiver {
    type Config = Config;
    type Token = ReceiptHandle;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        let range = |field: &str, value: Option<u32>, min: u32, max: u32| match value {
            Some(value) if !(min..=max).contains(&value) => {
                Err(Error::config(format!("ADAPTER_RECEIVER: {field}: {value} is not between {min} and {max}")))
            }
            _ => Ok(()),
        };
        range("visibilityTimeout", config.visibility_timeout, 1, 43_200)?;
        range("waitTimeSeconds", config.wait_time_seconds, 0, WAIT_SECONDS_MAX)?;
        range("maxMessagesPerPoll", config.max_messages_per_poll, 1, BATCH_MAX as u32)?;
        let queue = Rc::new(SqsQueue::new(config.queue(), "ADAPTER_RECEIVER")?);
        Ok(SqsReceiver { config, queue })
    }

    /// The id of a message is the same at each delivery.
    fn qos_max(&self) -> u8 {
        2
    }

    async fn receive(&mut self, intake: &mut Intake<ReceiptHandle>) -> Result<(), Error> {
        let url: Rc<str> = self.queue.url().await?.into();
        let visibility = self.config.visibility_timeout.unwrap_or(VISIBILITY_TIMEOUT_SECONDS);
        let wait = self.config.wait_time_seconds.unwrap_or(WAIT_SECONDS_MAX);
        let messages = self.config.max_messages_per_poll.unwrap_or(BATCH_MAX as u32);
        intake.ready();
        let mut stop = intake.stop();
        let mut heartbeat = tokio::time::interval(Duration::from_secs(u64::from(visibility)) / 3);
        let mut poll: Option<Poll> = None;
        let mut actions = SqsActions::new(Rc::clone(&self.queue), Rc::clone(&url));
        while !(intake.finished() && actions.is_done()) {
            let stopping = intake.stopping();
            if poll.is_none() && intake.free_slots() >= BATCH_MAX {
                let (queue, url) = (Rc::clone(&self.queue), Rc::clone(&url));
                poll = Some(Box::pin(async move {
                    let received = queue.receive(&url, messages, wait, visibility).await?;
                    if received.is_empty() && wait == 0 {
                        tokio::time::sleep(SHORT_POLL_PAUSE).await;
                    }
                    Ok(received)
                }));
            }
            actions.start(visibility);
            tokio::select! {
                settled = intake.settled() => {
                    let mut settled = Some(settled);
                    while let Some((handle, outcome)) = settled {
                        match outcome {
                            DeliveryResult::Accepted | DeliveryResult::Rejected { .. } => actions.delete(handle),
                            DeliveryResult::Released { .. } => actions.release(handle),
                        }
                        settled = intake.try_settled();
                    }
                }
                finished = actions.finished() => finished?,
                messages = async { match &mut poll { Some(poll) => poll.await, None => std::future::pending().await } }, if !stopping => {
                    poll = None;
                    for message in messages? {
                        let event = event_of(&message);
                        intake.push(event, message.group.as_deref(), message.receipt_handle);
                    }
                }
                _ = heartbeat.tick() => {
                    actions.extend(intake.pending_tokens().cloned().collect());
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }
}
