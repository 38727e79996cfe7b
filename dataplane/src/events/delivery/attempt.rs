//! One attempt, from the record to what its answer leads to.
//!
//! ```text
//! subscriber ── done ─────────────────────────────► delivered
//!   │  │  └── 200 with an event ► stored (or sent) ► delivered     the bookmark moves only now
//!   │  └───── may pass ─────────► retry at a time, by position
//!   └──────── given up ─────────► dead letter sink ► dead-lettered, or dropped with a reason
//! ```

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use ring::Tick;
use wal::{AppendError, Position};

use super::aside::STALLED;
use super::end::End;
use super::post::{Post, PostError};
use super::pump::{Job, Leg, Order, Pump};
use super::request::{self, Carried, Failure, Sender};
use super::retry::{Heard, Reason, Verdict, failed, judge, spread};
use super::sight::Sight;
use crate::events::Answer;
use crate::events::cloudevent::Event;
use crate::events::companions::trace_of;
use crate::events::encode::Outgoing;
use crate::events::house::note_type;
use crate::events::ingress::HOPS_ATTRIBUTE;
use crate::events::journal::{Note, What};
use crate::events::keeper::Claim;
use crate::events::limits::{REFUSED_RETRY_EVERY, ROOM_AGAIN};
use crate::events::record::Record;
use crate::events::stalled::Phase;
use crate::outcomes::Key;
use crate::table::{Delivery, Hold, Reply, Target};

/// What became of a reply.
enum Passed {
    On,
    /// It was dropped, and the delivery is done all the same.
    Nowhere,
    /// It could not be stored: the delivery as a whole failed and may be tried again.
    NotStored(String),
    /// Its target did not take it.
    Refused(Failure),
}

impl<P: Post> Pump<P> {
    /// `read`: the event, by whoever has just looked at it.
    pub(super) async fn attempt(self: &Rc<Self>, job: Job, read: Option<Rc<Sight>>) {
        let began = self.shop.ring.now();
        let order = self.order();
        let arrives = order.stream.guards_loops;
        let sight = match read {
            Some(read) => read,
            None => {
                self.bring(job.position).await;
                let Some(record) = self.look_up(job.position) else {
                    return self.settle(job.position, End::Damaged); // read once before; or its stream was forgotten
                };
                let _working = self.working(Phase::Request, job.position);
                let Ok(sight) = Sight::of(record, arrives) else { return }; // decoded once before: cannot be
                Rc::new(sight)
            }
        };
        if arrives {
            sight.tell_arrival(&self.shop.moment);
        }
        match &job.leg {
            Leg::Subscriber => self.ask(&order, &sight, job, began).await,
            Leg::DeadLetter(failure) => {
                let failure = Rc::clone(failure);
                Box::pin(self.bury(&sight, job, failure)).await;
            }
        }
    }

    /// What seldom comes after the answer is boxed: each attempt under way takes what its largest step does, some 3 KiB
    /// instead of 6, and of subscribers that hang there are 64 each.
    async fn ask(self: &Rc<Self>, order: &Order, sight: &Sight, job: Job, began: Tick) {
        let target = &order.subscriber.target;
        let is_asked = order.subscriber.reply != Reply::Unasked;
        let mode = order.subscriber.delivery.mode.unwrap_or(sight.record.mode);
        let working = self.working(Phase::Request, job.position);
        let mut out = sight.write(mode);
        let record = &sight.record;
        {
            let (key, rng) = (self.shop.inside_key.borrow(), &self.shop.rng);
            request::complete(&mut out, record, target, &sender(order, &key), &mut rng.borrow_mut());
        }
        if is_asked {
            request::ask_for_reply(&mut out);
        }
        drop(working);
        order.subscriber.tally.processed(self.shop.ring.now() - began);
        let outcome = self.post(order, target, out, &job, What::Asked).await;
        let has_sink = order.subscriber.dead_letter.is_some();
        if is_held(target, outcome.as_ref().ok(), has_sink) {
            return self.retry_refused(job);
        }
        match judge(heard(&outcome), job.attempt, &order.subscriber.delivery) {
            Verdict::Done => self.settle(job.position, End::Delivered),
            // Whatever a reply target says in its 200 is nobody's business (AMB-21, DP-REPLY-08).
            Verdict::Reply if !is_asked => self.settle(job.position, End::Delivered),
            Verdict::RetryAt(wait) => self.retry_after(wait, job),
            Verdict::GiveUp(reason) => {
                let failure = Failure::of(&target.url, &outcome, reason.as_str());
                Box::pin(self.give_up(sight, job, failure)).await;
            }
            Verdict::Reply => {
                let Ok(answer) = outcome else { return }; // a verdict of Reply comes from a status
                if answer.body.is_empty() && !request::claims_reply(&answer) {
                    return self.settle(job.position, End::Delivered); // the usual 200
                }
                Box::pin(self.take_reply(order, sight, job, &answer)).await;
            }
        }
    }

    async fn take_reply(self: &Rc<Self>, order: &Order, sight: &Sight, job: Job, answer: &Answer) {
        let working = self.working(Phase::Reply, job.position);
        let carried = request::carried(answer);
        drop(working);
        let passed = match carried {
            Ok(Carried::Nothing) => Passed::On,
            Ok(Carried::NoEvent) => {
                tracing::debug!(subscriber = %order.subscriber.label, "body of a 200 dropped: not an event");
                Passed::Nowhere
            }
            Ok(Carried::Event(reply)) => {
                if request::is_latin1(answer) {
                    order.stream.tally.latin1.fetch_add(1, Relaxed);
                }
                if let Some(types) = &order.stream.types {
                    note_type(types, &reply, &order.subscriber.name);
                }
                self.pass_on(&sight.record, reply, answer, &job).await
            }
            Err(why) => Passed::NotStored(format!("malformed reply: {why}")),
        };
        match passed {
            Passed::On => self.settle(job.position, End::Delivered),
            Passed::Nowhere => {
                order.subscriber.tally.replies_dropped.fetch_add(1, Relaxed);
                self.settle(job.position, End::Delivered);
            }
            Passed::Refused(failure) => self.give_up(sight, job, failure).await,
            Passed::NotStored(why) => match failed(job.attempt, &order.subscriber.delivery) {
                Verdict::RetryAt(wait) => self.retry_after(wait, job),
                _ => {
                    let reason = Reason::RetriesUsedUp.as_str();
                    let failure = Failure::unanswered(&order.subscriber.target.url, &why, reason);
                    self.give_up(sight, job, failure).await;
                }
            },
        }
    }

    async fn pass_on(&self, record: &Record, mut reply: Event<'_>, answer: &Answer, job: &Job) -> Passed {
        let order = &self.order(); // as it is now: replies may have come to go elsewhere while the subscriber thought
        let trace = trace_of(record);
        let head = |reply: &Event<'_>, hops| {
            request::record_of(reply, answer, trace.as_deref(), hops, &mut self.shop.rng.borrow_mut())
        };
        match &order.subscriber.reply {
            Reply::Discard | Reply::Unasked => {
                tracing::debug!(subscriber = %order.subscriber.label, "reply dropped: nobody wants it");
                Passed::Nowhere
            }
            Reply::Send(_) => {
                let bytes = request::joined(head(&reply, record.hops_left), &reply);
                match Record::decode(bytes) {
                    Ok(reply) => self.send_reply(&reply, job).await,
                    Err(why) => Passed::NotStored(why.to_string()),
                }
            }
            Reply::Reenter => {
                let mut hops = 0;
                if order.stream.guards_loops {
                    reply.take(HOPS_ATTRIBUTE);
                    hops = record.hops_left.saturating_sub(1);
                    if hops == 0 {
                        let (subscriber, id) = (&*order.subscriber.label, reply.attribute("id"));
                        tracing::warn!(
                            subscriber,
                            id,
                            "reply dropped: it has made too many hops, a loop is likely"
                        );
                        return Passed::Nowhere;
                    }
                }
                let passed = self.reenter(order, &head(&reply, hops), &reply).await;
                if matches!(passed, Passed::On) {
                    self.note(What::ReplyStored, job, None, Duration::ZERO);
                }
                passed
            }
        }
    }

    /// Appends a reply to the same stream and waits until it is durable (EV-RTE-10, EV-RTE-11).
    async fn reenter(&self, order: &Order, head: &[u8], reply: &Event<'_>) -> Passed {
        let max = order.stream.event_bytes_max;
        if reply.bytes() > max as usize {
            return Passed::NotStored(format!(
                "the reply has {} bytes, the stream takes {max}",
                reply.bytes()
            ));
        }
        let end = match self.keep_reply(order, &[head, reply.data.bytes()]).await {
            Ok(range) => range.end,
            Err(why) => return Passed::NotStored(format!("the reply could not be stored: {why}")),
        };
        match self.shop.home.durable(end).await {
            Ok(()) => {
                order.stream.tally.accepted.fetch_add(1, Relaxed);
                if let Some(types) = &order.stream.types {
                    note_type(types, reply, "");
                }
                Passed::On
            }
            Err(why) => Passed::NotStored(why.to_string()),
        }
    }

    /// Appends a reply, and while the log is full waits for room: what it answers cannot end before, and another
    /// request to the subscriber makes none. It keeps its slot of the window meanwhile, because the reply is held in memory.
    async fn keep_reply(&self, order: &Order, reply: &[&[u8]]) -> Result<Range<Position>, AppendError> {
        let home = &self.shop.home;
        loop {
            let appended = home
                .feed_of(&order.stream)
                .and_then(|feed| home.append_within(&feed, &[reply], Claim::Onward, Duration::ZERO));
            match appended {
                Err(AppendError::Full { .. }) if !self.is_stopped() => {
                    self.shop.ring.sleep(ROOM_AGAIN).await;
                }
                appended => return appended,
            }
        }
    }

    /// Sends a reply with retries of its own; the subscriber is not asked again (AMB-35). It keeps its
    /// slot of the window meanwhile, because the reply is held in memory. Each attempt goes where replies go by then.
    async fn send_reply(&self, reply: &Record, job: &Job) -> Passed {
        for attempt in 0.. {
            let order = &self.order();
            let Reply::Send(target) = &order.subscriber.reply else { return Passed::Nowhere };
            let rng = &self.shop.rng;
            let key = Arc::clone(&self.shop.inside_key.borrow());
            let out = request::to_reply_target(reply, target, &sender(order, &key), &mut rng.borrow_mut());
            let sending = Job { attempt, ..job.clone() };
            let outcome = self.post(order, target, out, &sending, What::ReplySent).await;
            let has_sink = order.subscriber.dead_letter.is_some();
            let verdict = if is_held(target, outcome.as_ref().ok(), has_sink) {
                Verdict::RetryAt(REFUSED_RETRY_EVERY)
            } else {
                judge(heard(&outcome), attempt, &order.subscriber.delivery)
            };
            match verdict {
                Verdict::Done | Verdict::Reply => break, // a reply to a reply is dropped (DP-REPLY-08)
                Verdict::GiveUp(reason) => {
                    return Passed::Refused(Failure::of(&target.url, &outcome, reason.as_str()));
                }
                Verdict::RetryAt(wait) => {
                    order.subscriber.tally.retries.fetch_add(1, Relaxed);
                    let wait = spread(wait, &mut rng.borrow_mut());
                    self.shop.ring.sleep(wait).await;
                    if self.is_stopped() {
                        return Passed::NotStored("the subscriber is gone".into());
                    }
                }
            }
        }
        Passed::On
    }

    async fn give_up(self: &Rc<Self>, sight: &Sight, job: Job, failure: Failure) {
        let failure = Rc::new(failure);
        let job = Job { attempt: 0, leg: Leg::DeadLetter(Rc::clone(&failure)), ..job };
        self.bury(sight, job, failure).await;
    }

    /// Sends the event to the dead letter sink, or drops it with a reason (EV-DLV-08, -09, -11).
    async fn bury(self: &Rc<Self>, sight: &Sight, job: Job, failure: Rc<Failure>) {
        let order = &self.order(); // as it is now: the sink may have come or gone during the attempt
        let Some(sink) = &order.subscriber.dead_letter else {
            if self.holds(Hold::DeadLetters) {
                return self.keep_letter(job);
            }
            let end = if failure.reason == STALLED { End::Stalled } else { End::Sinkless };
            return self.drop_event(order, &sight.record, &job, &failure, end);
        };
        let rng = &self.shop.rng;
        let key = Arc::clone(&self.shop.inside_key.borrow());
        let sender = sender(order, &key);
        let working = self.working(Phase::Request, job.position);
        let out = request::to_dead_letter_sink(sight, &failure, sink, &sender, &mut rng.borrow_mut());
        drop(working);
        let outcome = self.post(order, sink, out, &job, What::LetterSent).await;
        if is_held(sink, outcome.as_ref().ok(), false) {
            return self.retry_refused(job);
        }
        match judge(heard(&outcome), job.attempt, &order.subscriber.delivery) {
            Verdict::Done | Verdict::Reply => {
                self.note(What::DeadLettered, &job, None, Duration::ZERO);
                self.settle(job.position, End::DeadLettered);
            }
            Verdict::RetryAt(wait) => self.retry_after(wait, job),
            Verdict::GiveUp(_) => {
                self.drop_event(order, &sight.record, &job, &failure, End::SinkRefused);
            }
        }
    }

    fn drop_event(&self, order: &Order, record: &Record, job: &Job, failure: &Failure, end: End) {
        let why = match end {
            End::SinkRefused => "the dead letter sink did not take it",
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
        self.note(What::Dropped, job, None, Duration::ZERO);
        self.settle(job.position, end);
    }

    fn retry_after(&self, wait: Duration, job: Job) {
        let at = self.shop.ring.now() + spread(wait, &mut self.shop.rng.borrow_mut());
        self.retry(at, Job { attempt: job.attempt + 1, ..job });
    }

    /// The event stays where it is, and the attempt does not count.
    fn retry_refused(&self, job: Job) {
        let at = self.shop.ring.now() + spread(REFUSED_RETRY_EVERY, &mut self.shop.rng.borrow_mut());
        self.retry(at, job);
    }

    /// Tells the flight recorder.
    pub(super) fn note(&self, what: What, job: &Job, status: Option<u16>, took: Duration) {
        let Some(journal) = &self.shop.journal else { return };
        journal.note(Note {
            what,
            subscriber: &self.place.subscriber,
            position: job.position,
            at_ms: 0, // the journal's to say
            status: status.unwrap_or(0),
            attempt: u16::try_from(job.attempt).unwrap_or(u16::MAX),
            took,
        });
    }

    /// One request.
    async fn post(
        &self,
        order: &Order,
        target: &Target,
        out: Outgoing,
        job: &Job,
        what: What,
    ) -> Result<Answer, PostError> {
        let timeout = match order.subscriber.delivery.timeout {
            Duration::ZERO => Delivery::TIMEOUT_DEFAULT,
            timeout => timeout,
        };
        let began = self.shop.ring.now();
        let outcome = self.shop.post.post(target, out, timeout).await;
        if let Err(why @ PostError::Untrusted { .. }) = &outcome {
            order.subscriber.tally.untrusted.fetch_add(1, Relaxed);
            // Told with the first attempt only: those after it are counted, and the end of an event is told.
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
        let took = self.shop.ring.now() - began;
        if what == What::Asked && outcome.is_ok() {
            self.pace.note(took);
        }
        order.subscriber.tally.dispatched.note(&Key::of(status.unwrap_or_default()), took);
        self.note(
            what,
            job,
            Some(outcome.as_ref().map_or_else(PostError::code, |answer| answer.status)),
            took,
        );
        outcome
    }
}

/// A stream of ours refuses our own delivery. With 401 it does not accept the token, which is ours to renew; with 403 a policy
/// keeps the sender out, which an operator mends or means. Neither is a reason to lose the event: it waits, unless it was
/// refused by a policy and there is a dead letter sink.
fn is_held(target: &Target, answer: Option<&Answer>, has_sink: bool) -> bool {
    target.is_stream
        && match answer.map(|answer| answer.status) {
            Some(401) => true,
            Some(403) => !has_sink,
            _ => false,
        }
}

fn heard(outcome: &Result<Answer, PostError>) -> Heard {
    Heard::of(outcome.as_ref().ok(), SystemTime::now)
}

/// In whose name: `NAMESPACE` of `NAMESPACE/NAME` (X-DLV-10).
fn sender<'a>(order: &'a Order, inside_key: &'a str) -> Sender<'a> {
    Sender { namespace: order.subscriber.label.split('/').next().unwrap_or_default(), inside_key }
}
