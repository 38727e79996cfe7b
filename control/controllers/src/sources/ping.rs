//! Runs PingSources: at each time of a schedule it sends one event to the sink, and retries until the event is accepted or
//! the attempts are used up.
//!
//! Events are sent like deliveries: a scaled-to-zero Service is started for one. An event to a Broker or a channel of this
//! appliance goes through the events listener, so it is durable once that has answered. Times that pass while the
//! appliance is down are not made up for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract::core_relay::CoreSenders;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use super::event_poster::EventPoster;
use super::event_sender::{self, OutgoingEvent, PING_ATTEMPTS_MAX};
use super::{PingOutcomes, SourceName};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Controller, ControllerFuture, Watches, item_of};
use crate::destination_resolver::DestinationAddress;
use crate::informer_cache::InformerCache;
use crate::work_queue::{ControllerKind, WorkItem};
use types::shared::{HasConditions as _, name, namespace};
use types::sources::ping::{PingSource, TYPE, is_header_value};

/// Events in flight at once; one that comes due beyond is dropped, and logged.
const IN_FLIGHT_MAX: usize = 256;
/// Longest sleep without a due time: clocks are set, and time zones change.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// How far a clock may be set back without computing the schedule again.
const CLOCK_STEP_BACK_MAX: SignedDuration = SignedDuration::from_secs(60);

/// The source attribute of a PingSource's events.
#[must_use]
pub fn source_of(namespace: &str, name: &str) -> String {
    format!("/apis/v1/namespaces/{namespace}/pingsources/{name}")
}

/// When a source's next event is due, and by which schedule that was computed.
#[derive(Debug, Clone, PartialEq)]
struct NextRun {
    schedule: String,
    timezone: String,
    at: Option<Timestamp>,
}

impl NextRun {
    fn after(ping: &PingSource, now: Timestamp) -> Self {
        let spec = &ping.spec;
        let at = spec.clock().ok().and_then(|(schedule, zone)| schedule.next(now, &zone));
        Self { schedule: spec.schedule.clone(), timezone: spec.timezone.clone(), at }
    }

    fn is_of(&self, ping: &PingSource) -> bool {
        self.schedule == ping.spec.schedule && self.timezone == ping.spec.timezone
    }
}

const KIND: ControllerKind = ControllerKind::new("PingSource");

/// The configuration of the PingSource controller.
#[derive(Debug, Clone)]
pub struct PingConfig {
    /// The outcomes of their events.
    pub outcomes: Arc<PingOutcomes>,
    /// The relay by which the cores send them, once they run.
    pub relay: Arc<OnceLock<CoreSenders>>,
}

#[derive(Debug)]
pub struct PingController {
    config: PingConfig,
    pings: InformerCache<PingSource>,
    /// A PingSource has changed, or the clock.
    changed: Notify,
    poster: EventPoster,
}

impl PingController {
    #[must_use]
    pub fn new(config: PingConfig) -> Self {
        let poster = EventPoster::new(Arc::clone(&config.relay));
        Self { config, pings: InformerCache::default(), changed: Notify::new(), poster }
    }
}

impl Controller for PingController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own(context.source(), &self.pings, move |change| {
            context.enqueue(item_of(KIND, change));
            self.changed.notify_one();
        });
        watches.resync(KIND, &self.pings);
        watches.on(ContextChange::ClockStepped, || self.changed.notify_one());
        watches.task(run(self, context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(super::reconcile(context, &self.pings, item))
    }
}

/// Runs forever.
async fn run(controller: &PingController, context: &ControllerContext) {
    let tally = &controller.config.outcomes;
    let ready = || {
        let is_there = |(namespace, name): &SourceName| controller.pings.get(namespace, name).is_some();
        tally.retain(is_there);
        controller.poster.retain(is_there);
        controller.pings.all().into_iter().filter(|ping| ping.is_ready()).collect()
    };
    let send = async |event: OutgoingEvent| {
        let from = event.from.clone();
        let count = |status, took| tally.record(&from, status, took);
        event_sender::send(event, PING_ATTEMPTS_MAX, count, async |event, request, timeout| {
            controller.poster.post(context, event, request, timeout).await
        })
        .await;
    };
    run_schedules(ready, &controller.changed, Timestamp::now, send).await;
}

/// Runs schedules forever, with the sources, the change notification, the clock and the transport as arguments.
async fn run_schedules<Sent: Future<Output = ()>>(
    ready: impl Fn() -> Vec<Arc<PingSource>>,
    notify: &Notify,
    clock: impl Fn() -> Timestamp,
    send: impl Fn(OutgoingEvent) -> Sent,
) {
    let mut diary = PingSchedule::default();
    let mut sending = FuturesUnordered::new();
    loop {
        let (due, wait) = diary.due_events(&ready(), clock());
        for event in due {
            if sending.len() < IN_FLIGHT_MAX {
                sending.push(send(event));
            } else {
                tracing::warn!(
                    source = event.attribute("source"),
                    "an event was dropped: {IN_FLIGHT_MAX} are on their way already"
                );
            }
        }
        let pause = tokio::time::sleep(wait);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                () = notify.notified() => break,
                // Many arrive at once, and none of them makes another one due.
                Some(()) = sending.next(), if !sending.is_empty() => {}
            }
        }
    }
}

/// The schedule of due events.
#[derive(Debug, Default)]
struct PingSchedule {
    /// Entries by the sources' uids.
    by_uid: HashMap<String, NextRun>,
    checked_at: Option<Timestamp>,
}

impl PingSchedule {
    /// The events that are due now, and how long nothing else is.
    fn due_events(&mut self, ready: &[Arc<PingSource>], now: Timestamp) -> (Vec<OutgoingEvent>, Duration) {
        let uid = |ping: &PingSource| ping.metadata.uid.clone().unwrap_or_default();
        let there: HashSet<String> = ready.iter().map(|ping| uid(ping)).collect();
        self.by_uid.retain(|known, _| there.contains(known));
        // A clock that was set back: the next time is computed again, or it would be silent until that time came again. Of
        // a small step nothing is thought, or an event that just left would leave twice.
        let last = self.checked_at.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < -CLOCK_STEP_BACK_MAX) {
            self.by_uid.clear();
        }
        let (mut events, mut wait) = (Vec::new(), POLL_INTERVAL);
        for ping in ready {
            let due = self.by_uid.entry(uid(ping)).or_insert_with(|| NextRun::after(ping, now));
            if !due.is_of(ping) {
                *due = NextRun::after(ping, now);
            }
            if due.at.is_some_and(|at| at <= now) {
                *due = NextRun::after(ping, now);
                events.extend(event(ping, now));
            }
            if let Some(at) = due.at {
                wait = wait.min(Duration::try_from(at.duration_since(now)).unwrap_or_default());
            }
        }
        (events, wait)
    }
}

/// The event of a source at this time.
fn event(ping: &PingSource, now: Timestamp) -> Option<OutgoingEvent> {
    let spec = &ping.spec;
    let status = ping.status.as_ref()?;
    let sink = DestinationAddress {
        url: status.sink_uri.clone()?,
        audience: status.sink_audience.clone(),
        ca_certs: status.sink_ca_certs.clone(),
    };
    let account = status.auth.as_ref().and_then(|auth| auth.service_account_name.clone());
    let body =
        if spec.data.is_empty() { STANDARD.decode(&spec.data_base64).ok()? } else { spec.data.clone().into_bytes() };
    let mut attributes = vec![
        ("specversion".to_owned(), "1.0".to_owned()),
        ("id".to_owned(), uuid::Uuid::new_v4().to_string()),
        ("source".to_owned(), source_of(namespace(&ping.metadata), name(&ping.metadata))),
        ("type".to_owned(), TYPE.to_owned()),
        ("time".to_owned(), now.to_string()),
    ];
    for (key, value) in spec.ce_overrides.iter().flat_map(|overrides| &overrides.extensions) {
        let key = key.to_ascii_lowercase(); // attributes have small letters alone
        attributes.retain(|(known, _)| *known != key);
        attributes.push((key, value.clone()));
    }
    // In binary mode the media type is a header of its own. One of before this was checked goes without.
    let named = attributes.iter().position(|(name, _)| name == "datacontenttype").map(|at| attributes.remove(at).1);
    let content_type = named.or_else(|| spec.media().map(str::to_owned)).filter(|media| is_header_value(media));
    let from = (namespace(&ping.metadata).to_owned(), name(&ping.metadata).to_owned());
    Some(OutgoingEvent { from, sink, account, attributes, content_type, body })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::pin::{Pin, pin};

    use serde_json::json;

    use super::*;

    fn ping(spec: serde_json::Value) -> PingSource {
        serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u" }, "spec": spec,
            "status": { "sinkUri": "http://sink" } }))
        .unwrap()
    }

    /// SRC-01, SRC-19, SRC-30, SRC-34, SRC-35: the event is upstream's, and the overrides, if any, replace what it has.
    #[test]
    fn an_event_has_its_data_and_the_overrides() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let event = event(
            &ping(json!({ "schedule": "* * * * *", "contentType": "text/plain", "data": "hi", "sink": {},
                "ceOverrides": { "extensions": { "type": "mine", "eXtra": "1" } } })),
            now,
        )
        .unwrap();
        assert_eq!(event.attribute("source"), "/apis/v1/namespaces/ns/pingsources/p");
        assert_eq!((event.attribute("type"), event.attribute("extra")), ("mine", "1"));
        assert_eq!(
            super::event(
                &ping(json!({ "schedule": "* * * * *", "contentType": "text/plain", "data": "hi", "sink": {},
                    "ceOverrides": { "extensions": { "datacontenttype": "text/x" } } })),
                now
            )
            .map(|event| (event.attribute("datacontenttype").to_owned(), event.content_type)),
            Some((String::new(), Some("text/x".to_owned())))
        );
        let plain = super::event(&ping(json!({ "schedule": "* * * * *", "data": "hi", "sink": {} })), now).unwrap();
        assert_eq!((plain.attribute("type"), plain.attribute("specversion")), (TYPE, "1.0"));
        assert_eq!((event.body.as_slice(), event.content_type.as_deref()), (&b"hi"[..], Some("text/plain")));
    }

    /// A source of this name and schedule.
    fn named(name: &str, schedule: &str) -> Arc<PingSource> {
        let mut source = ping(json!({ "schedule": schedule, "sink": {}, "data": "x" }));
        (source.metadata.name, source.metadata.uid) = (Some(name.into()), Some(name.into()));
        Arc::new(source)
    }

    /// A made-up world: half past twelve and thirty seconds, with a clock that may be set.
    struct PingFixture {
        sources: RefCell<Vec<Arc<PingSource>>>,
        notify: Notify,
        began: tokio::time::Instant,
        /// How much later it is than the time that passed says.
        ahead: Cell<SignedDuration>,
        /// When an event of which source left.
        sent: RefCell<Vec<String>>,
        /// The sink does not respond.
        hangs: Cell<bool>,
    }

    impl PingFixture {
        fn set(sources: Vec<Arc<PingSource>>) -> Self {
            Self {
                sources: RefCell::new(sources),
                notify: Notify::new(),
                began: tokio::time::Instant::now(),
                ahead: Cell::default(),
                sent: RefCell::default(),
                hangs: Cell::new(false),
            }
        }

        fn now(&self) -> Timestamp {
            let start: Timestamp = "2026-01-01T12:30:30Z".parse().unwrap();
            start + SignedDuration::try_from(self.began.elapsed()).unwrap() + self.ahead.get()
        }

        async fn take(&self, event: OutgoingEvent) {
            let name = event.attribute("source").rsplit('/').next().unwrap().to_owned();
            self.sent.borrow_mut().push(format!("{} {name}", self.now().strftime("%H:%M:%S")));
            if self.hangs.get() {
                std::future::pending::<()>().await;
            }
        }

        /// Advances the time by so much at once, and returns what was sent.
        async fn pass(&self, run: Pin<&mut impl Future<Output = ()>>, seconds: u64) -> Vec<String> {
            let pause = tokio::time::timeout(Duration::from_secs(seconds), run).await;
            assert!(pause.is_err(), "it runs for ever");
            self.sent.take()
        }
    }

    macro_rules! running {
        ($stage:expr) => {
            pin!(run_schedules(
                || $stage.sources.borrow().clone(),
                &$stage.notify,
                || $stage.now(),
                |event| $stage.take(event)
            ))
        };
    }

    /// SRC-01: an event for each time of the schedule, none twice; what changes counts from then on.
    #[tokio::test(start_paused = true)]
    async fn each_time_of_a_schedule_has_one_event_and_a_change_counts_at_once() {
        let stage = PingFixture::set(vec![named("a", "* * * * *"), named("b", "*/2 * * * *")]);
        let mut run = running!(stage);
        let first = stage.pass(run.as_mut(), 160).await;
        assert_eq!(first, ["12:31:00 a", "12:32:00 a", "12:32:00 b", "12:33:00 a"]);

        *stage.sources.borrow_mut() = vec![named("a", "35 * * * *"), named("c", "*/10 * * * * *")];
        stage.notify.notify_one();
        let second = stage.pass(run.as_mut(), 15).await;
        assert_eq!(second, ["12:33:20 c"], "a and b have nothing due, though they had");
        stage.sources.borrow_mut().clear();
        stage.notify.notify_one();
        assert!(stage.pass(run.as_mut(), 300).await.is_empty(), "what is gone is silent");
    }

    /// SRC-01: times that a clock jumps over do not come again, one that is set back by an hour is followed, and one that
    /// is set back by a little sends nothing twice.
    #[tokio::test(start_paused = true)]
    async fn clock_set_makes_no_burst_of_events() {
        let stage = PingFixture::set(vec![named("a", "*/5 * * * *")]);
        let mut run = running!(stage);
        assert_eq!(stage.pass(run.as_mut(), 300).await, ["12:35:00 a"]);
        stage.ahead.set(SignedDuration::from_hours(2));
        assert_eq!(stage.pass(run.as_mut(), 300).await.len(), 2, "one for what was due, one for the next");
        stage.ahead.set(SignedDuration::from_hours(1));
        let back = stage.pass(run.as_mut(), 1200).await;
        assert_eq!(back, ["13:45:00 a", "13:50:00 a", "13:55:00 a", "14:00:00 a"]);
        assert_eq!(stage.pass(run.as_mut(), 275).await, ["14:05:00 a"]);
        stage.ahead.set(SignedDuration::from_secs(3600 - 20));
        assert!(stage.pass(run.as_mut(), 60).await.is_empty(), "it is five past a second time");
    }

    /// SRC-01: a sink that hangs costs events beyond the limit, and other sources' schedules nothing.
    #[tokio::test(start_paused = true)]
    async fn sinks_that_hang_hold_no_more_than_the_limit() {
        let stage = PingFixture::set((0..IN_FLIGHT_MAX + 40).map(|n| named(&n.to_string(), "* * * * *")).collect());
        stage.hangs.set(true);
        let mut run = running!(stage);
        assert_eq!(stage.pass(run.as_mut(), 40).await.len(), IN_FLIGHT_MAX);
        assert!(stage.pass(run.as_mut(), 60).await.is_empty());
    }

    #[test]
    fn changed_schedule_is_computed_again() {
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let due = NextRun::after(&ping(json!({ "schedule": "* * * * *", "sink": {} })), now);
        assert_eq!(due.at.unwrap().to_string(), "2026-01-01T00:01:00Z");
        assert!(!due.is_of(&ping(json!({ "schedule": "@hourly", "sink": {} }))));
    }
}
