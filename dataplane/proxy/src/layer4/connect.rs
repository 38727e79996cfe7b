//! Connects to an endpoint of the backend that a connection's route chooses.

use std::rc::Rc;

use contract::client_address::ClientAddress;
use contract::relay_counters::RelayOutcome;
use contract::table::{Protocol, Route};
use protocol::http::pool::UpstreamConnection;
use protocol::tls::Transport;
use ring::Tick;

use crate::upstream::{ConnectPlan, UpstreamLink};
use crate::{AcquireError, ConnectRequest, LocalReply, Permit, Proxy, SelectedEndpoint, pick};

use super::limits::RELAY_CONNECT_MAX;

/// A connection to an endpoint, which counts as long as the permit lives.
pub(super) struct RelayUpstream {
    pub(super) permit: Permit,
    pub(super) stream: Transport,
}

/// Draws a backend by weight.
///
/// # Errors
///
/// The route has none for this client.
pub(super) fn choose(proxy: &Proxy, route: &Route, client: &ClientAddress) -> Result<SelectedEndpoint, RelayOutcome> {
    let share =
        pick::split(route.connection_shares(), &mut proxy.rng.borrow_mut()).ok_or(RelayOutcome::NoHealthyUpstream)?;
    if let Some(filters) = &share.filters {
        if filters.access.as_ref().is_some_and(|access| !access.admits_address(client.canonical().ip())) {
            return Err(RelayOutcome::ClientDenied);
        }
        if filters.reply.is_some() {
            return Err(RelayOutcome::NoHealthyUpstream); // an invalid backend
        }
    }
    Ok(SelectedEndpoint::from(share))
}

/// Connects to an endpoint of `choice`. Endpoints that refuse are tried once.
pub(super) async fn reach(
    proxy: &Rc<Proxy>,
    choice: SelectedEndpoint,
    client: &ClientAddress,
) -> Result<RelayUpstream, RelayOutcome> {
    let due = proxy.ring.now() + RELAY_CONNECT_MAX;
    let mut request = RelayConnect { proxy, client, tried: Vec::new(), due };
    let (permit, link) = crate::connect::connect(proxy, choice, &mut request).await?;
    match link {
        UpstreamLink::Http1(upstream) => {
            let UpstreamConnection { stream, .. } = *upstream;
            Ok(RelayUpstream { permit, stream })
        }
        UpstreamLink::Http2(_) => unreachable!("the plan asks for a connection of its own"),
    }
}

struct RelayConnect<'a> {
    proxy: &'a Rc<Proxy>,
    client: &'a ClientAddress,
    tried: Vec<u64>,
    due: Tick,
}

impl ConnectRequest for RelayConnect<'_> {
    type Error = RelayOutcome;

    async fn acquire(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<RelayOutcome>> {
        let rejected = || {
            let key = choice.backend.key.clone();
            let is_first = self.tried.is_empty();
            let reply =
                if is_first { LocalReply::NoHealthyUpstream(key) } else { LocalReply::UpstreamConnectFailure(key) };
            AcquireError::Rejected(reply)
        };
        self.proxy.try_acquire(&choice, &self.tried).ok_or_else(rejected)
    }

    fn plan(&mut self, _: &Permit) -> ConnectPlan {
        ConnectPlan { protocol: Protocol::Http1, reuses: false, due: Some(self.due) }
    }

    fn peer(&self) -> Option<&ClientAddress> {
        Some(self.client)
    }

    fn tried(&mut self) -> &mut Vec<u64> {
        &mut self.tried
    }

    fn rejected(&self, local_reply: LocalReply) -> RelayOutcome {
        match local_reply {
            LocalReply::NoHealthyUpstream(_) | LocalReply::TargetRefused(_) => RelayOutcome::NoHealthyUpstream,
            LocalReply::UpstreamTlsVerificationFailed(..) => RelayOutcome::UpstreamTlsFailure,
            _ => RelayOutcome::ConnectFailure,
        }
    }
}
