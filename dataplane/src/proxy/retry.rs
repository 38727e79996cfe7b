//! Another way for a request whose instance had closed the kept connection that it went by, or ended before it read it.

use std::rc::Rc;
use std::sync::Arc;

use ring::Tick;

use super::upstream::UpstreamLink;
use super::{AcquireRequest, LocalReply, Permit, Proxy};
use crate::http::buffers::by;
use crate::http::codec::{Parsed, RequestHead, parse_request};
use crate::http::headers::ClientAddress;
use crate::table::{Protocol, RouteRequest};

/// A request that may be sent again.
pub(super) struct ReplayableRequest<'a> {
    /// How the instance was spoken to.
    pub(super) protocol: Protocol,
    /// Its instance may still be there, and is asked first.
    pub(super) is_there: bool,
    /// It begins with the head, as that was written for its instance.
    pub(super) written: &'a [u8],
    /// The host that its client meant, where the instance is told another one.
    pub(super) original_host: Option<&'a str>,
    /// The client; none: it goes nowhere else.
    pub(super) peer: Option<&'a ClientAddress>,
    pub(super) due: Option<Tick>,
}

impl Proxy {
    /// A new connection to the instance of `place`. One that takes none any more is reported, and the request goes to another, waited
    /// for if need be, as does one that meets such an instance first (SRV-REQ-08). All connections are new, so that nobody is
    /// found gone twice.
    pub(super) async fn retry_upstream(
        self: &Rc<Self>,
        place: Permit,
        again: &ReplayableRequest<'_>,
    ) -> Result<(Permit, UpstreamLink), LocalReply> {
        if again.is_there
            && let Ok(link) = self.fresh_link(place.backend(), &place.endpoint, again.protocol, again.due).await
        {
            return Ok((place, link));
        }
        by(&self.ring, again.due, self.elsewhere(place, again)).await.unwrap_or(Err(LocalReply::ResponseTimeout))
    }

    /// The head is as its first choice wants it, so that only instances of that may get it (SRV-REQ-10).
    async fn elsewhere(
        self: &Rc<Self>,
        mut refused: Permit,
        again: &ReplayableRequest<'_>,
    ) -> Result<(Permit, UpstreamLink), LocalReply> {
        let backend = Arc::clone(refused.backend());
        let unreachable = || LocalReply::UpstreamConnectFailure(backend.key.clone());
        let mut head = RequestHead::rewritten();
        let (Some(peer), Parsed::Head { bytes }) = (again.peer, parse_request(again.written, &mut head)) else {
            return Err(unreachable());
        };
        let written = RouteRequest::client(head.view(&again.written[..bytes]), peer);
        let ask = RouteRequest { host: again.original_host.unwrap_or(written.host), ..written };
        let mut wish = AcquireRequest { route_request: ask, bytes: again.written.len(), tried: Vec::new() };
        loop {
            wish.tried.push(refused.endpoint.id);
            self.refused_by(&refused);
            let choice = refused.selected.clone();
            drop(refused); // its place is for others
            let place = self.acquire(choice, &mut wish).await?;
            if place.backend().key != backend.key {
                return Err(unreachable());
            }
            match self.fresh_link(place.backend(), &place.endpoint, again.protocol, again.due).await {
                Ok(link) => return Ok((place, link)),
                Err(_) => refused = place,
            }
        }
    }
}
