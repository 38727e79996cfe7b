//! Lanes: each takes events in order, sends them, and reports their outcomes.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, watch};

use crate::error::SendError;
use crate::event::Event;
use crate::intake::{DeliveryResult, Settled, Work};
use crate::limits::BATCH_BYTES_MAX;
use crate::parked::{ParkingFile, error_attributes};
use crate::response::Backoff;
use crate::sink::HttpSink;
use crate::status::{AdapterStatus, count};
use crate::traits::Sender;

/// A sender behind a pointer.
pub(crate) trait AnySender {
    fn batch_max(&self) -> usize;
    fn send<'a>(&'a self, events: &'a [&'a Event]) -> LocalBoxFuture<'a, Result<(), SendError>>;
}

impl<S: Sender> AnySender for S {
    fn batch_max(&self) -> usize {
        Sender::batch_max(self)
    }

    fn send<'a>(&'a self, events: &'a [&'a Event]) -> LocalBoxFuture<'a, Result<(), SendError>> {
        Box::pin(async move {
            match events {
                [event] => Sender::send(self, event).await,
                _ => self.send_batch(events).await,
            }
        })
    }
}

/// How events that are not accepted at once are handled.
pub(crate) struct SinkPolicy {
    /// Attempts after the first before the dead letter sink. `None`: without end. Without a dead letter sink it is not used.
    pub(crate) retry: Option<u32>,
    pub(crate) backoff: Backoff,
    pub(crate) dead_letter: Option<HttpSink>,
    pub(crate) parking: Option<ParkingFile>,
    /// The receiving protocol keeps rejected messages.
    pub(crate) keeps_rejected: bool,
    /// The receiving side retries by itself.
    pub(crate) relays: bool,
    pub(crate) qos: u8,
    /// Set on each event; replaces an attribute that it has.
    pub(crate) overrides: Vec<(String, String)>,
}

pub(crate) struct Delivery {
    pub(crate) sender: Rc<dyn AnySender>,
    pub(crate) policy: SinkPolicy,
    pub(crate) status: Rc<AdapterStatus>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Where a lane reports to.
type Reports = mpsc::UnboundedSender<Settled>;

impl Delivery {
    /// Runs one lane until its queue is closed.
    pub(crate) async fn run(self: Rc<Self>, mut queue: mpsc::UnboundedReceiver<Work>, reports: Reports) {
        while let Some(first) = queue.recv().await {
            let mut bytes = first.bytes;
            let mut batch = vec![first];
            while batch.len() < self.sender.batch_max() && bytes < BATCH_BYTES_MAX {
                let Ok(work) = queue.try_recv() else { break };
                bytes += work.bytes;
                batch.push(work);
            }
            for work in &mut batch {
                for (name, value) in &self.policy.overrides {
                    work.event.set(name, value.as_str());
                }
            }
            if self.policy.qos == 0 && !self.policy.relays {
                self.send_unreliably(batch, &reports).await;
            } else {
                self.send_reliably(batch, &reports).await;
            }
        }
    }

    /// Quality of service 0: settled before it is sent, sent once.
    async fn send_unreliably(&self, batch: Vec<Work>, reports: &Reports) {
        for work in &batch {
            let _ = reports.send((work.sequence, work.bytes, DeliveryResult::Accepted));
        }
        let events: Vec<&Event> = batch.iter().map(|work| &work.event).collect();
        let counters = &self.status.counters;
        match self.sender.send(&events).await {
            Ok(()) => count(&counters.accepted, events.len() as u64),
            Err(error) => {
                count(&counters.dropped, events.len() as u64);
                tracing::warn!(events = events.len(), %error, "events dropped at quality of service 0");
            }
        }
    }

    async fn send_reliably(&self, batch: Vec<Work>, reports: &Reports) {
        let mut parts = VecDeque::from([batch]);
        let mut attempt = 0;
        while let Some(part) = parts.pop_front() {
            let events: Vec<&Event> = part.iter().map(|work| &work.event).collect();
            let error = match self.sender.send(&events).await {
                Ok(()) => {
                    self.accepted(&part, reports);
                    attempt = 0;
                    continue;
                }
                Err(error) => error,
            };
            if self.policy.relays {
                self.relay(part, &error, reports);
                continue;
            }
            if matches!(error, SendError::Rejected { .. }) && part.len() > 1 {
                bisect(part, &mut parts);
                continue;
            }
            attempt += 1;
            if self.is_given_up(&error, attempt) {
                match self.give_up(part, &error, reports).await {
                    None => {
                        attempt = 0;
                        continue;
                    }
                    Some(part) => parts.push_front(part),
                }
            } else {
                parts.push_front(part);
            }
            if !self.pause(&error, attempt).await {
                for work in parts.into_iter().flatten() {
                    self.release(&work, &error, reports);
                }
                return;
            }
        }
    }

    fn accepted(&self, part: &[Work], reports: &Reports) {
        count(&self.status.counters.accepted, part.len() as u64);
        if self.status.set_sink(None) {
            tracing::info!("sink accepts events again");
        }
        for work in part {
            let _ = reports.send((work.sequence, work.bytes, DeliveryResult::Accepted));
        }
    }

    fn release(&self, work: &Work, error: &SendError, reports: &Reports) {
        count(&self.status.counters.released, 1);
        let retry_after = match error {
            SendError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let outcome = DeliveryResult::Released { status: error.status(), message: error.to_string(), retry_after };
        let _ = reports.send((work.sequence, work.bytes, outcome));
    }

    /// The receiving side gets the answer and decides.
    fn relay(&self, part: Vec<Work>, error: &SendError, reports: &Reports) {
        for work in part {
            if let SendError::Rejected { status, message } = error {
                count(&self.status.counters.rejected, 1);
                let outcome = DeliveryResult::Rejected { status: *status, message: message.clone() };
                let _ = reports.send((work.sequence, work.bytes, outcome));
            } else {
                self.release(&work, error, reports);
            }
        }
    }

    fn is_given_up(&self, error: &SendError, attempt: u32) -> bool {
        match error {
            SendError::Rejected { .. } => true,
            SendError::Refused { .. } => false,
            SendError::Unavailable { .. } => {
                self.policy.dead_letter.is_some() && self.policy.retry.is_some_and(|retry| attempt > retry)
            }
        }
    }

    /// Dead letter sink, else the protocol's own place, else the parking file. Returns the events if there is no place yet.
    async fn give_up(&self, part: Vec<Work>, error: &SendError, reports: &Reports) -> Option<Vec<Work>> {
        let counters = &self.status.counters;
        let mut part = VecDeque::from(part);
        while let Some(work) = part.front() {
            let outcome = if let Some(dead_letter) = &self.policy.dead_letter {
                let mut event = work.event.clone();
                for (name, value) in error_attributes(error) {
                    event.set(name, value);
                }
                if let Err(failure) = Sender::send(dead_letter, &event).await {
                    tracing::error!(id = event.id(), error = %failure, "dead letter sink did not take the event");
                    return Some(part.into());
                }
                count(&counters.dead_lettered, 1);
                tracing::warn!(id = event.id(), %error, "event went to the dead letter sink");
                DeliveryResult::Accepted
            } else if self.policy.keeps_rejected {
                count(&counters.rejected, 1);
                tracing::warn!(id = work.event.id(), %error, "event was rejected; the receiving protocol keeps it");
                DeliveryResult::Rejected { status: error.status(), message: error.to_string() }
            } else if let Some(parking) = &self.policy.parking {
                if let Err(failure) = parking.append(&work.event, error) {
                    tracing::error!(path = %parking.path().display(), error = %failure, "parking file cannot be written");
                    return Some(part.into());
                }
                count(&counters.parked, 1);
                tracing::warn!(id = work.event.id(), %error, path = %parking.path().display(), "event was rejected and is parked");
                DeliveryResult::Accepted
            } else {
                return Some(part.into());
            };
            let _ = reports.send((work.sequence, work.bytes, outcome));
            part.pop_front();
        }
        None
    }

    /// Waits for the next attempt. False: the adapter stops.
    async fn pause(&self, error: &SendError, attempt: u32) -> bool {
        count(&self.status.counters.retries, 1);
        let mut pause = self.policy.backoff.pause(attempt, &mut fastrand::Rng::new());
        match error {
            SendError::Unavailable { retry_after, .. } => pause = pause.max(retry_after.unwrap_or(Duration::ZERO)),
            SendError::Refused { .. } => self.hold("SinkRefusesEvents", error),
            SendError::Rejected { .. } => self.hold("EventRejected", error),
        }
        if attempt == 1 {
            tracing::warn!(%error, pause_ms = pause.as_millis(), "sink did not take an event; the adapter tries again");
        }
        let mut stop = self.stop.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            _ = stop.wait_for(|stop| *stop) => false,
        }
    }

    fn hold(&self, reason: &str, error: &SendError) {
        if self.status.set_sink(Some((reason, &error.to_string()))) {
            tracing::error!(reason, %error, "events are held until the sink takes them");
        }
    }
}

/// Halves a rejected batch, so that the bad event is found in few requests and the order stays.
fn bisect(mut part: Vec<Work>, parts: &mut VecDeque<Vec<Work>>) {
    let second = part.split_off(part.len() / 2);
    parts.push_front(second);
    parts.push_front(part);
}
