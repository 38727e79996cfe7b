//! A replay to another destination: each event is sent there once, like a delivery, and the responses are counted.
//! Nothing is appended, no cursor moves, and events in responses are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dataplane::broker::delivery::claims_reply;
use dataplane::broker::delivery::request::{self, RequestOrigin};
use dataplane::cloudevent::{AttributeKind, CloudEventAttribute};
use dataplane::core_relay::CoreSenders;
use dataplane::encode::{EncodedEvent, encode};
use dataplane::post_error::PostError;
use dataplane::record::{ARRIVAL_ATTRIBUTE, time_text};
use dataplane::table::{DeliveryOrder, DeliveryPolicy, DeliveryTarget, Subscriber};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::EventSummary;
use super::progress::{PROGRESS_EVERY, ReplayProgress};
use super::selection::SelectedEvent;

/// Requests in flight to the destination: enough to keep some instances busy, and few beside live traffic. An ordered
/// subscriber's events are sent one by one.
const SENT_IN_FLIGHT_MAX: usize = 16;

/// An event as a request, and its name in reports.
pub(super) struct ReplayRequest {
    pub(super) summary: EventSummary,
    request: EncodedEvent,
}

/// Encodes events as deliveries to a subscriber are.
pub(super) struct RequestEncoder {
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) target: DeliveryTarget,
    pub(super) namespace: String,
    /// At a broker, whose subscribers see the time of arrival.
    pub(super) arrives: bool,
}

impl RequestEncoder {
    pub(super) fn encode(&self, selected: &SelectedEvent) -> ReplayRequest {
        let record = &selected.record;
        let arrival = time_text(selected.at_ms).filter(|_| self.arrives).map(|text| CloudEventAttribute {
            name: ARRIVAL_ATTRIBUTE.into(),
            value: String::from(text).into(),
            kind: AttributeKind::String,
        });
        let mode = self.subscriber.delivery.mode.unwrap_or(record.mode);
        let mut out = encode(record, mode, arrival.as_slice());
        let origin = RequestOrigin { namespace: &self.namespace, internal_key: "" }; // the target is no stream of ours
        request::complete(&mut out, record, &self.target, &origin, &mut fastrand::Rng::new());
        request::request_reply(&mut out);
        ReplayRequest { summary: EventSummary::of(selected), request: out }
    }
}

/// How the destination responded.
#[derive(Debug, Default)]
pub(super) struct ResponseSummary {
    by_status: BTreeMap<u16, u64>,
    /// By reason.
    unanswered: BTreeMap<&'static str, u64>,
    replies: u64,
    first_failure: Option<Value>,
}

impl ResponseSummary {
    fn note(&mut self, summary: &EventSummary, outcome: &SendOutcome) {
        let (failed, why) = match outcome {
            SendOutcome::Answered { status, has_reply } => {
                *self.by_status.entry(*status).or_default() += 1;
                self.replies += u64::from(*has_reply);
                (!(200..300).contains(status), status.to_string())
            }
            SendOutcome::Unanswered(why) => {
                *self.unanswered.entry(PostError::reason(why.code()).unwrap_or("no response")).or_default() += 1;
                (true, why.to_string())
            }
        };
        if failed && self.first_failure.is_none() {
            self.first_failure = Some(json!({ "event": summary.to_json(), "why": why }));
        }
    }

    pub(super) fn write_to(&self, report: &mut Value) {
        report["responses"] =
            self.by_status.iter().map(|(status, count)| json!({ "status": status, "count": count })).collect();
        report["unanswered"] = json!(self.unanswered);
        report["replies"] = self.replies.into();
        report["firstFailure"] = json!(self.first_failure);
    }
}

enum SendOutcome {
    Answered { status: u16, has_reply: bool },
    Unanswered(PostError),
}

/// Sends all requests as they come. `None` if the client has disconnected.
pub(super) async fn send_all(
    encoder: &RequestEncoder,
    senders: &CoreSenders,
    requests: mpsc::Receiver<ReplayRequest>,
    progress: &mut ReplayProgress<'_>,
) -> Option<ResponseSummary> {
    let delivery = &encoder.subscriber.delivery;
    let timeout = if delivery.timeout.is_zero() { DeliveryPolicy::TIMEOUT_DEFAULT } else { delivery.timeout };
    let in_flight = if delivery.sequence == DeliveryOrder::Free { SENT_IN_FLIGHT_MAX } else { 1 };
    let paced = stream::unfold((requests, progress.pace()), |(mut requests, mut pace)| async {
        let request = requests.recv().await?;
        pace.wait().await;
        Some((request, (requests, pace)))
    });
    let outcomes = paced.map(|one| send(encoder, senders, one, timeout)).buffer_unordered(in_flight);
    let mut outcomes = std::pin::pin!(outcomes);
    let mut tick = tokio::time::interval(PROGRESS_EVERY);
    let mut summary = ResponseSummary::default();
    loop {
        tokio::select! {
            outcome = outcomes.next() => match outcome {
                None => return Some(summary),
                Some((event, outcome)) => {
                    summary.note(&event, &outcome);
                    progress.sent += 1;
                }
            },
            // Also while nothing answers: a client that has disconnected ends the replay.
            _ = tick.tick() => progress.report().await?,
        }
    }
}

async fn send(
    encoder: &RequestEncoder,
    senders: &CoreSenders,
    one: ReplayRequest,
    timeout: Duration,
) -> (EventSummary, SendOutcome) {
    let outcome = match senders.send_to_core(encoder.target.clone(), one.request, timeout).await {
        Ok(answer) => SendOutcome::Answered { status: answer.status, has_reply: claims_reply(&answer) },
        Err(why) => SendOutcome::Unanswered(why),
    };
    (one.summary, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_counted_by_status_and_reason() {
        let event = |id: &str| EventSummary { at_ms: 0, id: id.into(), source: "/s".into(), kind: "t".into() };
        let mut summary = ResponseSummary::default();
        for (id, outcome) in [
            ("1", SendOutcome::Answered { status: 202, has_reply: false }),
            ("2", SendOutcome::Unanswered(PostError::Timeout(Duration::from_secs(1)))),
            ("3", SendOutcome::Answered { status: 503, has_reply: false }),
            ("4", SendOutcome::Answered { status: 200, has_reply: true }),
            ("5", SendOutcome::Answered { status: 202, has_reply: false }),
        ] {
            summary.note(&event(id), &outcome);
        }
        let mut report = json!({});
        summary.write_to(&mut report);
        assert_eq!(
            report["responses"],
            json!([
                { "status": 200, "count": 1 }, { "status": 202, "count": 2 }, { "status": 503, "count": 1 }
            ])
        );
        assert_eq!(report["unanswered"], json!({ "no response within the timeout": 1 }));
        assert_eq!((&report["replies"], &report["firstFailure"]["event"]["id"]), (&json!(1), &json!("2")));
    }
}
