//! Shutdown of a core: at once, or by a step-by-step handover to another process.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ring::Tick;

use broker::events_service::EventsService;
use contract::table_publisher::TablePublisher;
use protocol::http::buffers::by;
use protocol::http::connection_tracker::ConnectionTracker;
use proxy::Proxy;

/// How long an idle connection may still send one more request after its process was replaced; most connections in use
/// do. Closing it at once could meet a request in flight.
pub(super) const HANDOVER_IDLE_MAX: Duration = Duration::from_secs(10);

/// The same for connections that send events: shorter, because the other process cannot accept events before.
pub const EVENTS_IDLE_MAX: Duration = Duration::from_secs(1);

/// Deliveries in flight may take this long before the logs are handed over; the other process repeats those that have
/// not ended by then (at least once).
pub const EVENTS_DRAIN_MAX: Duration = Duration::from_secs(5);

const NOTHING: u8 = 0;
const EVENTS: u8 = 1;
const GRACEFUL: u8 = 2;
const NOW: u8 = 3;

/// The stop signal, shared by all cores.
#[derive(Debug, Default)]
pub struct StopSignal {
    /// Only rises.
    signalled: AtomicU8,
    /// Another process still accepts on the same sockets.
    handover: AtomicBool,
    /// Cores that have released their logs. Only the thread that performs the handover waits for this lock.
    logs_released: Mutex<usize>,
    log_released: Condvar,
}

impl StopSignal {
    /// Stops all cores that read `tables`. They accept nothing more, finish and return.
    pub fn signal(&self, tables: &TablePublisher) {
        self.raise_level(NOW, tables);
    }

    /// The same, except that idle connections may send one more request: for a process whose listeners another one has
    /// taken over.
    pub fn signal_graceful(&self, tables: &TablePublisher) {
        self.raise_level(GRACEFUL, tables);
    }

    /// Stops only events: their connections and deliveries end, and the logs are released. Requests go on.
    pub fn signal_events(&self, tables: &TablePublisher) {
        self.raise_level(EVENTS, tables);
    }

    /// Waits until `cores` have released their logs; `false` after `timeout`.
    pub fn wait_for_events(&self, cores: usize, timeout: Duration) -> bool {
        let logs_released = self.logs_released.lock().unwrap_or_else(PoisonError::into_inner);
        let waited =
            self.log_released.wait_timeout_while(logs_released, timeout, |logs_released| *logs_released < cores);
        waited.is_ok_and(|(_, outcome)| !outcome.timed_out())
    }

    /// Sets whether another process, which is being replaced, still accepts on the same sockets.
    pub fn set_handover(&self, is_handover: bool) {
        self.handover.store(is_handover, SeqCst);
    }

    #[must_use]
    pub fn is_handover(&self) -> bool {
        self.handover.load(SeqCst)
    }

    #[must_use]
    pub fn is_signalled(&self) -> bool {
        self.stop_level() >= GRACEFUL
    }

    fn raise_level(&self, stop_level: u8, tables: &TablePublisher) {
        self.signalled.fetch_max(stop_level, SeqCst);
        tables.ring_all();
    }

    fn stop_level(&self) -> u8 {
        self.signalled.load(SeqCst)
    }

    fn mark_logs_released(&self) {
        *self.logs_released.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.log_released.notify_all();
    }
}

/// A core while it serves, and then while it shuts down.
pub(super) struct CoreShutdown {
    pub(super) proxy: Rc<Proxy>,
    pub(super) events: Option<Rc<dyn EventsService>>,
    /// Connections to the events listener.
    pub(super) senders: Rc<ConnectionTracker>,
    /// Connections of instances that call each other.
    pub(super) callers: Rc<ConnectionTracker>,
    /// Opens and closes the listeners of the table; called at each wake-up until the stop.
    pub(super) follow_table: Box<dyn Fn()>,
    pub(super) stop: Arc<StopSignal>,
    pub(super) drain_max: Duration,
}

impl CoreShutdown {
    /// Handles wake-ups until the stop; resolves when the core has drained.
    pub(super) async fn run(self) {
        let mut handover_started = false;
        while !self.stop.is_signalled() {
            self.proxy.ring.woken().await;
            self.proxy.on_wake();
            (self.follow_table)();
            let Some(events) = &self.events else { continue };
            if self.stop.stop_level() == NOTHING {
                events.on_wake();
            } else if !std::mem::replace(&mut handover_started, true) {
                let logs_released = self.handover_events(Rc::clone(events));
                self.proxy.ring.spawn(logs_released);
            }
        }
        if self.stop.stop_level() == GRACEFUL {
            self.proxy.tracker.close_acceptors();
            self.run_with_wakeups(HANDOVER_IDLE_MAX, GRACEFUL, poll_fn(|cx| self.proxy.tracker.poll_empty(cx))).await;
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
            self.callers.drain();
            poll_fn(|cx| self.callers.poll_empty(cx)).await;
        };
        if !self.run_with_wakeups(self.drain_max, NOW, drained).await {
            let open = proxy.tracker.open() + self.senders.open() + self.callers.open();
            tracing::warn!(open, "drain timeout reached, closing open connections");
        }
        if let Some(log) = proxy.access.get() {
            log.flush();
        }
        proxy.client.pool().clear();
        proxy.h2_client.clear();
    }

    /// Runs `main` for at most `limit` while handling wake-ups: a request that waits for an instance may still get one.
    /// A stop level beyond `word` ends it too. Returns whether `main` finished.
    async fn run_with_wakeups(&self, limit: Duration, stop_level: u8, main: impl Future<Output = ()>) -> bool {
        let mut main = pin!(main);
        let due: Tick = self.proxy.ring.now() + limit;
        loop {
            let mut woken = pin!(self.proxy.ring.woken());
            let either = poll_fn(|cx| match main.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => woken.as_mut().poll(cx).map(|_| false),
            });
            match by(&self.proxy.ring, Some(due), either).await {
                Ok(true) => return true,
                Err(_) => return false,
                Ok(false) => self.proxy.on_wake(),
            }
            if self.stop.stop_level() > stop_level {
                return false;
            }
        }
    }

    /// Ends event connections and deliveries, and releases the logs.
    fn handover_events(&self, events: Rc<dyn EventsService>) -> impl Future<Output = ()> + use<> {
        let (ring, senders, stop) = (self.proxy.ring.clone(), Rc::clone(&self.senders), Arc::clone(&self.stop));
        async move {
            senders.close_acceptors();
            let empty = poll_fn(|cx| senders.poll_empty(cx));
            let _ = by(&ring, Some(ring.now() + EVENTS_IDLE_MAX), empty).await; // a timeout continues as well
            senders.drain();
            let ended = async {
                poll_fn(|cx| senders.poll_empty(cx)).await;
                Rc::clone(&events).drain().await;
            };
            if by(&ring, Some(ring.now() + EVENTS_DRAIN_MAX), ended).await.is_err() {
                tracing::warn!("deliveries in flight are left to the next process, which repeats them");
            }
            events.release().await;
            stop.mark_logs_released();
        }
    }
}
