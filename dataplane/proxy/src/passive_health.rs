//! Passive health checks of given addresses: what the outcome of a request says about its endpoint.
//!
//! Only for backends whose instances are not the appliance's own (`--route`, core Services): their failures end with a restart
//! of the instance. An application's 500 says little about one instance, so several in a row count; a timeout counts at once.

use std::sync::atomic::Ordering::Relaxed;

use contract::table::EndpointAddress;

use super::outcome::AttemptOutcome;
use super::outliers::EndpointFailure;
use super::{LocalReply, Permit, Proxy};

/// The endpoint of a request whose outcome counts, by its id.
#[derive(Clone, Copy)]
pub(super) struct CountedEndpoint {
    id: u64,
    /// For the log.
    address: EndpointAddress,
}

/// `None`: there is no other endpoint to prefer, or the instances are the appliance's own.
pub(super) fn counted_endpoint(permit: &Permit) -> Option<CountedEndpoint> {
    let (backend, endpoint) = (permit.backend(), &permit.endpoint);
    let counts = backend.endpoints.len() > 1 && backend.timeouts.after_request;
    counts.then_some(CountedEndpoint { id: endpoint.id, address: endpoint.address })
}

/// What an outcome says about the endpoint. `None`: nothing.
fn verdict(outcome: &AttemptOutcome) -> Option<Result<(), EndpointFailure>> {
    match outcome {
        AttemptOutcome::Done { status: 500.., .. } => Some(Err(EndpointFailure::ServerError)),
        AttemptOutcome::Done { .. } | AttemptOutcome::Switched => Some(Ok(())),
        AttemptOutcome::Refused(LocalReply::ResponseTimeout) => Some(Err(EndpointFailure::Timeout)),
        AttemptOutcome::Refused(
            LocalReply::UpstreamClosed(_)
            | LocalReply::UpstreamReset(..)
            | LocalReply::UpstreamMalformed(..)
            | LocalReply::UpstreamProtocolError(..),
        ) => Some(Err(EndpointFailure::ServerError)),
        AttemptOutcome::Refused(_)
        | AttemptOutcome::Cut
        | AttemptOutcome::Stale
        | AttemptOutcome::Unread
        | AttemptOutcome::Unprocessed => None,
    }
}

impl Proxy {
    /// Counts the outcome of a request for its endpoint.
    pub(super) fn observe(&self, endpoint: Option<CountedEndpoint>, outcome: &AttemptOutcome) {
        let Some(CountedEndpoint { id, address }) = endpoint else { return };
        match verdict(outcome) {
            Some(Ok(())) if !self.outliers.borrow().is_empty() => self.outliers.borrow_mut().answered(id),
            Some(Err(failure)) => {
                let ejected = self.outliers.borrow_mut().failed(id, failure, self.ring.now());
                if let Some(wait) = ejected {
                    self.counters.outliers.fetch_add(1, Relaxed);
                    let seconds = wait.as_secs();
                    tracing::warn!(%address, reason = failure.name(), seconds, "an upstream address is tried last for a while");
                }
            }
            Some(Ok(())) | None => {}
        }
    }
}
