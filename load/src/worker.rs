//! One thread of a test: when its clients send, and what they report.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ring::{Notify, Ring, Tick};

use crate::deadline::RequestDeadline;
use crate::error::RequestFailure;
use crate::profile::ArrivalTimes;
use crate::recorder::Recorder;
use crate::request::EventIds;
use crate::response::CompleteResponse;
use crate::spec::CheckedSpec;

/// When the clients of a thread send.
#[derive(Debug)]
pub(crate) enum Pacing {
    /// At once.
    Closed,
    /// Each idle client takes the next arrival and waits for it. So arrivals that find no idle client are sent in order, late,
    /// and their latency counts from when they were due.
    Open(ArrivalTimes),
}

/// A request that a client shall send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DueRequest {
    /// When it was due: latency counts from here.
    pub(crate) due: Tick,
    /// The client has waited for it, so its connection was idle.
    pub(crate) has_waited: bool,
}

/// What the clients of a thread share.
pub(crate) struct Worker {
    pub(crate) ring: Ring,
    pub(crate) checked: Arc<CheckedSpec>,
    pub(crate) event_ids: RefCell<EventIds>,
    pub(crate) recorder: RefCell<Recorder>,
    pacing: RefCell<Pacing>,
    /// Requests of the measured part that may still begin.
    left: Cell<u64>,
    deadlines: RefCell<Vec<Rc<RequestDeadline>>>,
    start: Cell<Tick>,
    /// The start of the measured part.
    measured_from: Cell<Tick>,
    /// No request begins after it.
    end: Cell<Tick>,
    /// Clients that have not finished.
    clients: Cell<usize>,
    in_flight: Cell<usize>,
    /// A client has finished, or the last responses come in.
    pub(crate) changed: Notify,
}

impl Worker {
    pub(crate) fn new(ring: Ring, checked: Arc<CheckedSpec>, event_ids: EventIds, pacing: Pacing, left: u64) -> Self {
        Self {
            ring,
            checked,
            event_ids: RefCell::new(event_ids),
            recorder: RefCell::default(),
            pacing: RefCell::new(pacing),
            left: Cell::new(left),
            deadlines: RefCell::default(),
            start: Cell::new(Tick::ZERO),
            measured_from: Cell::new(Tick::ZERO),
            end: Cell::new(Tick::ZERO),
            clients: Cell::new(0),
            in_flight: Cell::new(0),
            changed: Notify::default(),
        }
    }

    /// Begins the test now.
    pub(crate) fn begin(&self) {
        let (start, spec) = (self.ring.now(), &self.checked);
        self.start.set(start);
        self.measured_from.set(start + spec.spec.warm_up);
        let all = spec.duration.map_or(Duration::MAX, |duration| spec.spec.warm_up + duration);
        self.end.set(start + all);
    }

    pub(crate) fn measured_from(&self) -> Tick {
        self.measured_from.get()
    }

    pub(crate) fn end(&self) -> Tick {
        self.end.get()
    }

    /// Ends the test now; requests in flight are awaited.
    pub(crate) fn stop(&self) {
        self.end.set(self.end.get().min(self.ring.now()));
    }

    /// No request is in flight, and none begins.
    pub(crate) fn is_done(&self) -> bool {
        self.clients.get() == 0 || (self.ring.now() >= self.end.get() && self.in_flight.get() == 0)
    }

    /// Requests that were due before the end and were not sent.
    pub(crate) fn unsent(&self) -> u64 {
        match &*self.pacing.borrow() {
            Pacing::Closed => 0,
            Pacing::Open(times) => times.overdue(self.end.get() - self.start.get()).min(self.left.get()),
        }
    }

    /// The next request of a client, when it is due; `None` at the end of the test.
    #[inline]
    pub(crate) async fn next(&self) -> Option<DueRequest> {
        let now = self.ring.now();
        if now >= self.end.get() {
            return None;
        }
        let due = match &mut *self.pacing.borrow_mut() {
            Pacing::Closed => now,
            Pacing::Open(times) => self.start.get() + times.next()?,
        };
        if due >= self.measured_from.get() {
            let left = self.left.get().checked_sub(1)?;
            self.left.set(left);
        }
        let has_waited = due > now;
        if has_waited {
            self.ring.sleep_until(due).await;
            if self.ring.now() >= self.end.get() && due >= self.end.get() {
                return None;
            }
        }
        self.in_flight.set(self.in_flight.get() + 1);
        Some(DueRequest { due, has_waited })
    }

    /// The response to a request.
    #[inline]
    pub(crate) fn record(&self, request: DueRequest, response: &CompleteResponse) {
        let now = self.ring.now();
        self.finish(now);
        if request.due >= self.measured_from.get() {
            let (latency, since_start) = (now - request.due, now - self.measured_from.get());
            self.recorder.borrow_mut().record(response, latency, since_start, now <= self.end.get());
        }
    }

    /// A request has failed.
    pub(crate) fn record_failure(&self, request: DueRequest, failure: &RequestFailure) {
        self.finish(self.ring.now());
        if request.due >= self.measured_from.get() {
            self.recorder.borrow_mut().record_failure(failure);
        }
    }

    /// Received bytes of no single response.
    pub(crate) fn add_bytes(&self, bytes: usize) {
        if self.ring.now() >= self.measured_from.get() {
            self.recorder.borrow_mut().add_bytes(bytes as u64);
        }
    }

    fn finish(&self, now: Tick) {
        self.in_flight.set(self.in_flight.get() - 1);
        if now >= self.end.get() {
            self.changed.ring();
        }
    }

    /// The deadline of a client's requests.
    pub(crate) fn deadline(&self) -> Rc<RequestDeadline> {
        let deadline = Rc::<RequestDeadline>::default();
        self.deadlines.borrow_mut().push(Rc::clone(&deadline));
        deadline
    }

    pub(crate) fn check_deadlines(&self) {
        let now = self.ring.now();
        self.deadlines.borrow().iter().for_each(|deadline| deadline.check(now));
    }

    /// When a request that begins now times out.
    #[inline]
    pub(crate) fn timeout_at(&self) -> Tick {
        self.ring.now() + self.checked.spec.timeout
    }

    /// Counts a client until the result is dropped.
    pub(crate) fn client(self: &Rc<Self>) -> ActiveClient {
        self.clients.set(self.clients.get() + 1);
        ActiveClient(Rc::clone(self))
    }
}

/// See [`Worker::client`].
pub(crate) struct ActiveClient(Rc<Worker>);

impl Drop for ActiveClient {
    fn drop(&mut self) {
        self.0.clients.set(self.0.clients.get() - 1);
        self.0.changed.ring();
    }
}
