//! Retries a request whose pooled connection the instance had closed, or whose instance ended before it read the
//! request.

use std::rc::Rc;
use std::sync::Arc;

use codec::http::{Parsed, RequestHead, RequestView, parse_request};
use contract::client_address::ClientAddress;
use contract::table::{HeaderEdits, Protocol, RouteRequest};
use protocol::http::buffers::by;
use ring::Tick;

use super::upstream::UpstreamLink;
use super::{AcquireRequest, LocalReply, Permit, Proxy};

/// A request that may be sent again.
pub(super) struct ReplayableRequest<'a> {
    /// The protocol of the first attempt.
    pub(super) protocol: Protocol,
    /// Its instance may still be alive, and is tried first.
    pub(super) is_alive: bool,
    /// Begins with the head, as it was written for its instance.
    pub(super) written: &'a [u8],
    /// The host that the client asked for, where the route rewrites it.
    pub(super) original_host: Option<&'a str>,
    /// The client. `None`: the request is not sent to another instance.
    pub(super) peer: Option<&'a ClientAddress>,
    pub(super) due: Option<Tick>,
}

/// The host that the client asked for, where the route rewrites it: the written head does not contain it any more.
pub(super) fn original_host(edits: Option<&HeaderEdits>, request: RequestView<'_>) -> Option<Box<str>> {
    edits.and_then(HeaderEdits::host).map(|_| request.authority().into()) // one allocation for mapped domains
}

impl Proxy {
    /// Opens a new connection to the instance of `permit`. If that refuses it is reported, and the request goes to
    /// another instance, with a wait if needed, as does a request that meets such an instance first (SRV-REQ-08). All
    /// connections are new, so that the request does not meet another stale one.
    pub(super) async fn retry_upstream(
        self: &Rc<Self>,
        permit: Permit,
        replayable: &ReplayableRequest<'_>,
    ) -> Result<(Permit, UpstreamLink), LocalReply> {
        if replayable.is_alive
            && let Ok(link) = self
                .fresh_link(permit.backend(), &permit.endpoint, replayable.protocol, replayable.due, replayable.peer)
                .await
        {
            return Ok((permit, link));
        }
        by(&self.ring, replayable.due, self.retry_on_another(permit, replayable))
            .await
            .unwrap_or(Err(LocalReply::ResponseTimeout))
    }

    /// The head was written for the first backend, so only instances of that backend may get it (SRV-REQ-10).
    async fn retry_on_another(
        self: &Rc<Self>,
        mut refused: Permit,
        replayable: &ReplayableRequest<'_>,
    ) -> Result<(Permit, UpstreamLink), LocalReply> {
        let backend = Arc::clone(refused.backend());
        let unreachable = || LocalReply::UpstreamConnectFailure(backend.key.clone());
        let mut head = RequestHead::rewritten();
        let (Some(peer), Parsed::Head { bytes }) = (replayable.peer, parse_request(replayable.written, &mut head))
        else {
            return Err(unreachable());
        };
        let written = RouteRequest::client(head.view(&replayable.written[..bytes]), peer);
        let route_request = RouteRequest { host: replayable.original_host.unwrap_or(written.host), ..written };
        let mut acquire_request = AcquireRequest { route_request, bytes: replayable.written.len(), tried: Vec::new() };
        loop {
            acquire_request.tried.push(refused.endpoint.id);
            self.report_refused(&refused);
            let choice = refused.selected.clone();
            drop(refused); // releases its permit for other requests
            let permit = self.acquire(choice, &mut acquire_request).await?;
            if permit.backend().key != backend.key {
                return Err(unreachable());
            }
            let ReplayableRequest { protocol, due, .. } = *replayable;
            match self.fresh_link(permit.backend(), &permit.endpoint, protocol, due, Some(peer)).await {
                Ok(link) => return Ok((permit, link)),
                Err(_) => refused = permit,
            }
        }
    }
}
