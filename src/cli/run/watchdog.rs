//! Finds stalled cores, logs what each works on, and writes it down for the next start.
//!
//! A thread checks every core's count of turns, [`LOOKS_PER_TIMEOUT`] times within `--core-stall-timeout`.
//! It counts its own checks and not the clock, so that a process which was stopped as a whole, or a
//! suspended machine, causes no stall.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::broker::stalled::{self, CoreActivity, StalledEvent};
use dataplane::counters::CoreCounters;
use dataplane::table::{EventStream, RoutingTable, Subscriber};
use dataplane::table_publisher::TablePublisher;

use super::cores::RunningCores;
use crate::admin::Health;
use crate::config::RunConfig;

const LOOKS_PER_TIMEOUT: u32 = 8;

/// Other subscribers that a log line names beside their number: a stream can have thousands.
const OTHERS_NAMED_MAX: usize = 16;

/// Starts the thread, unless the timeout is 0. It ends with the process.
pub(super) fn start(
    config: &RunConfig,
    cores: &RunningCores,
    tables: &Arc<TablePublisher>,
    health: &Arc<Health>,
) -> Result<()> {
    let Some(timeout) = config.stall_timeout() else { return Ok(()) };
    let each = cores.counters.iter().zip(&cores.logs_of).enumerate();
    let mut watched: Vec<Watched> =
        each.map(|(core, (counters, logs))| Watched::new(core, Arc::clone(counters), logs.clone())).collect();
    let (tables, health) = (Arc::clone(tables), Arc::clone(health));
    let every = timeout / LOOKS_PER_TIMEOUT;
    #[expect(clippy::disallowed_methods, reason = "this thread is the watchdog's own, and blocks no core")]
    let watch = move || {
        while !watched.iter().all(|one| one.counters.heartbeat.has_ended()) {
            std::thread::sleep(every);
            let table = tables.load();
            for one in &mut watched {
                if let Some(change) = one.look(every) {
                    change.carry_out(one, &table, &health);
                }
                if one.looks == 0 {
                    one.table = Arc::clone(&table);
                }
            }
        }
    };
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).context("no thread for the watchdog")?;
    Ok(())
}

/// One core.
struct Watched {
    core: usize,
    counters: Arc<CoreCounters>,
    /// Its own first.
    logs: Vec<PathBuf>,
    turns: u64,
    /// Checks since the last turn.
    looks: u32,
    is_stalled: bool,
    /// The record of the current stall.
    noted: Option<(PathBuf, StalledEvent)>,
    /// As of the last check that found a turn: the current work may refer to an older table than the newest one.
    table: Arc<RoutingTable>,
}

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// It has been stalled, for this long.
    Stalled(Duration),
    Recovered,
}

impl Watched {
    fn new(core: usize, counters: Arc<CoreCounters>, logs: Vec<PathBuf>) -> Self {
        let table = Arc::default();
        Self { core, counters, logs, turns: 0, looks: 0, is_stalled: false, noted: None, table }
    }

    fn look(&mut self, every: Duration) -> Option<Change> {
        let turns = self.counters.heartbeat.turns();
        if turns != self.turns || self.counters.heartbeat.has_ended() {
            (self.turns, self.looks) = (turns, 0);
            return std::mem::take(&mut self.is_stalled).then_some(Change::Recovered);
        }
        self.looks = self.looks.saturating_add(1);
        (self.looks >= LOOKS_PER_TIMEOUT).then(|| Change::Stalled(every * self.looks))
    }
}

impl Change {
    fn carry_out(self, one: &mut Watched, table: &RoutingTable, health: &Health) {
        let core = one.core;
        let Self::Stalled(silent) = self else {
            health.stalls.set(core, None);
            let noted = one.noted.take().map_or(Ok(()), |(folder, event)| forget(&folder, &event));
            tracing::warn!(core, "the core runs again");
            return tell_failed(noted);
        };
        let activity = CoreActivity::decode(one.counters.heartbeat.work());
        let on = On::of(activity, [table, &one.table]);
        let silent_s = silent.as_secs_f64();
        let stall_text = on.stall_text(one, table);
        health.stalls.set(core, Some(format!("core {core} has made no progress for {silent_s:.1} s: {stall_text}")));
        if std::mem::replace(&mut one.is_stalled, true) {
            return;
        }
        one.counters.stalls.fetch_add(1, Relaxed);
        tracing::error!(
            core,
            silent_s,
            stream = on.stream.as_deref().map(|stream| &*stream.name),
            subscriber = on.subscriber.as_deref().map(|subscriber| &*subscriber.label),
            position = on.activity.map(|activity| activity.position.get()),
            phase = on.activity.map(|activity| activity.phase.name()),
            "the core makes no progress: {stall_text}; after kill -9 the next start sets the current event aside{}",
            on.text_of_others()
        );
        if let Some((folder, event)) = on.event(one) {
            let written = note(&folder, &event);
            one.noted = Some((folder, event));
            tell_failed(written);
        }
    }
}

fn tell_failed(written: std::io::Result<()>) {
    if let Err(why) = written {
        tracing::error!(%why, "cannot write down which event stops a core: a restart tries it again");
    }
}

/// The work of a core, by name.
struct On {
    activity: Option<CoreActivity>,
    stream: Option<Arc<EventStream>>,
    subscriber: Option<Arc<Subscriber>>,
}

impl On {
    /// Addresses are only compared: their objects may be gone.
    fn of(activity: Option<CoreActivity>, tables: [&RoutingTable; 2]) -> Self {
        let is_worked_on =
            |stream: &&Arc<EventStream>| activity.is_some_and(|activity| Arc::as_ptr(stream).addr() == activity.stream);
        let stream = tables.into_iter().find_map(|table| table.streams.values().find(is_worked_on).cloned());
        let is_asked =
            |one: &&Arc<Subscriber>| activity.is_some_and(|activity| Arc::as_ptr(one).addr() == activity.subscriber);
        let subscriber = stream.as_ref().and_then(|stream| stream.subscribers.iter().find(is_asked).cloned());
        Self { activity, stream, subscriber }
    }

    fn stall_text(&self, one: &Watched, newest: &RoutingTable) -> String {
        let Some(activity) = self.activity else {
            // A turn of many pieces of work, between two of them.
            let last = CoreActivity::decode(one.counters.heartbeat.last_work());
            let Some(last) = last else { return "it works on no event".to_owned() };
            let last = Self::of(Some(last), [newest, &one.table]);
            return format!("its latest work was the {}", last.stall_text(one, newest));
        };
        let stream = self.stream.as_ref().map_or("(deleted)", |stream| &*stream.name);
        let subscriber = match (&self.subscriber, activity.subscriber) {
            (Some(subscriber), _) => &*subscriber.label,
            (None, 0) => "-",
            (None, _) => "(deleted)",
        };
        let log = one.logs.get(activity.log).map_or_else(String::new, |log| log.display().to_string());
        format!(
            "{} of stream {stream}, subscriber {subscriber}, event at position {} of {log}",
            activity.phase.name(),
            activity.position
        )
    }

    /// The event that is set aside if the process is ended now, and the log's folder. `None`: no event in a
    /// log, or its stream is unknown.
    fn event(&self, one: &Watched) -> Option<(PathBuf, StalledEvent)> {
        let activity = self.activity.filter(|activity| activity.phase != stalled::Phase::Intake)?;
        let folder = one.logs.get(activity.log)?.clone();
        let subscriber = match (&self.subscriber, activity.subscriber) {
            (Some(subscriber), _) => subscriber.name.to_string(),
            (None, 0) => String::new(),
            (None, _) => return None,
        };
        let stream = self.stream.as_ref()?.name.to_string();
        let (position, phase) = (activity.position.get(), activity.phase);
        let other_subscribers = self.others().map(|other| other.name.to_string()).collect();
        Some((folder, StalledEvent { stream, subscriber, position, phase, other_subscribers }))
    }

    /// The subscribers for which the event is set aside too.
    fn others(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        let known = self.activity.zip(self.stream.as_ref()).zip(self.subscriber.as_ref());
        known
            .into_iter()
            .flat_map(|((activity, stream), subscriber)| stalled::others_at_risk(stream, subscriber, activity.phase))
    }

    fn text_of_others(&self) -> String {
        let count = self.others().count();
        if count == 0 {
            return String::new();
        }
        let labels: Vec<&str> = self.others().take(OTHERS_NAMED_MAX).map(|other| &*other.label).collect();
        let rest = if count > labels.len() { ", …" } else { "" };
        format!(", also for {count} other subscribers whose work on it is alike: {}{rest}", labels.join(", "))
    }
}

fn note(folder: &std::path::Path, event: &StalledEvent) -> std::io::Result<()> {
    let mut all = stalled::read(folder);
    all.retain(|other| other != event);
    all.push(event.clone());
    stalled::write(folder, &all)
}

fn forget(folder: &std::path::Path, event: &StalledEvent) -> std::io::Result<()> {
    let mut all = stalled::read(folder);
    all.retain(|other| other != event);
    stalled::write(folder, &all)
}

#[cfg(test)]
mod tests {
    use dataplane::broker::stalled::Phase;
    use dataplane::table::{DeliveryPolicy, DeliveryTarget, EventFilter, HoldReason, InitialOffset, ReplyTarget};

    use super::*;

    const EVERY: Duration = Duration::from_millis(250);

    fn watched(logs: Vec<PathBuf>) -> Watched {
        Watched::new(0, Arc::default(), logs)
    }

    #[test]
    fn core_without_turn_for_timeout_is_stalled() {
        let mut one = watched(Vec::new());
        for _ in 1..LOOKS_PER_TIMEOUT {
            assert_eq!(one.look(EVERY), None);
        }
        assert_eq!(one.look(EVERY), Some(Change::Stalled(EVERY * LOOKS_PER_TIMEOUT)));
        one.is_stalled = true;
        one.counters.heartbeat.end();
        assert_eq!((one.look(EVERY), one.look(EVERY)), (Some(Change::Recovered), None));
    }

    fn stream(subscribers: Vec<Arc<Subscriber>>) -> Arc<EventStream> {
        Arc::new(EventStream {
            name: "broker/ns/b/1".into(),
            event_bytes_max: 1,
            keeping: dataplane::table::RetentionPolicy::default(),
            quota: Arc::default(),
            in_order: false,
            is_closed: false,
            guards_loops: true,
            types: None,
            admission: None,
            subscribers,
            external: None,
            tally: Arc::default(),
        })
    }

    /// The others whose filters may stop a core at the same event are recorded and logged with it.
    #[test]
    fn stalled_event_is_recorded_for_other_subscribers() {
        let subscriber = |name: &str, filter: EventFilter| {
            let target = DeliveryTarget {
                url: "http://s/".into(),
                authority: "s".into(),
                host: "s".into(),
                port: 80,
                path: "/".into(),
                is_stream: false,
                access_token: None,
                tls: None,
            };
            Arc::new(Subscriber {
                name: name.into(),
                label: format!("ns/{name}").into(),
                filter,
                target,
                reply: ReplyTarget::Discard,
                dead_letter: None,
                hold: HoldReason::Nothing,
                delivery: DeliveryPolicy::ONCE,
                initial_offset: InitialOffset::Now,
                tally: Arc::default(),
            })
        };
        let exact = || EventFilter::Exact(vec![("type".into(), "t".into())]);
        let mut subscribers = vec![subscriber("stalled", exact()), subscriber("all", EventFilter::Everything)];
        subscribers.extend((0..=OTHERS_NAMED_MAX).map(|nth| subscriber(&format!("alike-{nth}"), exact())));
        let stalled = Arc::as_ptr(&subscribers[0]).addr();
        let stream = stream(subscribers);
        let mut table = RoutingTable::default();
        table.streams.insert("/brokers/ns/b".into(), Arc::clone(&stream));
        let activity = CoreActivity {
            phase: Phase::Filter,
            log: 0,
            stream: Arc::as_ptr(&stream).addr(),
            subscriber: stalled,
            position: wal::LogPosition::new(77),
        };

        let on = On::of(Some(activity), [&table, &table]);
        let (_, event) = on.event(&watched(vec!["log".into()])).unwrap();
        assert_eq!((&*event.subscriber, event.other_subscribers.len()), ("stalled", OTHERS_NAMED_MAX + 1));
        assert!(!event.other_subscribers.contains(&"all".to_owned()));
        let text = on.text_of_others();
        assert!(text.contains("for 17 other subscribers") && text.contains("ns/alike-0, ns/alike-1,"), "{text}");
        assert!(text.ends_with(", …"), "{text}");
    }

    /// An event is recorded while the core is stalled, and the record is removed when the core continues.
    #[test]
    fn stalled_event_is_recorded_until_core_continues() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = watched(vec![folder.path().to_owned()]);
        let stream = stream(Vec::new());
        let mut table = RoutingTable::default();
        table.streams.insert("/brokers/ns/b".into(), Arc::clone(&stream));
        let activity = CoreActivity {
            phase: Phase::Filter,
            log: 0,
            stream: Arc::as_ptr(&stream).addr(),
            subscriber: 0,
            position: wal::LogPosition::new(77),
        };
        let heartbeat = Arc::clone(&one.counters);
        let working = heartbeat.heartbeat.begin(activity.encode());
        let health = Health::default();

        let stall_text = On::of(Some(activity), [&table, &table]).stall_text(&one, &table);
        assert!(
            stall_text.starts_with("filter of stream broker/ns/b/1, subscriber -, event at position 77"),
            "{stall_text}"
        );
        Change::Stalled(EVERY).carry_out(&mut one, &table, &health);
        Change::Stalled(EVERY).carry_out(&mut one, &table, &health);
        let noted = stalled::read(folder.path());
        assert_eq!(noted.len(), 1);
        assert_eq!((&*noted[0].stream, noted[0].position), ("broker/ns/b/1", 77));
        assert_eq!(one.counters.stalls.load(Relaxed), 1, "one stall, however long");

        drop(working);
        let between = On::of(None, [&table, &table]).stall_text(&one, &table);
        assert_eq!(between, format!("its latest work was the {stall_text}"));
        Change::Recovered.carry_out(&mut one, &table, &health);
        assert_eq!(stalled::read(folder.path()), []);
    }
}
