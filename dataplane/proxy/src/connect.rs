//! Acquires a permit and connects to its instance. An instance that refuses the connection is reported as an outlier,
//! and another one is tried.
//!
//! One loop for every request that goes to an instance: of HTTP/1 and HTTP/2 clients, retries, mirrored requests and
//! deliveries of events. They differ in how they wait and in what a rejection becomes: see [`ConnectRequest`].

use std::future::Future;
use std::rc::Rc;

use contract::client_address::ClientAddress;
use contract::target_policy::TargetRefused;
use ring::Tick;

use super::upstream::{ConnectPlan, TlsFailures, UpstreamLink};
use super::{AcquireRequest, LocalReply, Permit, Proxy, SelectedEndpoint};

/// A request that needs a connection to an instance.
pub trait ConnectRequest {
    type Error;

    /// Acquires a permit, after a wait if needed, in an instance that is not in [`ConnectRequest::tried`].
    fn acquire(&mut self, choice: SelectedEndpoint) -> impl Future<Output = Result<Permit, AcquireError<Self::Error>>>;

    /// How to connect to the instance of `permit`. Called once for each permit.
    fn plan(&mut self, permit: &Permit) -> ConnectPlan;

    /// The client that a connection with a PROXY header names. `None`: the request is the appliance's own.
    fn peer(&self) -> Option<&ClientAddress>;

    /// Instances that refused a connection for this request.
    fn tried(&mut self) -> &mut Vec<u64>;

    fn rejected(&self, local_reply: LocalReply) -> Self::Error;

    /// The deadline of [`ConnectPlan::due`] passed before there was a connection.
    fn timed_out(&self, permit: &Permit) -> Self::Error {
        let _ = permit;
        self.rejected(LocalReply::ResponseTimeout)
    }

    /// The target policy forbids the address of an instance. `None`: another instance is tried.
    fn target_refused(&self, permit: &Permit, refused: &TargetRefused) -> Option<Self::Error> {
        let _ = (permit, refused);
        None
    }
}

/// Why there is no permit.
pub enum AcquireError<E> {
    Rejected(LocalReply),
    /// The request has ended: its client is gone, for example.
    Ended(E),
}

/// Acquires a permit and a connection to its instance for `request`, whose first choice is `choice`.
///
/// # Errors
/// No instance accepted a connection in time, or the request ended.
pub async fn connect<R: ConnectRequest>(
    proxy: &Rc<Proxy>,
    mut choice: SelectedEndpoint,
    request: &mut R,
) -> Result<(Permit, UpstreamLink), R::Error> {
    let mut tls_failures = TlsFailures::default();
    loop {
        let permit = match request.acquire(choice).await {
            Ok(permit) => permit,
            Err(AcquireError::Rejected(why)) => return Err(request.rejected(tls_failures.explain(proxy, why))),
            Err(AcquireError::Ended(why)) => return Err(why),
        };
        let plan = request.plan(&permit);
        let why = match proxy.link(&permit, plan, request.peer()).await {
            Ok(link) => return Ok((permit, link)),
            Err(_) if plan.due.is_some_and(|due| proxy.ring.now() >= due) => return Err(request.timed_out(&permit)),
            Err(why) => why,
        };
        let refused = TargetRefused::of(&why);
        if let Some(ended) = refused.and_then(|refused| request.target_refused(&permit, refused)) {
            return Err(ended);
        }
        tls_failures.note(&why);
        choice = eject(proxy, permit, request.tried());
    }
}

/// Reports an instance that refused a connection, and releases its permit for other requests. Returns the choice for
/// the next attempt.
pub(super) fn eject(proxy: &Proxy, permit: Permit, tried: &mut Vec<u64>) -> SelectedEndpoint {
    tried.push(permit.endpoint.id);
    proxy.report_refused(&permit);
    permit.selected.clone()
}

/// [`connect`] for a request that only waits for its permit: of an HTTP/2 client, or mirrored.
pub(super) async fn reach(
    proxy: &Rc<Proxy>,
    choice: SelectedEndpoint,
    acquire_request: &mut AcquireRequest<'_>,
    started: Tick,
) -> Result<(Permit, UpstreamLink), LocalReply> {
    let upgrades = acquire_request.route_request.request.is_some_and(|request| request.head.is_upgrade());
    connect(proxy, choice, &mut StreamConnect { proxy, acquire_request, upgrades, started }).await
}

/// See [`reach`].
struct StreamConnect<'a, 'r> {
    proxy: &'a Rc<Proxy>,
    acquire_request: &'a mut AcquireRequest<'r>,
    upgrades: bool,
    started: Tick,
}

impl ConnectRequest for StreamConnect<'_, '_> {
    type Error = LocalReply;

    async fn acquire(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<LocalReply>> {
        self.proxy.acquire(choice, self.acquire_request).await.map_err(AcquireError::Rejected)
    }

    fn plan(&mut self, permit: &Permit) -> ConnectPlan {
        ConnectPlan::for_client(permit, self.upgrades, self.started)
    }

    fn peer(&self) -> Option<&ClientAddress> {
        self.acquire_request.route_request.peer
    }

    fn tried(&mut self) -> &mut Vec<u64> {
        &mut self.acquire_request.tried
    }

    fn rejected(&self, local_reply: LocalReply) -> LocalReply {
        local_reply
    }
}

/// [`connect`] for a request that does not wait for a permit: one that is mirrored to a backend, or that asks an authorization
/// service. No route leads it elsewhere.
pub(super) async fn reach_now(
    proxy: &Rc<Proxy>,
    choice: SelectedEndpoint,
    started: Tick,
) -> Result<(Permit, UpstreamLink), LocalReply> {
    connect(proxy, choice, &mut ImmediateConnect { proxy, tried: Vec::new(), started }).await
}

/// See [`reach_now`].
struct ImmediateConnect<'a> {
    proxy: &'a Rc<Proxy>,
    tried: Vec<u64>,
    started: Tick,
}

impl ConnectRequest for ImmediateConnect<'_> {
    type Error = LocalReply;

    async fn acquire(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<LocalReply>> {
        self.proxy.try_acquire(&choice, &self.tried).ok_or_else(|| {
            let key = choice.backend.key.clone();
            AcquireError::Rejected(match self.tried.is_empty() {
                true => LocalReply::NoHealthyUpstream(key),
                false => LocalReply::UpstreamConnectFailure(key),
            })
        })
    }

    fn plan(&mut self, permit: &Permit) -> ConnectPlan {
        ConnectPlan::for_client(permit, false, self.started)
    }

    fn peer(&self) -> Option<&ClientAddress> {
        None
    }

    fn tried(&mut self) -> &mut Vec<u64> {
        &mut self.tried
    }

    fn rejected(&self, local_reply: LocalReply) -> LocalReply {
        local_reply
    }
}
