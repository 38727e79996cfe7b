//! The delivery of a stored request: sent as its client sent it. The response is stored before the request counts as done, like
//! a reply.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use codec::http::LocalResponse;
use codec::stored_request::{self, StoredRequest, encode_response};
use contract::post_error::PostError;
use contract::table::{DeliveryPolicy, DeliveryTarget};

use super::delivery_attempt::DeliveryAttempt;
use super::loaded_event::LoadedEvent;
use super::outcome::EventOutcome;
use super::request::DeliveryFailure;
use super::retry::{RetryHints, RetryVerdict, failed, judge};
use super::send::EventSender;
use super::worker::{SubscriberConfig, SubscriptionWorker};
use crate::delivery_log::DeliveryOutcome;
use crate::limits::{RESULT_BODY_BYTES_MAX, RESULT_FIELDS_BYTES_MAX};
use crate::stalled::Phase;

/// Tells that a result has no body, because that was too large.
const CUT_HEADER: &str = "Sluicegate-Result-Cut";

impl<P: EventSender> SubscriptionWorker<P> {
    pub(super) async fn send_stored_request(
        self: &Rc<Self>,
        order: &SubscriberConfig,
        loaded: &LoadedEvent,
        job: DeliveryAttempt,
    ) {
        let working = self.working(Phase::Request, job.position);
        let Some(request) = StoredRequest::read(&loaded.record) else {
            return self.settle(job.position, EventOutcome::Damaged);
        };
        let out = stored_request::encode(&loaded.record);
        drop(working);
        let to = &order.subscriber.target;
        let target = DeliveryTarget { path: request.target.clone(), authority: request.host.clone(), ..to.clone() };
        let timeout = match order.subscriber.delivery.timeout {
            Duration::ZERO => DeliveryPolicy::TIMEOUT_DEFAULT,
            timeout => timeout,
        };
        let began = self.context.ring.now();
        let outcome = self.context.sender.send_stored(&target, request.method, out, timeout).await;
        let took = self.context.ring.now() - began;
        self.note_response(order, &job, &outcome, took);
        let hints = RetryHints::of(outcome.as_ref().ok(), std::time::SystemTime::now);
        let verdict = judge(hints, job.attempt, &order.subscriber.delivery);
        if let RetryVerdict::RetryAt(wait) = verdict {
            return self.retry_after(wait, job);
        }
        let response = match &outcome {
            Ok(response) => bounded(response.clone()),
            Err(why) => LocalResponse::text(504, format!("the Service did not respond: {why}")),
        };
        if let Err(why) = self.store_response(order, &request, &response).await {
            return match failed(job.attempt, &order.subscriber.delivery) {
                RetryVerdict::RetryAt(wait) => self.retry_after(wait, job),
                _ => {
                    let failure = DeliveryFailure::unanswered(&to.url, &why, "the response could not be stored");
                    self.give_up(loaded, job, failure).await;
                }
            };
        }
        match verdict {
            RetryVerdict::GiveUp(reason) => {
                self.give_up(loaded, job, DeliveryFailure::of(&to.url, &outcome, reason.as_str())).await;
            }
            _ => self.settle(job.position, EventOutcome::Delivered),
        }
    }

    fn note_response(
        &self,
        order: &SubscriberConfig,
        job: &DeliveryAttempt,
        outcome: &Result<LocalResponse, PostError>,
        took: Duration,
    ) {
        let status = outcome.as_ref().ok().map(|answer| answer.status);
        if status.is_some() {
            self.window.note(took);
        }
        let key = contract::request_histograms::OutcomeKey::of(status.unwrap_or_default());
        order.subscriber.tally.dispatched.note(&key, took);
        let code = outcome.as_ref().map_or_else(PostError::code, |answer| answer.status);
        self.note(DeliveryOutcome::Replied, job, Some(code), took);
    }

    /// Appends the response and waits until it is durable; from then on its client can read it.
    async fn store_response(
        &self,
        order: &SubscriberConfig,
        request: &StoredRequest,
        response: &LocalResponse,
    ) -> Result<(), String> {
        let head = encode_response(request.id, &order.stream.name, response);
        let range = self.append_reply(order, &[&head, &response.body]).await.map_err(|why| why.to_string())?;
        let home = &self.context.home_writer;
        home.durable(range.end).await.map_err(|why| why.to_string())?;
        order.stream.tally.accepted.fetch_add(1, Relaxed);
        if let Ok(feed) = home.feed_of(&order.stream) {
            home.requests.note(feed.id, request.id, Some(range.start));
        }
        Ok(())
    }
}

/// The response within the limits of a result.
fn bounded(mut response: LocalResponse) -> LocalResponse {
    if response.body.len() > RESULT_BODY_BYTES_MAX {
        response.body.clear();
        response.headers.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("content-"));
        response = response.with(CUT_HEADER, "body");
    }
    let mut room = RESULT_FIELDS_BYTES_MAX;
    response.headers.retain(|(name, value)| {
        let fits = name.len() + value.len() <= room;
        if fits {
            room -= name.len() + value.len();
        }
        fits
    });
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn result_keeps_status_without_a_body_that_is_too_large() {
        let response = |bytes: usize| {
            let body = Bytes::from(vec![b'a'; bytes]);
            bounded(
                LocalResponse { status: 201, headers: Vec::new(), body }.with("Content-Type", "a/b").with("etag", "1"),
            )
        };
        let whole = response(RESULT_BODY_BYTES_MAX);
        assert_eq!((whole.body.len(), whole.header(CUT_HEADER)), (RESULT_BODY_BYTES_MAX, None));
        let cut = response(RESULT_BODY_BYTES_MAX + 1);
        assert_eq!((cut.status, cut.body.len(), cut.header("content-type")), (201, 0, None));
        assert_eq!((cut.header(CUT_HEADER), cut.header("etag")), (Some(&b"body"[..]), Some(&b"1"[..])));
        let long = LocalResponse::empty(200).with("a", vec![b'a'; RESULT_FIELDS_BYTES_MAX]).with("b", "1");
        assert_eq!(bounded(long).headers.len(), 1, "the field that fits");
    }
}
