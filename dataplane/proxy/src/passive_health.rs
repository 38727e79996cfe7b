//! Passive health checks of given addresses: what the outcome of a request says about its endpoint.
//!
//! Only for backends whose instances are not the appliance's own (`--route`, core Services): their failures end with a restart
//! of the instance. An application's 500 says little about one instance, so several in a row count; a timeout counts at once,
//! unless the client was still sending the request.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use contract::table::Endpoint;

use super::outcome::AttemptOutcome;
use super::outliers::EndpointFailure;
use super::{LocalReply, Permit, Proxy};

/// The endpoint of a request, if its outcome counts. `None`: there is no other endpoint to prefer, or the instances are the
/// appliance's own.
pub(super) fn counted_endpoint(permit: &Permit) -> Option<&Arc<Endpoint>> {
    let backend = permit.backend();
    let counts = backend.endpoints.len() > 1 && backend.timeouts.after_request;
    counts.then_some(&permit.endpoint)
}

/// What an outcome says about the endpoint. `None`: nothing. `is_sent`: the whole request was sent.
fn verdict(outcome: &AttemptOutcome, is_sent: bool) -> Option<Result<(), EndpointFailure>> {
    match outcome {
        AttemptOutcome::Done { status: 500.., .. } => Some(Err(EndpointFailure::ServerError)),
        AttemptOutcome::Done { .. } | AttemptOutcome::Switched => Some(Ok(())),
        AttemptOutcome::Refused(LocalReply::ResponseTimeout) if is_sent => Some(Err(EndpointFailure::Timeout)),
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
    /// Counts the outcome of a request for its endpoint, if there is one. `is_sent`: the whole request was sent.
    pub(super) fn observe(&self, endpoint: Option<&Arc<Endpoint>>, outcome: &AttemptOutcome, is_sent: bool) {
        let Some(endpoint) = endpoint else { return };
        let (id, address, now) = (endpoint.id, endpoint.address, self.ring.now());
        match verdict(outcome, is_sent) {
            Some(Ok(())) if !self.outliers.borrow().is_empty() => self.outliers.borrow_mut().answered(id, now),
            Some(Err(failure)) => {
                let ejected = self.outliers.borrow_mut().failed(id, failure, now);
                if let Some(wait) = ejected {
                    self.counters.ejections.fetch_add(1, Relaxed);
                    let seconds = wait.as_secs();
                    tracing::warn!(%address, reason = failure.name(), seconds, "an upstream address is tried last for a while");
                }
            }
            Some(Ok(())) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow upload says nothing about its endpoint.
    #[test]
    fn timeout_counts_only_if_the_request_was_sent() {
        let late = AttemptOutcome::Refused(LocalReply::ResponseTimeout);
        assert_eq!(verdict(&late, true), Some(Err(EndpointFailure::Timeout)));
        assert_eq!(verdict(&late, false), None);
        let closed = AttemptOutcome::Refused(LocalReply::UpstreamClosed("b".into()));
        assert_eq!(verdict(&closed, false), Some(Err(EndpointFailure::ServerError)));
        for (status, wanted) in [(499, Ok(())), (500, Err(EndpointFailure::ServerError))] {
            assert_eq!(verdict(&AttemptOutcome::Done { status, close: false }, true), Some(wanted));
        }
    }
}
