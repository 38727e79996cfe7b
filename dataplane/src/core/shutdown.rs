//! How a core comes to its end: at once, or handing its work over to another process piece by piece.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ring::Tick;

use super::EventsService;
use crate::http::buffers::by;
use crate::http::connection_tracker::ConnectionTracker;
use crate::proxy::Proxy;
use crate::table_publisher::TablePublisher;

/// An idle connection may bring one more request for so long after its process was replaced; most that are in use
/// do. Closing it at once could meet a request on its way.
pub(super) const PARTING_IDLE_MAX: Duration = Duration::from_secs(10);

/// The same for connections that send events: shorter, because the other process cannot take events before.
pub const EVENTS_IDLE_MAX: Duration = Duration::from_secs(1);

/// Deliveries under way may take this long before the logs change hands; what has not ended by then the other
/// process delivers again (at least once).
pub const EVENTS_DRAIN_MAX: Duration = Duration::from_secs(5);

const NOTHING: u8 = 0;
const EVENTS: u8 = 1;
const GENTLY: u8 = 2;
const NOW: u8 = 3;

/// The word to stop, shared by all cores.
#[derive(Debug, Default)]
pub struct StopSignal {
    /// Only rises.
    signalled: AtomicU8,
    /// Another process still accepts on our sockets.
    handover: AtomicBool,
    /// Cores that have given their logs away. Nobody waits for this lock but who hands over.
    handed: Mutex<usize>,
    one_more: Condvar,
}

impl StopSignal {
    /// Says it to all cores that read `tables`. They take nothing more in, finish and return.
    pub fn signal(&self, tables: &TablePublisher) {
        self.rise(NOW, tables);
    }

    /// The same, except that connections which are idle may bring one more request: for a process whose
    /// listeners another one has.
    pub fn signal_graceful(&self, tables: &TablePublisher) {
        self.rise(GENTLY, tables);
    }

    /// Only events stop: their connections and deliveries end, and the logs are given away. Requests go on.
    pub fn signal_events(&self, tables: &TablePublisher) {
        self.rise(EVENTS, tables);
    }

    /// Waits until `cores` have given their logs away; `false` if that takes longer than `patience`.
    pub fn wait_for_events(&self, cores: usize, patience: Duration) -> bool {
        let handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.one_more.wait_timeout_while(handed, patience, |handed| *handed < cores);
        waited.is_ok_and(|(_, outcome)| !outcome.timed_out())
    }

    /// Says whether another process, which is being replaced, still accepts on our sockets.
    pub fn set_handover(&self, beside: bool) {
        self.handover.store(beside, SeqCst);
    }

    #[must_use]
    pub fn is_handover(&self) -> bool {
        self.handover.load(SeqCst)
    }

    #[must_use]
    pub fn is_signalled(&self) -> bool {
        self.word() >= GENTLY
    }

    fn rise(&self, word: u8, tables: &TablePublisher) {
        self.signalled.fetch_max(word, SeqCst);
        tables.ring_all();
    }

    fn word(&self) -> u8 {
        self.signalled.load(SeqCst)
    }

    fn events_handed(&self) {
        *self.handed.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.one_more.notify_all();
    }
}

/// A core while it serves, and then while it leaves.
pub(super) struct CoreShutdown {
    pub(super) proxy: Rc<Proxy>,
    pub(super) events: Option<Rc<dyn EventsService>>,
    /// Connections to the events listener.
    pub(super) senders: Rc<ConnectionTracker>,
    /// Connections of instances that call each other.
    pub(super) callees: Rc<ConnectionTracker>,
    pub(super) stop: Arc<StopSignal>,
    pub(super) drain_max: Duration,
}

impl CoreShutdown {
    /// Hears bells until the stop is said; resolves when the core has drained.
    pub(super) async fn run(self) {
        let mut handing = false;
        while !self.stop.is_signalled() {
            self.proxy.ring.woken().await;
            self.proxy.look();
            let Some(events) = &self.events else { continue };
            if self.stop.word() == NOTHING {
                events.look();
            } else if !std::mem::replace(&mut handing, true) {
                let handed = self.hand_over_events(Rc::clone(events));
                self.proxy.ring.spawn(handed);
            }
        }
        if self.stop.word() == GENTLY {
            self.proxy.tracker.close_acceptors();
            self.hearing(PARTING_IDLE_MAX, GENTLY, poll_fn(|cx| self.proxy.tracker.poll_empty(cx))).await;
        }
        self.drain().await;
    }

    async fn drain(&self) {
        let proxy = &self.proxy;
        proxy.tracker.drain();
        self.senders.drain();
        let drained = async {
            poll_fn(|cx| proxy.tracker.poll_empty(cx)).await;
            poll_fn(|cx| self.senders.poll_empty(cx)).await;
            if let Some(events) = &self.events {
                Rc::clone(events).drain().await;
            }
            self.callees.drain();
            poll_fn(|cx| self.callees.poll_empty(cx)).await;
        };
        if !self.hearing(self.drain_max, NOW, drained).await {
            let open = proxy.tracker.open() + self.senders.open() + self.callees.open();
            tracing::warn!(open, "drain limit reached, cutting what is open");
        }
        if let Some(log) = proxy.access.get() {
            log.flush();
        }
        proxy.client.pool().clear();
        proxy.h2_client.clear();
    }

    /// `main`, for at most `limit`, while bells are heard: who waits for an instance may still get one. A word
    /// beyond `word` ends it too. Whether it came to its end.
    async fn hearing(&self, limit: Duration, word: u8, main: impl Future<Output = ()>) -> bool {
        let mut main = pin!(main);
        let due: Tick = self.proxy.ring.now() + limit;
        loop {
            let mut bell = pin!(self.proxy.ring.woken());
            let either = poll_fn(|cx| match main.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => bell.as_mut().poll(cx).map(|_| false),
            });
            match by(&self.proxy.ring, Some(due), either).await {
                Ok(true) => return true,
                Err(_) => return false,
                Ok(false) => self.proxy.look(),
            }
            if self.stop.word() > word {
                return false;
            }
        }
    }

    /// Ends everything that has to do with events, and gives the logs away.
    fn hand_over_events(&self, events: Rc<dyn EventsService>) -> impl Future<Output = ()> + use<> {
        let (ring, senders, stop) = (self.proxy.ring.clone(), Rc::clone(&self.senders), Arc::clone(&self.stop));
        async move {
            senders.close_acceptors();
            let empty = poll_fn(|cx| senders.poll_empty(cx));
            let _ = by(&ring, Some(ring.now() + EVENTS_IDLE_MAX), empty).await; // either way, on to the next step
            senders.drain();
            let ended = async {
                poll_fn(|cx| senders.poll_empty(cx)).await;
                Rc::clone(&events).drain().await;
            };
            if by(&ring, Some(ring.now() + EVENTS_DRAIN_MAX), ended).await.is_err() {
                tracing::warn!("deliveries under way are left to the next process, which delivers them again");
            }
            events.release().await;
            stop.events_handed();
        }
    }
}
