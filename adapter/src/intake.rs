//! The queue between a receiver and the delivery: events and their acknowledgement tokens go in, outcomes come back.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::event::Event;
use crate::limits::{WINDOW_BYTES_MAX, WINDOW_EVENTS_MAX};
use crate::status::{AdapterStatus, count};

/// The outcome of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryResult {
    /// A 2xx, or a dead letter that is safe: acknowledge.
    Accepted,
    /// The sink will never take it, and the protocol said that it has a place for such messages.
    Rejected { status: Option<u16>, message: String },
    /// Not delivered: do not acknowledge; redeliver later.
    Released { status: Option<u16>, message: String, retry_after: Option<Duration> },
}

/// An event on its way to a lane.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) sequence: u64,
    pub(crate) event: Event,
    pub(crate) bytes: usize,
}

/// The results: sequence, bytes, outcome.
pub(crate) type Settled = (u64, usize, DeliveryResult);

/// The receiver's end.
pub struct Intake<T> {
    lanes: Vec<mpsc::UnboundedSender<Work>>,
    settled: mpsc::UnboundedReceiver<Settled>,
    stop: watch::Receiver<bool>,
    status: Rc<AdapterStatus>,
    tokens: HashMap<u64, T>,
    sequence: u64,
    pending_bytes: usize,
    window_events: usize,
}

impl<T> Intake<T> {
    pub(crate) fn new(
        lanes: Vec<mpsc::UnboundedSender<Work>>,
        settled: mpsc::UnboundedReceiver<Settled>,
        stop: watch::Receiver<bool>,
        status: Rc<AdapterStatus>,
    ) -> Intake<T> {
        Intake {
            lanes,
            settled,
            stop,
            status,
            tokens: HashMap::new(),
            sequence: 0,
            pending_bytes: 0,
            window_events: WINDOW_EVENTS_MAX,
        }
    }

    /// The subscription is confirmed by the foreign system: the adapter is ready.
    pub fn ready(&self) {
        if self.status.set_receiver(None) {
            tracing::info!("receiver is ready");
        }
    }

    /// Tells how many events the foreign system still has for this adapter, in how many partitions: `/readyz` shows it.
    pub fn set_lag(&self, events: u64, partitions: u32) {
        self.status.set_lag(events.saturating_add(self.tokens.len() as u64), partitions);
    }

    /// Whether more messages may be taken. A full sink makes this false; then take nothing more from the foreign system.
    pub fn has_room(&self) -> bool {
        !self.stopping() && self.tokens.len() < self.window_events && self.pending_bytes < WINDOW_BYTES_MAX
    }

    /// Messages that may still be taken.
    pub fn free_slots(&self) -> usize {
        if self.has_room() { self.window_events - self.tokens.len() } else { 0 }
    }

    /// Passes an event on. Events with the same key stay in order; without a key, no order is kept.
    pub fn push(&mut self, event: Event, key: Option<&str>, token: T) {
        self.sequence += 1;
        let bytes = event.bytes();
        let lane = match key {
            Some(key) => hash(key) % self.lanes.len() as u64,
            None => self.sequence % self.lanes.len() as u64,
        };
        count(&self.status.counters.received, 1);
        self.tokens.insert(self.sequence, token);
        self.pending_bytes += bytes;
        let work = Work { sequence: self.sequence, event, bytes };
        // A lane ends only with its session, and then the receiver's future has been dropped.
        let _ = self.lanes[usize::try_from(lane).unwrap_or(0)].send(work);
    }

    /// The next outcome. Waits forever while none is due. Safe to use in `select!`.
    pub async fn settled(&mut self) -> (T, DeliveryResult) {
        loop {
            let Some((sequence, bytes, outcome)) = self.settled.recv().await else {
                return std::future::pending().await;
            };
            self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
            if let Some(token) = self.tokens.remove(&sequence) {
                return (token, outcome);
            }
        }
    }

    /// An outcome that is there already.
    pub fn try_settled(&mut self) -> Option<(T, DeliveryResult)> {
        while let Ok((sequence, bytes, outcome)) = self.settled.try_recv() {
            self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
            if let Some(token) = self.tokens.remove(&sequence) {
                return Some((token, outcome));
            }
        }
        None
    }

    /// Events that are not settled.
    pub fn pending(&self) -> usize {
        self.tokens.len()
    }

    /// The acknowledgement tokens of the events that are not settled, in no order.
    pub fn pending_tokens(&self) -> impl Iterator<Item = &T> {
        self.tokens.values()
    }

    /// The adapter stops, or its configuration changed: take no more, settle what is pending, return.
    pub fn stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Whether the receiver may return: it stops and nothing is pending.
    pub fn finished(&self) -> bool {
        self.stopping() && self.tokens.is_empty()
    }

    /// A future for the stop, to be combined with [`Intake::settled`] in one `select!`.
    pub fn stop(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Waits until nothing is pending.
    pub async fn settle_all(&mut self) {
        while !self.tokens.is_empty() {
            self.settled().await;
        }
    }
}

/// What is pending when the connection ends was received and is not settled here: the foreign system delivers it again.
impl<T> Drop for Intake<T> {
    fn drop(&mut self) {
        while self.try_settled().is_some() {}
        count(&self.status.counters.released, self.tokens.len() as u64);
    }
}

/// Waits for the stop of the adapter.
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Returns once the adapter stops.
    pub async fn wait(&mut self) {
        // An error means that the sender is gone, which is a stop too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// FNV-1a: the same key goes to the same lane.
fn hash(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_connection_leaves_nothing_pending() {
        let (lane, _work) = mpsc::unbounded_channel();
        let (reports, settled) = mpsc::unbounded_channel();
        let (_stop, stopped) = watch::channel(false);
        let status = Rc::new(AdapterStatus::new(1));
        let mut intake = Intake::new(vec![lane], settled, stopped, Rc::clone(&status));
        for id in ["1", "2", "3"] {
            intake.push(Event::new("t", "/s", id), None, ());
        }
        count(&status.counters.accepted, 1);
        reports.send((1, 0, DeliveryResult::Accepted)).unwrap();
        drop(intake);
        assert_eq!(status.counters.released.get(), 2);
        assert!(status.to_metrics().contains("adapter_events_pending 0\n"), "{}", status.to_metrics());
    }
}
