//! A place for one request in one instance: taken at once, waited for, given back when dropped.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::task::Poll;
use std::time::Duration;

use ring::Tick;

use super::exchange::ResponseDeadlines;
use super::pending_queue::PendingTicket;
use super::{LocalReply, Proxy, pick};
use crate::http::buffers::{by, earlier};
use crate::load::{BackendLoad, InFlightRequest};
use crate::request_histograms::RouteTag;
use crate::signal::Signal;
use crate::table::{
    Backend, BackendShare, Endpoint, HeaderEdits, NoEndpointPolicy, RouteRequest, SessionAffinity, StartupDuration,
};

/// Between two attempts to say `Demand` while the queue to control is full. Control drains thousands of
/// signals in a millisecond.
const DEMAND_RETRY: Duration = Duration::from_millis(5);

/// Between two rounds through instances that all refused the connection, while the request may wait.
const UNREACHABLE_RETRY: Duration = Duration::from_millis(20);

/// The share that a request fell to.
#[derive(Debug, Clone)]
pub struct SelectedEndpoint {
    pub backend: Arc<Backend>,
    pub edits: Option<Arc<HeaderEdits>>,
    /// What its route's manners make of the request.
    pub affinity: SessionAffinity,
}

impl From<&BackendShare> for SelectedEndpoint {
    fn from(split: &BackendShare) -> Self {
        Self { backend: Arc::clone(&split.backend), edits: split.edits.clone(), affinity: SessionAffinity::default() }
    }
}

impl SelectedEndpoint {
    /// Under which tag the request is counted.
    pub(crate) fn tag(&self, ask: &RouteRequest<'_>) -> RouteTag {
        self.edits.as_ref().map(|edits| edits.tag(ask)).unwrap_or_default()
    }
}

/// One request's place inside one instance.
pub struct Permit {
    pub endpoint: Arc<Endpoint>,
    pub selected: SelectedEndpoint,
    /// It was waited for; and how its instance came up meanwhile, if it did.
    pub(super) waited: Option<Option<StartupDuration>>,
    proxy: Rc<Proxy>,
    /// Given back before the others are told.
    active: Option<InFlightRequest>,
}

impl Permit {
    #[must_use]
    pub fn backend(&self) -> &Arc<Backend> {
        &self.selected.backend
    }

    /// What the route changes in the request.
    #[must_use]
    pub fn edits(&self) -> Option<&HeaderEdits> {
        self.selected.edits.as_deref()
    }

    /// Its request has become a WebSocket. Who waits for the end of requests need not wait for it.
    pub fn becomes_tunnel(&mut self) {
        if let Some(inside) = &mut self.active {
            inside.becomes_tunnel();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.active = None;
        self.backend().load.in_flight.fetch_sub(1, Relaxed);
        self.proxy.permit_released(self.backend());
    }
}

/// What a request wants, as far as places go.
pub struct AcquireRequest<'a> {
    /// To find the backend again in a new table.
    pub route_request: RouteRequest<'a>,
    /// What it holds while it waits.
    pub bytes: usize,
    /// Instances that refused a connection for this request.
    pub tried: Vec<u64>,
}

impl Proxy {
    /// A place at once, if there is one and nobody waits before us.
    #[must_use]
    pub fn try_acquire(self: &Rc<Self>, choice: &SelectedEndpoint, tried: &[u64]) -> Option<Permit> {
        let backend = &choice.backend;
        // Whoever is served by an unlimited instance takes nothing from those who wait for another.
        let is_overtaking =
            backend.concurrency_max != 0 && backend.load.waiting.load(Relaxed) != 0 && backend.when_empty.waits();
        if is_overtaking || self.pending_queue.borrow().anyone(&backend.key) {
            return None;
        }
        self.grasp(choice, tried)
    }

    /// A place at once or, where that makes sense, later: then it waits in the waiting room and asks
    /// control for an instance.
    pub async fn acquire(
        self: &Rc<Self>,
        mut choice: SelectedEndpoint,
        wish: &mut AcquireRequest<'_>,
    ) -> Result<Permit, LocalReply> {
        if let Some(place) = self.try_acquire(&choice, &wish.tried) {
            return Ok(place);
        }
        let started = self.ring.now();
        let first = Arc::clone(&choice.backend);
        let waited = |mut place: Permit| {
            let is_new = first.endpoints.iter().all(|known| known.id != place.endpoint.id);
            place.waited = Some(place.endpoint.start.as_ref().and_then(|born| born.start).filter(|_| is_new));
            place
        };
        loop {
            let backend = &choice.backend;
            let due = match backend.when_empty {
                NoEndpointPolicy::Wait { patience } => started + patience,
                NoEndpointPolicy::Refuse if wish.tried.is_empty() => {
                    return Err(LocalReply::NoHealthyUpstream(backend.key.clone()));
                }
                NoEndpointPolicy::Unavailable { reason } if wish.tried.is_empty() => {
                    return Err(LocalReply::InstancesUnavailable(backend.key.clone(), reason));
                }
                NoEndpointPolicy::Refuse | NoEndpointPolicy::Unavailable { .. } => {
                    return Err(LocalReply::UpstreamConnectFailure(backend.key.clone()));
                }
            };
            // The route's limits count from the request's head, so they go on in the waiting room.
            let ends = ResponseDeadlines::new(started, &backend.timeouts).first_byte.filter(|ends| *ends < due);
            match self.wait(&choice, wish, ends.unwrap_or(due)).await {
                Ok(WaitOutcome::Acquired(place)) => return Ok(waited(place)),
                Ok(WaitOutcome::Elsewhere(other)) => choice = other,
                Err(LocalReply::QueueTimeout(_)) if ends.is_some() => return Err(LocalReply::ResponseTimeout),
                Err(refusal) => return Err(refusal),
            }
            if let Some(place) = self.try_acquire(&choice, &wish.tried) {
                return Ok(waited(place));
            }
        }
    }

    fn grasp(self: &Rc<Self>, choice: &SelectedEndpoint, tried: &[u64]) -> Option<Permit> {
        let backend = &choice.backend;
        let rng = &mut self.rng.borrow_mut();
        let mut pick = |left_out: &[u64]| match choice.affinity.key {
            Some(key) => pick::instance_of(backend, left_out, key),
            None => pick::instance(backend, left_out, rng),
        };
        let willing = self.past_outliers(tried, &mut pick);
        let (endpoint, inside) = willing.or_else(|| pick(tried))?;
        backend.load.in_flight.fetch_add(1, Relaxed);
        let proxy = Rc::clone(self);
        Some(Permit { endpoint, selected: choice.clone(), waited: None, proxy, active: Some(inside) })
    }

    /// Reports an instance that refused a connection, which is asked last for a while.
    pub fn refused_by(&self, place: &Permit) {
        let endpoint = place.endpoint.id;
        let signal = Signal::Unreachable { backend: place.backend().key.clone(), endpoint };
        let _ = self.signals.send(signal); // the next request that meets it says it again
        self.outliers.borrow_mut().refused(endpoint, self.ring.now());
        self.counters.outliers.fetch_add(1, Relaxed);
    }

    /// Calls `with` with `tried` and those who are to be asked last.
    fn past_outliers<T>(&self, tried: &[u64], with: impl FnOnce(&[u64]) -> T) -> T {
        let outliers = self.outliers.borrow();
        if outliers.is_empty() {
            return with(tried);
        }
        let avoided: Vec<_> = outliers.avoided(self.ring.now()).chain(tried.iter().copied()).collect();
        drop(outliers);
        with(&avoided)
    }

    async fn wait(
        self: &Rc<Self>,
        choice: &SelectedEndpoint,
        wish: &mut AcquireRequest<'_>,
        due: Tick,
    ) -> Result<WaitOutcome, LocalReply> {
        let mut guest = self.sit_down(&choice.backend, wish.bytes)?;
        let mut choice = choice.clone();
        loop {
            if guest.is_first() {
                match self.reselect(&wish.route_request, &choice)? {
                    Reselection::Same(now) => choice = now,
                    Reselection::Other(other) => return Ok(WaitOutcome::Elsewhere(other)),
                }
                guest.backend = Arc::clone(&choice.backend);
                if guest.may_take()
                    && let Some(place) = self.grasp(&choice, &wish.tried)
                {
                    return Ok(WaitOutcome::Acquired(place)); // the guest gets up and the next one is called
                }
                if !choice.backend.when_empty.waits() {
                    return Ok(WaitOutcome::Elsewhere(choice));
                }
            }
            let backend = &choice.backend;
            let retry = self.retry_in(&guest, backend, wish).map(|wait| self.ring.now() + wait);
            if by(&self.ring, earlier(Some(due), retry), guest.wait_turn()).await.is_err() && self.ring.now() >= due {
                let key = backend.key.clone();
                let refused = !wish.tried.is_empty();
                return Err(if refused {
                    LocalReply::UpstreamConnectFailure(key)
                } else {
                    LocalReply::QueueTimeout(key)
                });
            }
            if retry.is_some_and(|at| self.ring.now() >= at) {
                wish.tried.clear();
            }
        }
    }

    fn sit_down(self: &Rc<Self>, backend: &Arc<Backend>, bytes: usize) -> Result<PendingGuard, LocalReply> {
        let line = backend.load.queue();
        let front = line.front(self.number, &self.ring.remote());
        let seat = self.pending_queue.borrow_mut().enqueue(&backend.key, bytes, line.next_ticket(), &front);
        let ticket = seat.map_err(|_| LocalReply::QueueFull)?;
        backend.load.waiting.fetch_add(1, Relaxed);
        // Pairs with the fence in `Proxy::place_freed`; the guest looks for a place after this.
        fence(SeqCst);
        let (backend, load) = (Arc::clone(backend), Arc::clone(&backend.load));
        Ok(PendingGuard { proxy: Rc::clone(self), backend, load, ticket: Some(ticket) })
    }

    /// The backend as the current table has it. When its route no longer leads there, the request is
    /// chosen a new one; while it does, it stays with its first choice (SRV-REQ-10).
    fn reselect(&self, ask: &RouteRequest<'_>, choice: &SelectedEndpoint) -> Result<Reselection, LocalReply> {
        let backend = &choice.backend;
        let same = self.with_table(|table| {
            let splits = table.route_for(ask)?.select(ask);
            let mut leading = splits.iter().filter(|split| split.backend.key == backend.key);
            // Several shares may lead there, each with changes of its own.
            let first = leading.clone().next()?;
            let split = leading.find(|split| split.edits == choice.edits).unwrap_or(first);
            Some(SelectedEndpoint { affinity: choice.affinity.clone(), ..SelectedEndpoint::from(split) })
        });
        match same {
            Some(now) if Arc::ptr_eq(&now.backend.load, &backend.load) => Ok(Reselection::Same(now)),
            // Another of the same name, after this one was deleted: it has a line of its own.
            Some(now) => Ok(Reselection::Other(now)),
            None => self.choose(ask).map(Reselection::Other),
        }
    }

    /// Asks for an instance if that has still to be done; how long until something is worth another try.
    fn retry_in(&self, guest: &PendingGuard, backend: &Backend, wish: &AcquireRequest<'_>) -> Option<Duration> {
        if !guest.is_first() {
            return None;
        }
        let asked = {
            let mut room = self.pending_queue.borrow_mut();
            let asked =
                room.is_demand_sent(&backend.key) || self.signals.send(Signal::Demand { backend: backend.key.clone() });
            room.set_demand_sent(&backend.key, asked);
            asked
        };
        if !asked {
            Some(DEMAND_RETRY)
        } else if wish.tried.is_empty() {
            None
        } else {
            Some(UNREACHABLE_RETRY)
        }
    }
}

enum WaitOutcome {
    Acquired(Permit),
    /// The request goes there now.
    Elsewhere(SelectedEndpoint),
}

enum Reselection {
    Same(SelectedEndpoint),
    Other(SelectedEndpoint),
}

/// Someone in the waiting room; gets up when dropped.
struct PendingGuard {
    proxy: Rc<Proxy>,
    /// As the last look had it.
    backend: Arc<Backend>,
    load: Arc<BackendLoad>,
    /// `None` only while it is dropped.
    ticket: Option<PendingTicket>,
}

impl PendingGuard {
    fn is_first(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| self.proxy.pending_queue.borrow().is_first(ticket))
    }

    /// Whether a place may be taken by the first guest of this core: nobody on another one has waited much longer, or
    /// there are places for all.
    fn may_take(&self) -> bool {
        let Backend { key, load, concurrency_max, .. } = &*self.backend;
        let room = self.proxy.pending_queue.borrow();
        let is_next = || room.front(key).is_some_and(|front| load.queue().may_proceed(front));
        *concurrency_max == 0 || is_next() || pick::has_capacity(&self.backend, load.waiting.load(Relaxed))
    }

    /// Resolves when a place may be free.
    fn wait_turn(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| match &self.ticket {
            Some(ticket) if !self.proxy.pending_queue.borrow_mut().take_call(ticket, cx.waker()) => Poll::Pending,
            _ => Poll::Ready(()),
        })
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.load.waiting.fetch_sub(1, Relaxed);
        let was_first = self.is_first();
        let next = self.ticket.take().and_then(|ticket| self.proxy.pending_queue.borrow_mut().remove(ticket));
        if let Some(waker) = next {
            waker.wake();
        }
        // One on another core may have waited longer than the next one here, who then takes nothing.
        fence(SeqCst); // pairs with that in `Proxy::place_freed`
        if was_first && self.backend.concurrency_max != 0 && pick::has_capacity(&self.backend, 1) {
            self.proxy.permit_released(&self.backend);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use ring::Ring;
    use ring::sim::{FaultProfile, Simulation};

    use super::*;
    use crate::fair_queue::AHEAD_MAX;
    use crate::http::limits::HttpLimits;
    use crate::proxy::ProxyConfig;
    use crate::proxy::pending_queue::PendingQueueLimits;
    use crate::signal::SignalQueue;
    use crate::table::{Protocol, RequestTimeouts, Route, RoutingTable};
    use crate::table_publisher::TablePublisher;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A host whose instances take `places` requests at a time, each.
    fn publish(tables: &TablePublisher, host: &str, places: u32, load: &Arc<BackendLoad>, instances: usize) {
        let endpoints = (0..instances).map(|_| Arc::new(Endpoint::new(([127, 0, 0, 1], 1).into())));
        let backend = Backend {
            key: "default/app".into(),
            endpoints: endpoints.collect(),
            concurrency_max: places,
            when_empty: NoEndpointPolicy::Wait { patience: PATIENCE },
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::NONE,
            load: Arc::clone(load),
        };
        let mut table = RoutingTable::default();
        table.hosts.insert(host, Arc::new(Route::of(vec![BackendShare::new(1, Arc::new(backend))])));
        tables.publish(table);
    }

    fn core(ring: &Ring, tables: &Arc<TablePublisher>) -> Rc<Proxy> {
        Proxy::new(ProxyConfig {
            ring: ring.clone(),
            tables: Arc::clone(tables),
            signals: SignalQueue::new(|| {}),
            counters: Arc::default(),
            limits: HttpLimits::default(),
            targets: Arc::default(),
            pending_limits: PendingQueueLimits::default(),
            seed: 1,
        })
    }

    /// Takes a place, notes who has it, and keeps it for a while.
    async fn visit(core: Rc<Proxy>, name: u32, served: Rc<RefCell<Vec<u32>>>) {
        let mut wish = AcquireRequest { route_request: RouteRequest::ours("app", "/"), bytes: 1, tried: Vec::new() };
        let choice = core.route(&wish.route_request).unwrap();
        let place = core.acquire(choice, &mut wish).await.unwrap();
        served.borrow_mut().push(name);
        core.ring.sleep(Duration::from_millis(1)).await;
        drop(place);
    }

    /// Runs `script` with two cores on one ring, whose bells are heard.
    fn on_two_cores<F: Future<Output = ()>>(places: u32, script: impl FnOnce([Rc<Proxy>; 2]) -> F) {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let tables = TablePublisher::new(RoutingTable::default());
        let cores = [core(&ring, &tables), core(&ring, &tables)];
        publish(&tables, "app", places, &Arc::default(), 1);
        let (heard, bell) = (cores.clone(), ring.clone());
        ring.spawn(async move {
            loop {
                bell.woken().await;
                heard.iter().for_each(|core| core.look());
            }
        });
        ring.block_on(script(cores));
        ring.shutdown();
    }

    /// SRV-REQ-08: a core that had guests of its own once gave them every place that became free, so that requests
    /// which another core had taken in waited for as long as it had guests.
    #[test]
    fn guests_leave_as_they_came_give_or_take_a_few_whatever_core_they_wait_on() {
        for places in [1, 3] {
            on_two_cores(places, async move |cores| {
                let (served, ring) = (Rc::<RefCell<Vec<u32>>>::default(), cores[0].ring.clone());
                for name in 0..40 {
                    let core = Rc::clone(&cores[usize::from(name % 2 == 1)]);
                    ring.spawn(visit(core, name, Rc::clone(&served)));
                    ring.sleep(Duration::from_micros(10)).await;
                }
                while served.borrow().len() < 40 {
                    ring.sleep(Duration::from_millis(1)).await;
                }
                let served = served.borrow();
                for (place, name) in served.iter().enumerate() {
                    let overtook = served[..place].iter().filter(|before| *before > name).count() as u64;
                    assert!(overtook <= AHEAD_MAX, "{places} at a time: {served:?}");
                }
            });
        }
    }

    /// A newcomer whose core has no guests is behind those of other cores.
    #[test]
    fn who_comes_again_and_again_does_not_keep_who_waits_on_another_core_waiting() {
        on_two_cores(1, async |cores| {
            let (served, ring) = (Rc::<RefCell<Vec<u32>>>::default(), cores[0].ring.clone());
            let (eager, own) = (Rc::clone(&cores[0]), Rc::clone(&served));
            ring.spawn(async move {
                for name in 0..50 {
                    visit(Rc::clone(&eager), name, Rc::clone(&own)).await;
                }
            });
            ring.sleep(Duration::from_micros(100)).await;
            visit(Rc::clone(&cores[1]), 1_000, Rc::clone(&served)).await;
            assert!(served.borrow().len() as u64 <= 2 + AHEAD_MAX, "{served:?}");
        });
    }

    /// SRV-REQ-08: a neighbour that is called by its short name is waited for like any other. Its request was once chosen
    /// anew without end, because only its first choice had completed the name, and its core did nothing else any more.
    #[test]
    fn a_neighbour_that_sleeps_is_waited_for_by_its_short_name() {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let (tables, load) = (TablePublisher::new(RoutingTable::default()), Arc::<BackendLoad>::default());
        let core = core(&ring, &tables);
        publish(&tables, "app.ns.svc", 1, &load, 0);
        let (known, caller) = (Arc::clone(&load), Rc::clone(&core));
        ring.spawn(async move {
            while known.waiting.load(Relaxed) == 0 {
                caller.ring.sleep(Duration::from_millis(1)).await;
            }
            publish(&tables, "app.ns.svc", 1, &known, 1);
            caller.look();
        });
        ring.block_on(async {
            let ask = RouteRequest { domain: Some("ns.svc"), ..RouteRequest::ours("app", "/") };
            let choice = core.route(&ask).unwrap();
            let mut wish = AcquireRequest { route_request: ask, bytes: 1, tried: Vec::new() };
            assert!(core.acquire(choice, &mut wish).await.is_ok());
        });
        assert_eq!(load.demand(), 0);
        ring.shutdown();
    }
}
