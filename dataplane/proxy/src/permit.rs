//! A permit for one request in one instance: acquired at once or after a wait, released when dropped.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::task::Poll;
use std::time::Duration;

use codec::http::BodyFraming;
use contract::load::{BackendLoad, InFlightRequest};
use contract::request_histograms::RouteTag;
use contract::signal::Signal;
use contract::table::authentication::IdentityHeaders;
use contract::table::{
    Backend, BackendShare, Endpoint, HeaderChanges, HeaderEdits, MirrorSet, NoEndpointPolicy, RequestTimeouts,
    RouteFilters, RouteRequest, SessionAffinity, StartupDuration,
};
use protocol::http::buffers::{by, earlier};
use ring::Tick;

use super::deadlines::ResponseDeadlines;
use super::pending_queue::PendingTicket;
use super::{LocalReply, Proxy, pick};

/// Between two attempts to send `Demand` while the queue to control is full. Control drains thousands of signals in a
/// millisecond.
const DEMAND_RETRY: Duration = Duration::from_millis(5);

/// Between two rounds through instances that all refused the connection, while the request may wait.
const UNREACHABLE_RETRY: Duration = Duration::from_millis(20);

/// The traffic share that a request is routed to.
#[derive(Debug, Clone)]
pub struct SelectedEndpoint {
    pub backend: Arc<Backend>,
    pub filters: Option<Arc<RouteFilters>>,
    /// The traffic policy's decisions for this request.
    pub affinity: SessionAffinity,
    /// The mirrors among the filters that it is copied to.
    pub mirrors: MirrorSet,
    /// Changes to the head of the response, if they depend on the request.
    pub response: Option<Box<HeaderChanges>>,
    /// Set for an authenticated or authorized client whose backend is told who it is.
    pub(super) identity: Option<Arc<ClientIdentity>>,
}

/// What a backend is told about an authenticated client.
#[derive(Debug)]
pub(super) struct ClientIdentity {
    headers: Arc<HeaderEdits>,
    /// The edits of the route, and then `headers`.
    edits: HeaderEdits,
}

impl From<&BackendShare> for SelectedEndpoint {
    fn from(split: &BackendShare) -> Self {
        let (affinity, mirrors) = (SessionAffinity::default(), MirrorSet::default());
        let (backend, filters) = (Arc::clone(&split.backend), split.filters.clone());
        Self { backend, filters, affinity, mirrors, response: None, identity: None }
    }
}

impl SelectedEndpoint {
    /// The tag under which the request is counted.
    #[must_use]
    pub fn tag(&self, route_request: &RouteRequest<'_>) -> RouteTag {
        self.route_edits().map(|edits| edits.tag(route_request)).unwrap_or_default()
    }

    fn route_edits(&self) -> Option<&HeaderEdits> {
        self.filters.as_deref().map(|filters| &filters.request)
    }

    fn edits(&self) -> Option<&HeaderEdits> {
        self.identity.as_deref().map_or_else(|| self.route_edits(), |identity| Some(&identity.edits))
    }

    /// The client is authenticated. Its backend gets `headers`, which replace the client's own.
    pub(super) fn identify(&mut self, headers: IdentityHeaders) {
        self.identity = headers.map(|headers| {
            let mut edits = self.route_edits().cloned().unwrap_or_default();
            edits.append(&headers);
            Arc::new(ClientIdentity { headers, edits })
        });
    }

    /// Whether an authorization service is asked about its requests.
    #[inline]
    pub(super) fn needs_authorization(&self) -> bool {
        self.filters.as_ref().is_some_and(|filters| filters.external_authorization.is_some())
    }

    /// Its backend gets `later` too, after what it is told about an authenticated client.
    pub(super) fn identify_also(&mut self, later: &HeaderEdits) {
        let mut headers = self.identity.as_ref().map(|identity| (*identity.headers).clone()).unwrap_or_default();
        headers.append(later);
        self.identify((!headers.is_empty()).then(|| Arc::new(headers)));
    }

    /// The same client with another choice: a request is judged by the policy in force when it came.
    fn for_client_of(mut self, before: &Self) -> Self {
        self.identify(before.identity.as_ref().map(|identity| Arc::clone(&identity.headers)));
        self
    }

    /// The changes of the route to the response's head.
    pub(super) fn response_changes(&self) -> Option<&HeaderChanges> {
        self.response.as_deref().or_else(|| self.filters.as_deref().map(|filters| &filters.response))
    }

    /// Whether the route looks at the bodies of a request with this framing, or of its response.
    pub(super) fn reads_bodies(&self, framing: BodyFraming) -> bool {
        self.filters.as_ref().is_some_and(|filters| filters.reads_bodies(framing))
    }

    /// The timeouts of its requests: those of the rule, or else of the backend.
    #[must_use]
    pub fn timeouts(&self) -> &RequestTimeouts {
        let of_rule = self.filters.as_ref().and_then(|filters| filters.timeouts.as_deref());
        of_rule.unwrap_or(&self.backend.timeouts)
    }
}

/// One request's permit inside one instance.
pub struct Permit {
    pub endpoint: Arc<Endpoint>,
    pub selected: SelectedEndpoint,
    /// Set if the request waited; the inner value is its instance's start, if one started meanwhile.
    pub(super) waited: Option<Option<StartupDuration>>,
    proxy: Rc<Proxy>,
    /// Released before waiting requests are notified.
    active: Option<InFlightRequest>,
}

impl Permit {
    #[must_use]
    pub fn backend(&self) -> &Arc<Backend> {
        &self.selected.backend
    }

    /// The header edits of the route.
    #[must_use]
    pub fn edits(&self) -> Option<&HeaderEdits> {
        self.selected.edits()
    }

    /// The changes of the route to the response's head.
    pub(super) fn response_changes(&self) -> Option<&HeaderChanges> {
        self.selected.response_changes()
    }

    /// The deadlines of a request that began at `started` and has this permit now.
    pub(super) fn deadlines(&self, started: Tick) -> ResponseDeadlines {
        let mut deadlines = ResponseDeadlines::new(started, self.selected.timeouts());
        let wait = self.selected.filters.as_ref().map_or(Duration::ZERO, |filters| filters.backend_request);
        if !wait.is_zero() {
            deadlines.end_by(self.proxy.ring.now() + wait);
        }
        deadlines
    }

    /// The request has become a WebSocket. A drain that waits for requests does not wait for it.
    pub fn becomes_tunnel(&mut self) {
        if let Some(in_flight) = &mut self.active {
            in_flight.becomes_tunnel();
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

/// What a request needs to acquire a permit.
pub struct AcquireRequest<'a> {
    /// Used to look up the backend in a new table.
    pub route_request: RouteRequest<'a>,
    /// The memory that it occupies while it waits.
    pub bytes: usize,
    /// Instances that refused a connection for this request.
    pub tried: Vec<u64>,
}

impl Proxy {
    /// Returns a permit if one is free and no other request waits for it.
    #[must_use]
    pub fn try_acquire(self: &Rc<Self>, choice: &SelectedEndpoint, tried: &[u64]) -> Option<Permit> {
        let backend = &choice.backend;
        // A request to an instance without a limit takes nothing from requests that wait for another.
        let is_overtaking =
            backend.concurrency_max != 0 && backend.load.waiting.load(Relaxed) != 0 && backend.when_empty.waits();
        if is_overtaking || self.pending_queue.borrow().has_pending(&backend.key) {
            return None;
        }
        self.take_permit(choice, tried)
    }

    /// Acquires a permit. If none is free and the backend can scale, waits in the pending queue and asks control for an
    /// instance.
    pub async fn acquire(
        self: &Rc<Self>,
        mut choice: SelectedEndpoint,
        acquire_request: &mut AcquireRequest<'_>,
    ) -> Result<Permit, LocalReply> {
        if let Some(permit) = self.try_acquire(&choice, &acquire_request.tried) {
            return Ok(permit);
        }
        let started = self.ring.now();
        let first = Arc::clone(&choice.backend);
        let waited = |mut permit: Permit| {
            let is_new = first.endpoints.iter().all(|known| known.id != permit.endpoint.id);
            permit.waited = Some(permit.endpoint.start.as_ref().and_then(|born| born.start).filter(|_| is_new));
            permit
        };
        loop {
            let backend = &choice.backend;
            let due = match &backend.when_empty {
                NoEndpointPolicy::Wait { timeout } => started + *timeout,
                NoEndpointPolicy::Refuse if acquire_request.tried.is_empty() => {
                    return Err(LocalReply::NoHealthyUpstream(backend.key.clone()));
                }
                NoEndpointPolicy::Unavailable { reason } if acquire_request.tried.is_empty() => {
                    return Err(LocalReply::InstancesUnavailable(backend.key.clone(), **reason));
                }
                NoEndpointPolicy::Refuse | NoEndpointPolicy::Unavailable { .. } => {
                    return Err(LocalReply::UpstreamConnectFailure(backend.key.clone()));
                }
            };
            // The route's timeouts count from the request head, so they run on in the pending queue.
            let ends = ResponseDeadlines::new(started, choice.timeouts()).first_byte.filter(|ends| *ends < due);
            match self.wait(&choice, acquire_request, ends.unwrap_or(due)).await {
                Ok(WaitOutcome::Acquired(permit)) => return Ok(waited(permit)),
                Ok(WaitOutcome::Rerouted(other)) => choice = other.for_client_of(&choice),
                Err(LocalReply::QueueTimeout(_)) if ends.is_some() => return Err(LocalReply::ResponseTimeout),
                Err(local_reply) => return Err(local_reply),
            }
            if let Some(permit) = self.try_acquire(&choice, &acquire_request.tried) {
                return Ok(waited(permit));
            }
        }
    }

    fn take_permit(self: &Rc<Self>, choice: &SelectedEndpoint, tried: &[u64]) -> Option<Permit> {
        let backend = &choice.backend;
        let rng = &mut self.rng.borrow_mut();
        let mut pick = |left_out: &[u64]| match choice.affinity.key {
            Some(key) => pick::instance_of(backend, left_out, key),
            None => pick::instance(backend, left_out, rng),
        };
        let preferred = self.excluding_outliers(tried, &mut pick);
        let (endpoint, in_flight) = preferred.or_else(|| pick(tried))?;
        backend.load.in_flight.fetch_add(1, Relaxed);
        let proxy = Rc::clone(self);
        Some(Permit { endpoint, selected: choice.clone(), waited: None, proxy, active: Some(in_flight) })
    }

    /// Reports an instance that refused a connection. It is tried last for a while.
    pub(super) fn report_refused(&self, permit: &Permit) {
        let endpoint = permit.endpoint.id;
        let signal = Signal::Unreachable { backend: permit.backend().key.clone(), endpoint };
        let _ = self.signals.send(signal); // the next request that fails reports it again
        self.outliers.borrow_mut().refused(endpoint, self.ring.now());
        self.counters.outliers.fetch_add(1, Relaxed);
    }

    /// Calls `with` with `tried` and the ejected instances.
    fn excluding_outliers<T>(&self, tried: &[u64], with: impl FnOnce(&[u64]) -> T) -> T {
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
        acquire_request: &mut AcquireRequest<'_>,
        due: Tick,
    ) -> Result<WaitOutcome, LocalReply> {
        let mut pending = self.enqueue_request(&choice.backend, acquire_request.bytes)?;
        let mut choice = choice.clone();
        loop {
            if pending.is_first() {
                match self.reselect(&acquire_request.route_request, &choice)? {
                    Reselection::Same(now) => choice = now,
                    Reselection::Other(other) => return Ok(WaitOutcome::Rerouted(other)),
                }
                pending.backend = Arc::clone(&choice.backend);
                if pending.may_take()
                    && let Some(permit) = self.take_permit(&choice, &acquire_request.tried)
                {
                    // dropping `pending` removes the request and notifies the next
                    return Ok(WaitOutcome::Acquired(permit));
                }
                if !choice.backend.when_empty.waits() {
                    return Ok(WaitOutcome::Rerouted(choice));
                }
            }
            let backend = &choice.backend;
            let retry = self.retry_in(&pending, backend, acquire_request).map(|wait| self.ring.now() + wait);
            if by(&self.ring, earlier(Some(due), retry), pending.wait_turn()).await.is_err() && self.ring.now() >= due {
                let key = backend.key.clone();
                let refused = !acquire_request.tried.is_empty();
                return Err(if refused {
                    LocalReply::UpstreamConnectFailure(key)
                } else {
                    LocalReply::QueueTimeout(key)
                });
            }
            if retry.is_some_and(|at| self.ring.now() >= at) {
                acquire_request.tried.clear();
            }
        }
    }

    fn enqueue_request(self: &Rc<Self>, backend: &Arc<Backend>, bytes: usize) -> Result<PendingGuard, LocalReply> {
        let fair_queue = backend.load.queue();
        let front = fair_queue.front(self.number, &self.ring.wake_handle());
        let guard = self.pending_queue.borrow_mut().enqueue(&backend.key, bytes, fair_queue.next_ticket(), &front);
        let ticket = guard.map_err(|_| LocalReply::QueueFull)?;
        backend.load.waiting.fetch_add(1, Relaxed);
        // Pairs with the fence in `Proxy::permit_released`; the request checks for a permit after this.
        fence(SeqCst);
        let (backend, load) = (Arc::clone(backend), Arc::clone(&backend.load));
        Ok(PendingGuard { proxy: Rc::clone(self), backend, load, ticket: Some(ticket) })
    }

    /// The backend in the current table. When its route no longer leads there, a new backend is chosen; otherwise the
    /// request keeps its first choice (SRV-REQ-10).
    fn reselect(&self, route_request: &RouteRequest<'_>, choice: &SelectedEndpoint) -> Result<Reselection, LocalReply> {
        let backend = &choice.backend;
        let same = self.with_table(|table| {
            let splits = table.route_for(route_request)?.select(route_request);
            let leads = |split: &&BackendShare| split.backend.key == backend.key && split.reply().is_none();
            let mut leading = splits.iter().filter(leads);
            // Several shares may lead there, each with its own header edits.
            let first = leading.clone().next()?;
            let split = leading.find(|split| split.edits() == choice.route_edits()).unwrap_or(first);
            let (affinity, mirrors) = (choice.affinity, choice.mirrors);
            let response = choice.response.clone();
            let selected = SelectedEndpoint { affinity, mirrors, response, ..SelectedEndpoint::from(split) };
            Some(selected.for_client_of(choice))
        });
        match same {
            Some(now) if Arc::ptr_eq(&now.backend.load, &backend.load) => Ok(Reselection::Same(now)),
            // A backend of the same name replaced one that was deleted, and has its own queue.
            Some(now) => Ok(Reselection::Other(now)),
            None => self.choose(route_request).map(Reselection::Other),
        }
    }

    /// Asks for an instance if that has not been done. Returns how long until a retry is worthwhile.
    fn retry_in(
        &self,
        pending: &PendingGuard,
        backend: &Backend,
        acquire_request: &AcquireRequest<'_>,
    ) -> Option<Duration> {
        if !pending.is_first() {
            return None;
        }
        let asked = {
            let mut pending_queue = self.pending_queue.borrow_mut();
            let asked = pending_queue.is_demand_sent(&backend.key)
                || self.signals.send(Signal::Demand { backend: backend.key.clone() });
            pending_queue.set_demand_sent(&backend.key, asked);
            asked
        };
        if !asked {
            Some(DEMAND_RETRY)
        } else if acquire_request.tried.is_empty() {
            None
        } else {
            Some(UNREACHABLE_RETRY)
        }
    }
}

enum WaitOutcome {
    Acquired(Permit),
    /// The request goes to this backend now.
    Rerouted(SelectedEndpoint),
}

enum Reselection {
    Same(SelectedEndpoint),
    Other(SelectedEndpoint),
}

/// A request in the pending queue; removed when dropped.
struct PendingGuard {
    proxy: Rc<Proxy>,
    /// As of the last check.
    backend: Arc<Backend>,
    load: Arc<BackendLoad>,
    /// `None` only during drop.
    ticket: Option<PendingTicket>,
}

impl PendingGuard {
    fn is_first(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| self.proxy.pending_queue.borrow().is_first(ticket))
    }

    /// Whether the first request of this core may take a permit: no request on another core has waited much longer, or
    /// there are permits for all.
    fn may_take(&self) -> bool {
        let Backend { key, load, concurrency_max, .. } = &*self.backend;
        let pending_queue = self.proxy.pending_queue.borrow();
        let is_next = || pending_queue.front(key).is_some_and(|front| load.queue().may_proceed(front));
        *concurrency_max == 0 || is_next() || pick::has_capacity(&self.backend, load.waiting.load(Relaxed))
    }

    /// Resolves when a permit may be free.
    fn wait_turn(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| match &self.ticket {
            Some(ticket) if !self.proxy.pending_queue.borrow_mut().take_notification(ticket, cx.waker()) => {
                Poll::Pending
            }
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
        // A request on another core may have waited longer than the next one here, which then takes nothing.
        fence(SeqCst); // pairs with the fence in `Proxy::permit_released`
        if was_first && self.backend.concurrency_max != 0 && pick::has_capacity(&self.backend, 1) {
            self.proxy.permit_released(&self.backend);
        }
    }
}

#[cfg(test)]
mod tests;
