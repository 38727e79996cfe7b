//! Retries a request whose pooled connection the instance had closed, or whose instance ended before it read the
//! request.

use std::rc::Rc;
use std::sync::Arc;

use codec::http::{Parsed, RequestHead, parse_request};
use contract::client_address::ClientAddress;
use contract::table::{Backend, Protocol, RouteRequest};
use protocol::h2::limits::TRIES_MAX;
use protocol::http::buffers::by;
use protocol::http::limits::SENDS_MAX;
use ring::Tick;

use super::connect::{AcquireError, ConnectRequest, connect, eject};
use super::outcome::AttemptOutcome;
use super::route_filters::OriginalTarget;
use super::upstream::{ConnectPlan, UpstreamLink};
use super::{AcquireRequest, LocalReply, Permit, Proxy, SelectedEndpoint};

/// A request that may be sent again.
pub(super) struct ReplayableRequest<'a> {
    /// The protocol of the first attempt.
    pub(super) protocol: Protocol,
    /// Its instance may still be alive, and is tried first.
    pub(super) is_alive: bool,
    /// Begins with the head, as it was written for its instance.
    pub(super) written: &'a [u8],
    pub(super) original: Option<&'a OriginalTarget>,
    /// The client. `None`: the request is not sent to another instance.
    pub(super) peer: Option<&'a ClientAddress>,
    pub(super) due: Option<Tick>,
}

/// Opens a new connection to the instance of `permit`. If that refuses it is reported, and the request goes to another
/// instance, with a wait if needed, as does a request that meets such an instance first (SRV-REQ-08). All connections
/// are new, so that the request does not meet another stale one.
pub(super) async fn retry_upstream(
    proxy: &Rc<Proxy>,
    permit: Permit,
    replayable: &ReplayableRequest<'_>,
) -> Result<(Permit, UpstreamLink), LocalReply> {
    let ReplayableRequest { protocol, due, .. } = *replayable;
    if replayable.is_alive
        && let Ok(link) = proxy.link(&permit, ConnectPlan { protocol, reuses: false, due }, replayable.peer).await
    {
        return Ok((permit, link));
    }
    by(&proxy.ring, due, retry_on_another(proxy, permit, replayable)).await.unwrap_or(Err(LocalReply::ResponseTimeout))
}

/// The head was written for the first backend, so only instances of that backend may get it (SRV-REQ-10).
async fn retry_on_another(
    proxy: &Rc<Proxy>,
    refused: Permit,
    replayable: &ReplayableRequest<'_>,
) -> Result<(Permit, UpstreamLink), LocalReply> {
    let backend = Arc::clone(refused.backend());
    let mut head = RequestHead::rewritten();
    let (Some(peer), Parsed::Head { bytes }) = (replayable.peer, parse_request(replayable.written, &mut head)) else {
        return Err(LocalReply::UpstreamConnectFailure(backend.key.clone()));
    };
    let written = RouteRequest::client(head.view(&replayable.written[..bytes]), peer);
    let route_request = match replayable.original {
        Some(original) => RouteRequest { host: &original.host, path: &original.path, ..written },
        None => written,
    };
    let mut acquire_request = AcquireRequest { route_request, bytes: replayable.written.len(), tried: Vec::new() };
    let choice = eject(proxy, refused, &mut acquire_request.tried);
    let (protocol, due) = (replayable.protocol, replayable.due);
    connect(proxy, choice, &mut RetryConnect { proxy, acquire_request, backend, protocol, due }).await
}

/// A request on its way to another instance of the same backend.
struct RetryConnect<'a> {
    proxy: &'a Rc<Proxy>,
    acquire_request: AcquireRequest<'a>,
    backend: Arc<Backend>,
    protocol: Protocol,
    due: Option<Tick>,
}

impl ConnectRequest for RetryConnect<'_> {
    type Error = LocalReply;

    async fn acquire(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<LocalReply>> {
        let acquired = self.proxy.acquire(choice, &mut self.acquire_request).await;
        let permit = acquired.map_err(AcquireError::Rejected)?;
        if permit.backend().key != self.backend.key {
            return Err(AcquireError::Rejected(LocalReply::UpstreamConnectFailure(self.backend.key.clone())));
        }
        Ok(permit)
    }

    fn plan(&mut self, _: &Permit) -> ConnectPlan {
        ConnectPlan { protocol: self.protocol, reuses: false, due: self.due }
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

/// How often one request may be sent. The same for clients of both protocols.
pub(super) struct RetryBudget {
    repeatable: bool,
    sends: usize,
}

/// What follows an attempt.
pub(super) enum RetryDecision {
    /// The attempt decided the request.
    Ended(AttemptOutcome),
    /// `is_alive`: the instance may still be alive, and is tried first.
    Retry { is_alive: bool },
    /// There is no response, and the request may not be sent again.
    Exhausted,
}

impl RetryBudget {
    /// `repeatable`: the request is idempotent and complete, so an instance may get it twice.
    pub(super) fn new(repeatable: bool) -> Self {
        Self { repeatable, sends: 0 }
    }

    /// Called after each attempt. `body_started`: a part of the request body was read, and cannot be sent again.
    pub(super) fn decide(&mut self, outcome: AttemptOutcome, body_started: bool) -> RetryDecision {
        self.sends += 1;
        let (may, is_alive) = match outcome {
            AttemptOutcome::Stale => (self.repeatable && self.sends < SENDS_MAX, true),
            AttemptOutcome::Unread => (self.repeatable && self.sends < SENDS_MAX, false),
            AttemptOutcome::Unprocessed => (!body_started && self.sends < TRIES_MAX, true),
            ended => return RetryDecision::Ended(ended),
        };
        if may { RetryDecision::Retry { is_alive } } else { RetryDecision::Exhausted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries(mut budget: RetryBudget, outcome: impl Fn() -> AttemptOutcome, body_started: bool) -> usize {
        (0..).take_while(|_| matches!(budget.decide(outcome(), body_started), RetryDecision::Retry { .. })).count()
    }

    #[test]
    fn only_repeatable_request_is_sent_again_and_boundedly() {
        for lost in [|| AttemptOutcome::Stale, || AttemptOutcome::Unread] {
            assert_eq!(retries(RetryBudget::new(true), lost, true), SENDS_MAX - 1);
            assert_eq!(retries(RetryBudget::new(false), lost, false), 0);
        }
        let unprocessed = || AttemptOutcome::Unprocessed;
        assert_eq!(retries(RetryBudget::new(false), unprocessed, false), TRIES_MAX - 1);
        assert_eq!(retries(RetryBudget::new(true), unprocessed, true), 0);
        assert_eq!(retries(RetryBudget::new(true), || AttemptOutcome::Cut, false), 0);
    }

    #[test]
    fn instance_that_died_with_the_request_is_not_tried_first() {
        let first = |outcome| RetryBudget::new(true).decide(outcome, false);
        assert!(matches!(first(AttemptOutcome::Stale), RetryDecision::Retry { is_alive: true }));
        assert!(matches!(first(AttemptOutcome::Unread), RetryDecision::Retry { is_alive: false }));
        assert!(matches!(first(AttemptOutcome::Unprocessed), RetryDecision::Retry { is_alive: true }));
    }
}
