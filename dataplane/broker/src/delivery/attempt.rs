//! One delivery attempt, from the record to the consequences of its response.
//!
//! ```text
//! subscriber ── done ─────────────────────────────► delivered
//!   │  │  └── 200 with an event ► stored (or sent) ► delivered     the cursor advances only now
//!   │  └───── temporary ────────► retry at a time, by position
//!   └──────── given up ─────────► dead letter sink ► dead-lettered, or dropped with a reason
//! ```

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use codec::cloudevent::CloudEvent;
use codec::encode::EncodedEvent;
use codec::http::LocalResponse;
use codec::limits::ATTRIBUTES_BYTES_MAX;
use codec::record::EventRecord;
use contract::post_error::PostError;
use contract::request_histograms::OutcomeKey;
use contract::table::{DeliveryPolicy, DeliveryTarget, HoldReason, ReplyTarget};
use ring::Tick;
use wal::{AppendError, LogPosition};

use super::delivery_attempt::{AttemptTarget, DeliveryAttempt};
use super::loaded_event::LoadedEvent;
use super::outcome::EventOutcome;
use super::request::{self, DeliveryFailure, ReplyBody, RequestOrigin};
use super::retry::{GiveUpReason, RetryHints, RetryVerdict, failed, judge, spread};
use super::send::EventSender;
use super::set_aside::STALLED;
use super::worker::{SubscriberConfig, SubscriptionWorker};
use crate::delivery_log::{DeliveryLogEntry, DeliveryOutcome};
use crate::extension_headers::trace_of;
use crate::ingress::HOPS_ATTRIBUTE;
use crate::limits::{REFUSED_RETRY_EVERY, SPACE_RETRY_INTERVAL};
use crate::log_writer::AppendPriority;
use crate::stalled::Phase;

/// The outcome of a reply.
enum ReplyOutcome {
    On,
    /// It was dropped, and the delivery is done anyway.
    Nowhere,
    /// It could not be stored: the delivery as a whole failed and may be retried.
    NotStored(String),
    /// Its target rejected it.
    Refused(DeliveryFailure),
}

impl<P: EventSender> SubscriptionWorker<P> {
    /// `read`: the event, if it was just loaded.
    pub(super) async fn attempt(self: &Rc<Self>, job: DeliveryAttempt, read: Option<Rc<LoadedEvent>>) {
        let began = self.context.ring.now();
        let order = self.order();
        let arrives = order.stream.guards_loops;
        let loaded = match read {
            Some(read) => read,
            None => {
                self.bring(job.position).await;
                let Some(record) = self.load(job.position) else {
                    // read once before; or its stream was deleted
                    return self.settle(job.position, EventOutcome::Damaged);
                };
                let _working = self.working(Phase::Request, job.position);
                let Ok(loaded) = LoadedEvent::of(record, arrives) else { return }; // decoded once before: cannot fail
                Rc::new(loaded)
            }
        };
        if arrives {
            loaded.set_arrival(&self.context.moment);
        }
        match &job.leg {
            AttemptTarget::Subscriber => self.request(&order, &loaded, job, began).await,
            AttemptTarget::DeadLetter(failure) => {
                let failure = Rc::clone(failure);
                Box::pin(self.dead_letter(&loaded, job, failure)).await;
            }
        }
    }

    /// Rare continuations after the response are boxed: each attempt in flight takes the size of its
    /// largest step, some 3 KiB instead of 6, and a subscriber that hangs has 64 of them.
    async fn request(
        self: &Rc<Self>,
        order: &SubscriberConfig,
        loaded: &LoadedEvent,
        job: DeliveryAttempt,
        began: Tick,
    ) {
        if order.stream.holds_requests() {
            return Box::pin(self.send_stored_request(order, loaded, job)).await;
        }
        let target = &order.subscriber.target;
        let is_asked = order.subscriber.reply != ReplyTarget::Unasked;
        let mode = order.subscriber.delivery.mode.unwrap_or(loaded.record.mode);
        let working = self.working(Phase::Request, job.position);
        self.charge_request(loaded, mode);
        let mut out = loaded.write(mode);
        let record = &loaded.record;
        {
            let (key, rng) = (self.context.internal_key.borrow(), &self.context.rng);
            request::complete(&mut out, record, target, &sender(order, &key), &mut rng.borrow_mut());
        }
        if is_asked {
            request::request_reply(&mut out);
        }
        drop(working);
        order.subscriber.tally.processed(self.context.ring.now() - began);
        let outcome = self.send(order, target, out, &job, DeliveryOutcome::Replied).await;
        let has_sink = order.subscriber.dead_letter.is_some();
        if is_held(target, outcome.as_ref().ok(), has_sink) {
            return self.retry_refused(job);
        }
        match judge(retry_hints(&outcome), job.attempt, &order.subscriber.delivery) {
            RetryVerdict::Done => self.settle(job.position, EventOutcome::Delivered),
            // The content of a reply target's 200 is ignored (AMB-21, DP-REPLY-08).
            RetryVerdict::Reply if !is_asked => self.settle(job.position, EventOutcome::Delivered),
            RetryVerdict::RetryAt(wait) => self.retry_after(wait, job),
            RetryVerdict::GiveUp(reason) => {
                let failure = DeliveryFailure::of(&target.url, &outcome, reason.as_str());
                Box::pin(self.give_up(loaded, job, failure)).await;
            }
            RetryVerdict::Reply => {
                let Ok(answer) = outcome else { return }; // a verdict of Reply comes from a status
                if answer.body.is_empty() && !request::claims_reply(&answer) {
                    return self.settle(job.position, EventOutcome::Delivered); // the usual 200
                }
                Box::pin(self.take_reply(order, loaded, job, &answer)).await;
            }
        }
    }

    async fn take_reply(
        self: &Rc<Self>,
        order: &SubscriberConfig,
        loaded: &LoadedEvent,
        job: DeliveryAttempt,
        answer: &LocalResponse,
    ) {
        self.turn_budget().await;
        self.charge_encoding(answer.body.len());
        let working = self.working(Phase::Reply, job.position);
        let carried = request::carried(answer);
        drop(working);
        let passed = match carried {
            Ok(ReplyBody::Nothing) => ReplyOutcome::On,
            Ok(ReplyBody::NoEvent) => {
                tracing::debug!(subscriber = %order.subscriber.label, "body of a 200 dropped: not an event");
                ReplyOutcome::Nowhere
            }
            Ok(ReplyBody::Event(reply)) => {
                if request::is_latin1(answer) {
                    order.stream.tally.latin1.fetch_add(1, Relaxed);
                }
                if let Some(types) = &order.stream.types {
                    types.note_event(&reply, &order.subscriber.name);
                }
                self.forward_reply(&loaded.record, reply, answer, &job).await
            }
            Err(why) => ReplyOutcome::NotStored(format!("malformed reply: {why}")),
        };
        match passed {
            ReplyOutcome::On => self.settle(job.position, EventOutcome::Delivered),
            ReplyOutcome::Nowhere => {
                order.subscriber.tally.replies_dropped.fetch_add(1, Relaxed);
                self.settle(job.position, EventOutcome::Delivered);
            }
            ReplyOutcome::Refused(failure) => self.give_up(loaded, job, failure).await,
            ReplyOutcome::NotStored(why) => match failed(job.attempt, &order.subscriber.delivery) {
                RetryVerdict::RetryAt(wait) => self.retry_after(wait, job),
                _ => {
                    let reason = GiveUpReason::RetriesUsedUp.as_str();
                    let failure = DeliveryFailure::unanswered(&order.subscriber.target.url, &why, reason);
                    self.give_up(loaded, job, failure).await;
                }
            },
        }
    }

    async fn forward_reply(
        &self,
        record: &EventRecord,
        mut reply: CloudEvent<'_>,
        answer: &LocalResponse,
        job: &DeliveryAttempt,
    ) -> ReplyOutcome {
        let order = &self.order(); // the current one: the reply target may have changed during the request
        let trace = trace_of(record);
        let head = |reply: &CloudEvent<'_>, hops| {
            request::record_of(reply, answer, trace.as_deref(), hops, &mut self.context.rng.borrow_mut())
        };
        match &order.subscriber.reply {
            ReplyTarget::Discard | ReplyTarget::Unasked => {
                tracing::debug!(subscriber = %order.subscriber.label, "reply dropped: no reply target is configured");
                ReplyOutcome::Nowhere
            }
            ReplyTarget::Send(_) => {
                let bytes = request::joined(head(&reply, record.hops_left), &reply);
                match EventRecord::decode(bytes) {
                    Ok(reply) => self.send_reply(&reply, job).await,
                    Err(why) => ReplyOutcome::NotStored(why.to_string()),
                }
            }
            ReplyTarget::Reenter => {
                let mut hops = 0;
                if order.stream.guards_loops {
                    reply.take(HOPS_ATTRIBUTE);
                    hops = record.hops_left.saturating_sub(1);
                    if hops == 0 {
                        let (subscriber, id) = (&*order.subscriber.label, reply.attribute("id"));
                        tracing::warn!(subscriber, id, "reply dropped: it has made too many hops, a loop is likely");
                        return ReplyOutcome::Nowhere;
                    }
                }
                let passed = self.reenter(order, &head(&reply, hops), &reply, job).await;
                if matches!(passed, ReplyOutcome::On) {
                    self.note(DeliveryOutcome::ReplyStored, job, None, Duration::ZERO);
                }
                passed
            }
        }
    }

    /// Appends a reply to the same stream and waits until it is durable (EV-RTE-10, EV-RTE-11).
    async fn reenter(
        &self,
        order: &SubscriberConfig,
        head: &[u8],
        reply: &CloudEvent<'_>,
        job: &DeliveryAttempt,
    ) -> ReplyOutcome {
        let max = order.stream.event_bytes_max;
        if reply.bytes() > max as usize {
            return ReplyOutcome::NotStored(format!("the reply has {} bytes, the stream accepts {max}", reply.bytes()));
        }
        if reply.attribute_bytes() > ATTRIBUTES_BYTES_MAX {
            let bytes = reply.attribute_bytes();
            return ReplyOutcome::NotStored(format!(
                "the attributes of the reply have {bytes} bytes, at most {ATTRIBUTES_BYTES_MAX} are accepted: move \
                 large content to its data"
            ));
        }
        match self.store_reply(order, head, reply, job).await {
            Ok(()) => {
                order.stream.tally.accepted.fetch_add(1, Relaxed);
                if let Some(types) = &order.stream.types {
                    types.note_event(reply, "");
                }
                ReplyOutcome::On
            }
            Err(why) => ReplyOutcome::NotStored(format!("the reply could not be stored: {why}")),
        }
    }

    async fn store_reply(
        &self,
        order: &SubscriberConfig,
        head: &[u8],
        reply: &CloudEvent<'_>,
        job: &DeliveryAttempt,
    ) -> Result<(), String> {
        if let Some(external) = &order.stream.external {
            return Box::pin(self.publish_reply(external, job.position, head, reply)).await;
        }
        let appended = self.append_reply(order, &[head, reply.data.bytes()]).await.map_err(|why| why.to_string())?;
        self.context.home_writer.durable(appended.end).await.map_err(|why| why.to_string())
    }

    /// Appends a reply, and while the log is full waits for space: the original event is not done before,
    /// and another request to the subscriber does not help. It keeps its slot of the window meanwhile,
    /// because the reply is held in memory.
    pub(super) async fn append_reply(
        &self,
        order: &SubscriberConfig,
        reply: &[&[u8]],
    ) -> Result<Range<LogPosition>, AppendError> {
        let home = &self.context.home_writer;
        loop {
            let appended = home
                .feed_of(&order.stream)
                .and_then(|feed| home.append_within(&feed, &[reply], AppendPriority::Onward, Duration::ZERO));
            match appended {
                Err(AppendError::Full { .. }) if !self.is_stopped() => {
                    self.context.ring.sleep(SPACE_RETRY_INTERVAL).await;
                }
                appended => return appended,
            }
        }
    }

    /// Sends a reply with retries of its own; the subscriber gets no second request (AMB-35). It keeps its
    /// slot of the window meanwhile, because the reply is held in memory. Each attempt uses the current
    /// reply target.
    async fn send_reply(&self, reply: &EventRecord, job: &DeliveryAttempt) -> ReplyOutcome {
        for attempt in 0.. {
            self.turn_budget().await;
            self.charge_encoding(reply.bytes());
            let order = &self.order();
            let ReplyTarget::Send(target) = &order.subscriber.reply else { return ReplyOutcome::Nowhere };
            let rng = &self.context.rng;
            let key = Arc::clone(&self.context.internal_key.borrow());
            let out = request::to_reply_target(reply, target, &sender(order, &key), &mut rng.borrow_mut());
            let sending = DeliveryAttempt { attempt, ..job.clone() };
            let outcome = self.send(order, target, out, &sending, DeliveryOutcome::ReplySent).await;
            let has_sink = order.subscriber.dead_letter.is_some();
            let verdict = if is_held(target, outcome.as_ref().ok(), has_sink) {
                RetryVerdict::RetryAt(REFUSED_RETRY_EVERY)
            } else {
                judge(retry_hints(&outcome), attempt, &order.subscriber.delivery)
            };
            match verdict {
                RetryVerdict::Done | RetryVerdict::Reply => break, // a reply to a reply is dropped (DP-REPLY-08)
                RetryVerdict::GiveUp(reason) => {
                    return ReplyOutcome::Refused(DeliveryFailure::of(&target.url, &outcome, reason.as_str()));
                }
                RetryVerdict::RetryAt(wait) => {
                    order.subscriber.tally.retries.fetch_add(1, Relaxed);
                    let wait = spread(wait, &mut rng.borrow_mut());
                    self.context.ring.sleep(wait).await;
                    if self.is_stopped() {
                        return ReplyOutcome::NotStored("the subscriber was deleted".into());
                    }
                }
            }
        }
        ReplyOutcome::On
    }

    pub(super) async fn give_up(self: &Rc<Self>, loaded: &LoadedEvent, job: DeliveryAttempt, failure: DeliveryFailure) {
        let failure = Rc::new(failure);
        let job = DeliveryAttempt { attempt: 0, leg: AttemptTarget::DeadLetter(Rc::clone(&failure)), ..job };
        self.dead_letter(loaded, job, failure).await;
    }

    /// Sends the event to the dead letter sink, or drops it with a reason (EV-DLV-08, -09, -11).
    async fn dead_letter(self: &Rc<Self>, loaded: &LoadedEvent, job: DeliveryAttempt, failure: Rc<DeliveryFailure>) {
        let order = &self.order(); // the current one: the sink may have been added or removed during the attempt
        let Some(sink) = &order.subscriber.dead_letter else {
            if self.holds(HoldReason::DeadLetters) {
                return self.hold_dead_letter(job);
            }
            let end = if failure.reason == STALLED { EventOutcome::Stalled } else { EventOutcome::Sinkless };
            return self.drop_event(order, &loaded.record, &job, &failure, end);
        };
        let rng = &self.context.rng;
        let key = Arc::clone(&self.context.internal_key.borrow());
        let sender = sender(order, &key);
        let working = self.working(Phase::Request, job.position);
        self.charge_encoding(loaded.bytes());
        let out = request::to_dead_letter_sink(loaded, &failure, sink, &sender, &mut rng.borrow_mut());
        drop(working);
        let outcome = self.send(order, sink, out, &job, DeliveryOutcome::DeadLetterSent).await;
        if is_held(sink, outcome.as_ref().ok(), false) {
            return self.retry_refused(job);
        }
        match judge(retry_hints(&outcome), job.attempt, &order.subscriber.delivery) {
            RetryVerdict::Done | RetryVerdict::Reply => {
                self.note(DeliveryOutcome::DeadLettered, &job, None, Duration::ZERO);
                self.settle(job.position, EventOutcome::DeadLettered);
            }
            RetryVerdict::RetryAt(wait) => self.retry_after(wait, job),
            RetryVerdict::GiveUp(_) => {
                self.drop_event(order, &loaded.record, &job, &failure, EventOutcome::SinkRefused);
            }
        }
    }

    fn drop_event(
        &self,
        order: &SubscriberConfig,
        record: &EventRecord,
        job: &DeliveryAttempt,
        failure: &DeliveryFailure,
        end: EventOutcome,
    ) {
        let why = match end {
            EventOutcome::SinkRefused => "the dead letter sink rejected it",
            _ => "there is no dead letter sink",
        };
        tracing::warn!(
            subscriber = %order.subscriber.label,
            url = %failure.url,
            code = failure.code,
            reason = failure.reason,
            unanswered = failure.unanswered.as_deref(),
            id = record.attribute("id"),
            source = record.attribute("source"),
            "event dropped: {why}"
        );
        self.note(DeliveryOutcome::Dropped, job, None, Duration::ZERO);
        self.settle(job.position, end);
    }

    pub(super) fn retry_after(&self, wait: Duration, job: DeliveryAttempt) {
        let at = self.context.ring.now() + spread(wait, &mut self.context.rng.borrow_mut());
        self.retry(at, DeliveryAttempt { attempt: job.attempt + 1, ..job });
    }

    /// The event stays unfinished, and the attempt does not count.
    fn retry_refused(&self, job: DeliveryAttempt) {
        let at = self.context.ring.now() + spread(REFUSED_RETRY_EVERY, &mut self.context.rng.borrow_mut());
        self.retry(at, job);
    }

    /// Adds an entry to the delivery log.
    pub(super) fn note(&self, what: DeliveryOutcome, job: &DeliveryAttempt, status: Option<u16>, took: Duration) {
        // Positions of an external store mean nothing in the log of this core.
        let Some(delivery_log) = self.context.delivery_log.as_ref().filter(|_| self.log_reader().is_some()) else {
            return;
        };
        delivery_log.note(DeliveryLogEntry {
            what,
            subscriber: &self.name,
            position: job.position,
            at_ms: 0, // set by the delivery log
            status: status.unwrap_or(0),
            attempt: u16::try_from(job.attempt).unwrap_or(u16::MAX),
            took,
        });
    }

    /// Sends one request.
    async fn send(
        &self,
        order: &SubscriberConfig,
        target: &DeliveryTarget,
        out: EncodedEvent,
        job: &DeliveryAttempt,
        what: DeliveryOutcome,
    ) -> Result<LocalResponse, PostError> {
        let timeout = match order.subscriber.delivery.timeout {
            Duration::ZERO => DeliveryPolicy::TIMEOUT_DEFAULT,
            timeout => timeout,
        };
        let began = self.context.ring.now();
        let outcome = self.context.sender.send(target, out, timeout).await;
        if let Err(why @ PostError::Untrusted { .. }) = &outcome {
            order.subscriber.tally.untrusted.fetch_add(1, Relaxed);
            // Logged for the first attempt only: later ones are counted, and the outcome of an event is
            // logged.
            if job.attempt == 0 {
                tracing::warn!(subscriber = %order.subscriber.label, url = %target.url, "not delivered: {why}");
            }
        }
        if let Err(PostError::Refused(why)) = &outcome
            && job.attempt == 0
        {
            tracing::warn!(subscriber = %order.subscriber.label, url = %target.url, "not delivered: {why}");
        }
        let status = outcome.as_ref().ok().map(|answer| answer.status);
        let took = self.context.ring.now() - began;
        if what == DeliveryOutcome::Replied && outcome.is_ok() {
            self.window.note(took);
        }
        order.subscriber.tally.dispatched.note(&OutcomeKey::of(status.unwrap_or_default()), took);
        self.note(what, job, Some(outcome.as_ref().map_or_else(PostError::code, |answer| answer.status)), took);
        outcome
    }
}

/// One of our own streams rejects our own delivery. With 401 it does not accept the token, which we must
/// renew; with 403 a policy excludes the sender, which an operator corrects or intends. Neither is a reason
/// to lose the event: it waits, unless it was rejected by a policy and there is a dead letter sink.
fn is_held(target: &DeliveryTarget, answer: Option<&LocalResponse>, has_sink: bool) -> bool {
    target.is_stream
        && match answer.map(|answer| answer.status) {
            Some(401) => true,
            Some(403) => !has_sink,
            _ => false,
        }
}

fn retry_hints(outcome: &Result<LocalResponse, PostError>) -> RetryHints {
    RetryHints::of(outcome.as_ref().ok(), SystemTime::now)
}

/// The sender's namespace: `NAMESPACE` of `NAMESPACE/NAME` (X-DLV-10).
fn sender<'a>(order: &'a SubscriberConfig, inside_key: &'a str) -> RequestOrigin<'a> {
    RequestOrigin { namespace: order.subscriber.label.split('/').next().unwrap_or_default(), internal_key: inside_key }
}
