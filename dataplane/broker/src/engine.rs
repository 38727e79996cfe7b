//! The broker engine of a core: its logs, their deliveries and the ingress.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use codec::http::LocalResponse;
use codec::record::ExtensionHeader;
use contract::counters::{CoreCounters, LogCounters};
use contract::event_response::unavailable;
use contract::filter::steps::Steps;
use contract::request_histograms::OutcomeKey;
use contract::signal::{Signal, SignalQueue};
use contract::stream_admission::{StreamAdmission, VerifiedToken};
use contract::table::{Durability, EventStream, RoutingTable};
use ring::{Ring, prefetch};
use wal::{AppendError, LogPosition, WriteAheadLog};

use super::auth::{AuthError, Authenticator};
use super::delivery::{Dispatcher, EventSender, StoreDispatcher};
use super::delivery_log_writer::DeliveryLogWriter;
use super::extension_headers;
use super::feed::StreamFeed;
use super::ingress::{self, AcceptedRequest, IncomingEvent, IngressRejection, SubjectGrant};
use super::limits::{DEDUPLICATION_IDENTITIES_MAX, ENCODED_BYTES_PER_STEP, RECLAIM_EVERY, SIGNAL_RETRY_INTERVAL};
use super::log_writer::{AppendPriority, LogFailed, LogWriter};
use super::stalled::{CoreActivity, Phase};
use super::wall_clock::wall_clock_ms;

/// All event handling of one core.
pub struct BrokerEngine<P> {
    ring: Ring,
    /// The first takes appends; the others belonged to cores that no longer exist, and are drained.
    logs: Vec<LogPipeline<P>>,
    pub(super) home_writer: Rc<LogWriter>,
    /// Deliveries from external stores.
    stores: StoreDispatcher<P>,
    authenticator: Authenticator,
    rng: RefCell<fastrand::Rng>,
}

/// A log, the deliveries from it, and their delivery log: in the same log, since an entry identifies an
/// event by its position there.
struct LogPipeline<P> {
    writer: Rc<LogWriter>,
    dispatcher: Rc<Dispatcher<P>>,
    delivery_log: DeliveryLogWriter,
}

impl<P: EventSender + Clone> BrokerEngine<P> {
    /// Takes over `home` and the logs of removed cores in `others`, and starts their tasks. `owns` says which subscribers
    /// of external stores this core serves.
    pub fn open(
        ring: &Ring,
        home: WriteAheadLog,
        others: Vec<WriteAheadLog>,
        post: &P,
        (seed, owns): (u64, impl Fn(&str) -> bool + 'static),
    ) -> Rc<Self> {
        let home = LogWriter::new(ring, home);
        let mut writers = vec![Rc::clone(&home)];
        writers.extend(others.into_iter().map(|log| LogWriter::new(ring, log)));
        writers.iter().enumerate().for_each(|(number, writer)| writer.set_number(number));
        let mut rng = fastrand::Rng::with_seed(seed);
        let logs = writers.into_iter().map(|writer| {
            let delivery_log = DeliveryLogWriter::new(&writer);
            let kept = Some(delivery_log.clone());
            let dispatcher = Dispatcher::new(ring, &writer, &home, kept, post.clone(), rng.u64(..));
            LogPipeline { writer, dispatcher, delivery_log }
        });
        let logs: Vec<LogPipeline<P>> = logs.collect();
        let stores = logs[0].dispatcher.store_dispatcher(owns);
        let (authenticator, rng) = (Authenticator::default(), RefCell::new(rng));
        Rc::new(Self { ring: ring.clone(), logs, home_writer: home, stores, authenticator, rng })
    }

    /// Starts the tasks that own the logs. The failure of a log is reported until control receives it.
    pub fn start(self: &Rc<Self>, core: usize, signals: &SignalQueue, counters: &Arc<CoreCounters>) {
        self.ring.spawn(Rc::clone(self).maintain(Arc::clone(counters)));
        for LogPipeline { writer, dispatcher, delivery_log } in &self.logs {
            let (delivery_log, ring) = (delivery_log.clone(), self.ring.clone());
            self.ring.spawn(async move { delivery_log.append(&ring).await });
            let (writer, ring, signals) = (Rc::clone(writer), self.ring.clone(), signals.clone());
            self.ring.spawn(async move {
                let LogFailed { reason } = writer.run().await;
                if writer.is_released() {
                    return;
                }
                tracing::error!(core, %reason, "the log failed: nothing more is accepted");
                while !signals.send(Signal::LogFailed { core, reason: reason.clone() }) {
                    ring.sleep(SIGNAL_RETRY_INTERVAL).await;
                }
            });
            let dispatcher = Rc::clone(dispatcher);
            self.ring.spawn(async move { dispatcher.remove_deleted().await });
        }
    }

    /// Runs once per [`RECLAIM_EVERY`]: retention, space, files, counters; until the logs are released.
    async fn maintain(self: Rc<Self>, counters: Arc<CoreCounters>) {
        while !self.home_writer.is_released() {
            for LogPipeline { writer, dispatcher, .. } in self.logs.iter().filter(|kept| !kept.writer.is_released()) {
                dispatcher.retain(wall_clock_ms());
                writer.maintain();
            }
            let stats: Vec<_> = self.logs.iter().map(|kept| kept.writer.log().stat()).collect();
            let failed = self.logs.iter().filter(|kept| kept.writer.log().poison().is_some()).count();
            show_logs(&counters.log, &stats, failed as u64);
            let flush_time: Duration = self.logs.iter().map(|kept| kept.writer.flush_time()).sum();
            counters.log.flush_us.store(u64::try_from(flush_time.as_micros()).unwrap_or(u64::MAX), Relaxed);
            self.ring.sleep(RECLAIM_EVERY).await;
        }
    }

    /// Starts and stops subscribers to match the table: call it when the core is woken. An error of one
    /// stream does not stop the others.
    pub fn sync(&self, table: &Arc<RoutingTable>) -> Result<(), AppendError> {
        self.stores.sync(table);
        self.logs.iter().map(|kept| kept.dispatcher.sync(table)).fold(Ok(()), Result::and)
    }

    /// For each log: the undelivered events of a subscriber, by its cursor and by the counters.
    #[cfg(test)]
    pub(super) fn outstanding(&self, stream: &EventStream, subscriber: &str) -> Vec<(u64, u64)> {
        self.logs.iter().filter_map(|kept| kept.dispatcher.outstanding(stream, subscriber)).collect()
    }

    /// An event must not be stored before all its subscribers are registered (EV-TRG-12).
    fn prepare(&self, table: &Arc<RoutingTable>, stream: &EventStream) -> Result<(), AppendError> {
        let synced = self.sync(table);
        let is_ready = self.logs.first().is_some_and(|kept| kept.dispatcher.serves(stream));
        if is_ready { Ok(()) } else { synced }
    }

    /// Starts no more deliveries; resolves once those in flight have ended and the cursors are durable.
    pub async fn drain(&self) {
        self.stores.drain().await;
        for LogPipeline { dispatcher, delivery_log, .. } in &self.logs {
            dispatcher.drain().await;
            delivery_log.write();
        }
        for LogPipeline { writer, .. } in &self.logs {
            writer.settle().await;
        }
    }

    /// Releases the logs to another process, after [`BrokerEngine::drain`].
    pub async fn release(&self) {
        for LogPipeline { writer, .. } in &self.logs {
            if let Err(why) = writer.release().await {
                tracing::error!(%why, "a log cannot be handed over");
            }
        }
    }

    /// Answers one request of the events listener. Method and path are those of the request line.
    pub async fn answer<'a>(
        &self,
        table: &'a Arc<RoutingTable>,
        method: &str,
        path: &str,
        headers: &'a [(&'a str, &'a [u8])],
        body: &'a [u8],
    ) -> LocalResponse {
        let began = self.ring.now();
        let stream = ingress::find(table, path);
        if let Some(stream) = stream {
            self.home_writer.read_ahead(stream);
        }
        let stream_at = stream.map_or(0, |stream| Arc::as_ptr(stream).addr());
        let work = CoreActivity {
            phase: Phase::Intake,
            log: 0,
            stream: stream_at,
            subscriber: 0,
            position: LogPosition::ORIGIN,
        };
        // An ordered stream stores events in the order of arrival, so a later request must not overtake one that waits.
        let is_ordered = stream.is_some_and(|stream| stream.in_order);
        if !is_ordered && !self.ring.has_budget_remaining() {
            self.ring.budget_remaining().await; // other expensive work of this turn came first
        }
        self.ring.charge(body.len() / ENCODED_BYTES_PER_STEP);
        let working = self.ring.heartbeat().begin(work.encode());
        let judged = self.judge(method, stream, headers, body);
        drop(working);
        let answer = match judged {
            Err(refusal) => ingress::refused(&refusal),
            Ok(intake) => {
                let extensions = extension_headers::select(headers.iter().copied(), None, &mut self.rng.borrow_mut());
                let (tally, events) = (&intake.stream.tally, intake.events.len() as u64);
                if intake.is_latin1 {
                    tally.latin1.fetch_add(1, Relaxed);
                }
                tally.stored.look_ahead();
                let inside = ingress::is_internal(table, headers);
                let answer = self.take_in(table, intake, &extensions, inside).await;
                tally.stored.note_each(events, &OutcomeKey::of(answer.status), self.ring.now() - began);
                answer
            }
        };
        if let Some(stream) = stream.filter(|_| answer.status >= 400) {
            stream.tally.refused.fetch_add(1, Relaxed);
        }
        answer
    }

    /// Rejects a request of a sender that is not authenticated, by its head: its body is not received.
    pub fn reject_unauthenticated(
        &self,
        stream: &EventStream,
        method: &str,
        headers: &[(&str, &[u8])],
    ) -> Option<LocalResponse> {
        let admission = stream.admission.as_ref().filter(|_| method == "POST")?;
        let why = self.identify(admission, headers).err()?;
        stream.tally.unauthorized.fetch_add(1, Relaxed);
        stream.tally.refused.fetch_add(1, Relaxed);
        Some(ingress::refused(&why.into()))
    }

    /// Admits a request for a sink, by its event if it has one (`body`), or returns the reason why not.
    pub(super) fn admit_to_sink(
        &self,
        admission: &StreamAdmission,
        headers: &[(&str, &[u8])],
        body: Option<&[u8]>,
    ) -> Result<(), IngressRejection> {
        let sender = self.identify(admission, headers)?;
        let is_admitted = match (SubjectGrant::of(admission, &sender.subject), body) {
            (SubjectGrant::Nothing, _) => false,
            (SubjectGrant::Everything, _) | (SubjectGrant::Filtered(_), None) => true,
            (SubjectGrant::Filtered(filters), Some(body)) => {
                let (events, _) = ingress::parse(headers, body)?;
                let events: Vec<_> = events.into_iter().map(|event| IncomingEvent { event, hops_left: 0 }).collect();
                let steps = Steps::default();
                let is_admitted = ingress::passes(&filters, &events, &steps);
                self.ring.charge(steps.used());
                is_admitted
            }
        };
        if is_admitted { Ok(()) } else { Err(IngressRejection::Forbidden { subject: sender.subject.clone() }) }
    }

    pub(super) fn identify(
        &self,
        admission: &StreamAdmission,
        headers: &[(&str, &[u8])],
    ) -> Result<Rc<VerifiedToken>, AuthError> {
        self.authenticator.identify(admission, headers, wall_clock_ms() / 1000)
    }

    /// Authenticates before parsing, so that an unauthenticated sender learns nothing; authorizes after
    /// parsing.
    fn judge<'a>(
        &self,
        method: &str,
        stream: Option<&'a Arc<EventStream>>,
        headers: &'a [(&'a str, &'a [u8])],
        body: &'a [u8],
    ) -> Result<AcceptedRequest<'a>, IngressRejection> {
        let stream = ingress::addressed(method, stream)?;
        prefetch(&*stream.tally);
        let Some(admission) = &stream.admission else { return ingress::read(stream, headers, body) };
        let count = |refusal| {
            stream.tally.unauthorized.fetch_add(1, Relaxed);
            refusal
        };
        let sender = self.identify(admission, headers).map_err(|why| count(why.into()))?;
        let intake = ingress::read(stream, headers, body)?;
        let steps = Steps::default();
        let is_admitted = ingress::admits(admission, &sender.subject, &intake.events, &steps);
        self.ring.charge(steps.used());
        if is_admitted {
            return Ok(intake);
        }
        Err(count(IngressRejection::Forbidden { subject: sender.subject.clone() }))
    }

    /// Appends a record that already is an event of this stream: a replay. It counts against the quota like
    /// any other, and is always durable before it is acknowledged.
    pub async fn copy(&self, table: &Arc<RoutingTable>, path: &str, record: &[u8]) -> LocalResponse {
        let Some(stream) = ingress::find(table, path).filter(|stream| stream.external.is_none()) else {
            return ingress::refused(&ingress::IngressRejection::UnknownPath);
        };
        match self.append_record(table, stream, &[record]) {
            Ok(appended) => self.acknowledge(stream, 1, Ok(appended), Durability::default()).await,
            Err(refused) => refused,
        }
    }

    /// Appends a record, given in parts, to a stream of this core's log. It counts against the quota.
    pub(super) fn append_record(
        &self,
        table: &Arc<RoutingTable>,
        stream: &Arc<EventStream>,
        record: &[&[u8]],
    ) -> Result<Range<LogPosition>, LocalResponse> {
        if let Some(refused) = over_quota(stream) {
            stream.tally.refused.fetch_add(1, Relaxed);
            return Err(refused);
        }
        let appended = self.prepare(table, stream).and_then(|()| {
            let feed = self.home_writer.feed_of(stream)?;
            self.home_writer.append(&feed, &[record])
        });
        appended.map_err(|why| ingress::not_stored(&why))
    }

    /// All logs of this core.
    pub(super) fn writers(&self) -> impl Iterator<Item = &Rc<LogWriter>> {
        self.logs.iter().map(|kept| &kept.writer)
    }

    /// Appends, waits for the disk, and only then answers 202 (EV-RTE-02, DP-ACK-02); unless the stream is
    /// configured to answer sooner.
    ///
    /// `inside`: the namespace of our own stream that forwards the event. Within a namespace no quota
    /// rejects it, because the amount of stored data does not grow; and a full log accepts it.
    async fn take_in(
        &self,
        table: &Arc<RoutingTable>,
        intake: AcceptedRequest<'_>,
        extensions: &[ExtensionHeader<'_>],
        inside: Option<&str>,
    ) -> LocalResponse {
        let AcceptedRequest { stream, events, .. } = intake;
        if events.is_empty() {
            return ingress::accepted(); // an empty batch
        }
        if inside != Some(stream.namespace())
            && let Some(refused) = over_quota(stream)
        {
            return refused;
        }
        let priority = if inside.is_some() { AppendPriority::Onward } else { AppendPriority::New };
        if let Some(types) = &stream.types {
            events.iter().for_each(|entering| types.note_event(&entering.event, ""));
        }
        if let Some(external) = &stream.external {
            return Box::pin(self.publish(stream, external, &events, extensions)).await;
        }
        let delay = stream.keeping.durability.flush_interval().unwrap_or_default();
        let feed = match self.prepare(table, stream).and_then(|()| self.home_writer.feed_of(stream)) {
            Ok(feed) => feed,
            Err(why) => return ingress::not_stored(&why),
        };
        if stream.keeping.deduplication_window.is_zero() {
            let appended = self.append(&feed, events.iter(), extensions, priority, delay);
            return self.acknowledge(stream, events.len() as u64, appended, stream.keeping.durability).await;
        }
        let (count, appended) = self.append_new(stream, &feed, &events, extensions, priority);
        self.acknowledge(stream, count, appended, stream.keeping.durability).await
    }

    fn append<'e>(
        &self,
        feed: &Rc<StreamFeed>,
        events: impl Iterator<Item = &'e IncomingEvent<'e>> + Clone,
        extensions: &[ExtensionHeader<'_>],
        priority: AppendPriority,
        delay: Duration,
    ) -> Result<Range<LogPosition>, AppendError> {
        let heads: Vec<Vec<u8>> = events.clone().map(|e| e.head(extensions)).collect();
        let parts: Vec<[&[u8]; 2]> =
            heads.iter().zip(events).map(|(head, e)| [&**head, e.event.data.bytes()]).collect();
        let records: Vec<&[&[u8]]> = parts.iter().map(|parts| &parts[..]).collect();
        self.home_writer.append_within(feed, &records, priority, delay)
    }

    /// Appends the events that the stream did not have within its deduplication window. Returns their number, and the
    /// range to wait for: the duplicates' first copies may not be durable yet either.
    fn append_new(
        &self,
        stream: &EventStream,
        feed: &Rc<StreamFeed>,
        events: &[IncomingEvent<'_>],
        extensions: &[ExtensionHeader<'_>],
        priority: AppendPriority,
    ) -> (u64, Result<Range<LogPosition>, AppendError>) {
        let delay = stream.keeping.durability.flush_interval().unwrap_or_default();
        let recent = &mut *feed.recent.borrow_mut();
        let Some(recent) = recent else {
            // The table is newer than the feed: its window opens with the next event.
            return (events.len() as u64, self.append(feed, events.iter(), extensions, priority, delay));
        };
        let now = self.ring.now();
        let new = recent.select(events, priority == AppendPriority::Onward, now);
        let known = new.known_end.unwrap_or_default();
        let appended = if new.events.is_empty() {
            Ok(known..known)
        } else {
            self.append(feed, new.events.iter().copied(), extensions, priority, delay)
        };
        let waited_for = appended.map(|range| {
            recent.remember(&new, range.end, now);
            stream.tally.deduplicated.fetch_add(new.duplicates, Relaxed);
            if recent.must_report_limit() {
                let (stream, max) = (&*stream.name, DEDUPLICATION_IDENTITIES_MAX);
                tracing::warn!(
                    stream,
                    max,
                    "the deduplication window is shorter than configured: a core remembers no more events"
                );
            }
            range.start..range.end.max(known)
        });
        (new.events.len() as u64, waited_for)
    }

    pub(super) async fn acknowledge(
        &self,
        stream: &EventStream,
        count: u64,
        appended: Result<Range<LogPosition>, AppendError>,
        durability: Durability,
    ) -> LocalResponse {
        let end = match appended {
            Ok(range) => range.end,
            Err(why) => return ingress::not_stored(&why),
        };
        if durability.flush_interval().is_some() {
            stream.tally.accepted.fetch_add(count, Relaxed);
            stream.tally.accepted_unflushed.fetch_add(count, Relaxed);
            return ingress::accepted();
        }
        match self.home_writer.durable(end).await {
            Ok(()) => {
                stream.tally.accepted.fetch_add(count, Relaxed);
                ingress::accepted()
            }
            Err(failed) => unavailable(&failed.to_string()),
        }
    }
}

fn over_quota(stream: &EventStream) -> Option<LocalResponse> {
    let quota = stream.quota.exhausted()?;
    stream.tally.over_quota.fetch_add(1, Relaxed);
    Some(ingress::over_quota(quota))
}

/// Shows the state of a core's logs in its counters.
fn show_logs(counters: &LogCounters, stats: &[wal::LogStat], failed: u64) {
    type CounterGetter = fn(&wal::LogStat) -> u64;
    let all: [(&std::sync::atomic::AtomicU64, CounterGetter); 9] = [
        (&counters.flushes, |stat| stat.flushes),
        (&counters.flushed_bytes, |stat| stat.flushed_bytes),
        (&counters.unflushed_bytes, |stat| stat.staged_bytes as u64),
        (&counters.compacted_bytes, |stat| stat.compacted_bytes),
        (&counters.bytes, |stat| stat.bytes),
        (&counters.bytes_max, |stat| stat.bytes_max),
        (&counters.live_bytes, |stat| stat.live_bytes),
        (&counters.damaged, |stat| stat.damaged),
        (&counters.broken, |stat| stat.broken as u64),
    ];
    for (shown, pick) in all {
        shown.store(stats.iter().map(pick).sum(), Relaxed);
    }
    counters.failed.store(failed, Relaxed);
}
