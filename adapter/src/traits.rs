//! The traits that a transport implements.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::Context;
use crate::error::{Error, SendError};
use crate::event::Event;
use crate::intake::Intake;

/// Takes events from a foreign system.
#[allow(async_fn_in_trait, reason = "an adapter is one thread: no future has to be Send")]
pub trait Receiver: Sized + 'static {
    /// The `source` section. Derive `Deserialize` with `deny_unknown_fields`: errors then name the field.
    type Config: DeserializeOwned;
    /// The acknowledgement token of a message of the foreign system.
    type Token: 'static;
    /// The foreign system waits for the answer and retries by itself, so the adapter sends once and relays the outcome.
    const RELAYS: bool = false;

    fn new(config: Self::Config, context: &Context) -> Result<Self, Error>;

    /// The best quality of service of this configuration: 0 without acknowledgements, 2 only if ids are the same after a
    /// redelivery, so that a sink can drop duplicates.
    fn qos_max(&self) -> u8 {
        1
    }

    /// The protocol has its own place for messages that the sink rejects: it is given [`crate::DeliveryResult::Rejected`].
    fn keeps_rejected(&self) -> bool {
        false
    }

    /// Connects, calls [`Intake::ready`], and passes messages on until [`Intake::stopping`] and all are settled.
    /// After an error it is called again; events of the lost connection are no longer pending then.
    async fn receive(&mut self, intake: &mut Intake<Self::Token>) -> Result<(), Error>;
}

/// Puts events into a foreign system.
#[allow(async_fn_in_trait, reason = "an adapter is one thread: no future has to be Send")]
pub trait Sender: Sized + 'static {
    /// The `sink` section.
    type Config: DeserializeOwned;

    fn new(config: Self::Config, context: &Context) -> Result<Self, Error>;

    /// Connects, for readiness. Called until it succeeds.
    async fn connect(&self) -> Result<(), Error>;

    /// Returns once the foreign system has confirmed the event. Many calls run at the same time.
    async fn send(&self, event: &Event) -> Result<(), SendError>;

    /// Events that [`Sender::send_batch`] takes at once.
    fn batch_max(&self) -> usize {
        1
    }

    /// All or nothing.
    async fn send_batch(&self, events: &[&Event]) -> Result<(), SendError> {
        for event in events {
            self.send(event).await?;
        }
        Ok(())
    }
}

/// The configuration of a direction that a transport does not have.
#[derive(Debug, Deserialize)]
pub struct UnsupportedDirection {}

/// For a transport that only sends.
#[derive(Debug)]
pub struct NoReceiver;

impl Receiver for NoReceiver {
    type Config = UnsupportedDirection;
    type Token = ();
    fn new(_: UnsupportedDirection, _: &Context) -> Result<Self, Error> {
        Err(Error::config("ADAPTER_RECEIVER: this transport only sends; set ADAPTER_SENDER instead"))
    }

    async fn receive(&mut self, _: &mut Intake<()>) -> Result<(), Error> {
        Ok(())
    }
}

/// For a transport that only receives.
#[derive(Debug)]
pub struct NoSender;

impl Sender for NoSender {
    type Config = UnsupportedDirection;

    fn new(_: UnsupportedDirection, _: &Context) -> Result<Self, Error> {
        Err(Error::config("ADAPTER_SENDER: this transport only receives; give a sink as {\"sinkUri\": \"http://...\"}"))
    }

    async fn connect(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn send(&self, _: &Event) -> Result<(), SendError> {
        Err(SendError::rejected("this transport only receives"))
    }
}
