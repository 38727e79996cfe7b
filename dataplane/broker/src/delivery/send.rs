//! The interface for sending a request: separates decisions from sending.

use std::future::Future;
use std::time::Duration;

use codec::encode::EncodedEvent;
use codec::http::LocalResponse;
use codec::stored_request::StoredMethod;
use contract::post_error::PostError;
use contract::table::DeliveryTarget;

/// Sends one request and waits for its final response. Redirects are not followed, interim responses are
/// skipped.
pub trait EventSender: 'static {
    /// Ends within `timeout`; time spent waiting for a permit of our own running instances does not count.
    fn send(
        &self,
        target: &DeliveryTarget,
        request: EncodedEvent,
        timeout: Duration,
    ) -> impl Future<Output = Result<LocalResponse, PostError>>;

    /// Sends a stored request as its client sent it, and returns the response with all its fields. Otherwise as
    /// [`EventSender::send`].
    fn send_stored(
        &self,
        target: &DeliveryTarget,
        method: StoredMethod,
        request: EncodedEvent,
        timeout: Duration,
    ) -> impl Future<Output = Result<LocalResponse, PostError>>;

    /// Number of concurrent requests of the target's running instances, if they are ours; 0 for all others.
    fn capacity(&self, target: &DeliveryTarget) -> usize;
}
