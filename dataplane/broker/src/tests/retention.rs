//! How long events are retained, what a 202 promises, and which events exceed a quota.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use contract::load::ByteQuota;
use contract::table::{DeliveryOrder, Durability, EventStream, RetentionPolicy};
use ring::sim::{FaultProfile, Simulation};
use wal::WriteAheadLog;

use super::{BrokerFixture, PATH, ScriptedAnswer, ends, folder, options, seconds, trigger};
use crate::limits::{GATHER_MAX, GATHERED_BYTES_MAX, UNFINISHED_MAX};
use crate::log_writer::LogWriter;

const URL: &str = "http://s/";

fn unreachable(rig: &BrokerFixture) {
    rig.rule(|_| ScriptedAnswer::Status(503));
}

fn all(stream: &EventStream) -> u64 {
    ends(stream, 0).iter().sum()
}

fn lagging() -> contract::table::Subscriber {
    let mut subscriber = trigger("t", URL);
    subscriber.delivery.retries_max = 1000;
    subscriber
}

async fn post_many(rig: &BrokerFixture, events: usize) {
    for nth in 0..events {
        assert_eq!(rig.post(&format!("{nth}"), "a").await, 202, "{nth}");
    }
}

/// EV-RTE-02, AMB-47: a stream without a durability promise answers 202 at once, counts it separately, and
/// the event is delivered within the interval; by default the 202 is sent when the event is durable.
#[test]
fn interval_stream_acknowledges_before_flush() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let interval = Duration::from_millis(700);
    for (durability, early) in [(Durability::Flush, 0), (Durability::Interval(interval), 2), (Durability::None, 2)] {
        rig.keeping.set(RetentionPolicy { durability, ..RetentionPolicy::default() });
        let stream = rig.publish(vec![trigger("t", URL)]);
        rig.run(async {
            rig.sync();
            rig.rest(seconds(2)).await; // all declarations are flushed
            let (before, begun) = (rig.calls(URL).len(), rig.ring.now());
            assert_eq!(rig.post("a", "a").await, 202);
            rig.rest(Duration::from_millis(50)).await;
            assert_eq!(rig.post("b", "a").await, 202);
            rig.rest(seconds(2)).await;
            let calls = rig.calls(URL);
            assert_eq!(calls.len(), before + 2);
            let wait = calls[before].at - begun;
            let together = calls[before + 1].at - calls[before].at < Duration::from_millis(40);
            let is_late = matches!(durability, Durability::Interval(_)).then_some(interval);
            assert!(is_late.is_none_or(|late| wait >= late), "{durability:?} {wait:?}");
            assert!(wait <= interval + Duration::from_millis(100), "{durability:?} {wait:?}");
            assert_eq!(together, durability != Durability::Flush, "{durability:?}: one flush for both");
        });
        assert_eq!(stream.tally.accepted.load(Relaxed), 2);
        assert_eq!(stream.tally.accepted_unflushed.load(Relaxed), early);
    }
}

/// APP-07: events beyond the limit are dropped, oldest first, and counted; the rest is delivered.
#[test]
fn retention_by_size_drops_and_counts_oldest() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.keeping.set(RetentionPolicy { retention_bytes: 20_000, ..RetentionPolicy::default() });
    let stream = rig.publish(vec![lagging()]);
    unreachable(&rig);
    rig.run(async {
        post_many(&rig, UNFINISHED_MAX + 344).await;
        rig.rest(seconds(5)).await;
    });
    let [_, _, _, dropped, pending] = ends(&stream, 0);
    let record = stream.tally.kept_bytes.load(Relaxed) / pending.max(1);
    assert!(dropped > UNFINISHED_MAX as u64 + 44 && pending > 50, "{dropped} {pending}");
    assert!((100..20_000).contains(&(pending * record)), "{pending} of {record} bytes");
    let tally = &stream.subscribers[0].tally;
    assert_eq!((tally.expired.load(Relaxed), tally.damaged.load(Relaxed)), (dropped, 0));
    let tried: std::collections::BTreeSet<_> = rig.ids(URL).into_iter().collect();

    rig.rule(|_| ScriptedAnswer::Status(202));
    rig.run(async { rig.rest(seconds(5)).await });
    let [delivered, _, _, dropped_in_all, pending_now] = ends(&stream, 0);
    assert_eq!((dropped_in_all, pending_now, delivered), (dropped, 0, pending));
    let later = rig.ids(URL);
    let (newest, untried) = ((UNFINISHED_MAX + 343).to_string(), (UNFINISHED_MAX + 44).to_string());
    assert!(later.contains(&newest), "the newest stay");
    assert!(tried.contains("0") && !later.contains(&untried), "the oldest go");
    assert_eq!(all(&stream), UNFINISHED_MAX as u64 + 344);
}

/// APP-07: events that are too old are dropped with their retries and with those that wait for them, and
/// counted.
#[test]
fn retention_by_time_drops_pending_retries_too() {
    for sequence in [DeliveryOrder::Free, DeliveryOrder::ByKey, DeliveryOrder::Strict] {
        too_old_is_dropped(sequence);
    }
}

fn too_old_is_dropped(sequence: DeliveryOrder) {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.keeping.set(RetentionPolicy { retention_time: Duration::from_millis(1), ..RetentionPolicy::default() });
    let mut subscriber = lagging();
    subscriber.delivery.sequence = sequence;
    let stream = rig.publish(vec![subscriber]);
    unreachable(&rig);
    rig.run(async {
        post_many(&rig, 50).await;
        let posted = Instant::now(); // the log's clock is the wall clock
        while posted.elapsed() < Duration::from_millis(20) {
            rig.rest(Duration::from_millis(1)).await;
        }
        rig.rest(seconds(3)).await;
    });
    assert_eq!(ends(&stream, 0)[3..], [50, 0], "{sequence:?}");
    assert_eq!(stream.subscribers[0].tally.expired.load(Relaxed), 50);
    assert_eq!(stream.tally.kept_bytes.load(Relaxed), 0, "its space is given back");
}

/// APP-07, DP-ACK-10: a namespace beyond its quota gets a Retry-After, and is served again without
/// intervention.
#[test]
fn exceeded_quota_answers_429_until_consumers_progress() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let everything = Arc::new(ByteQuota::new("all namespaces", 0, None));
    rig.quota.replace(Arc::new(ByteQuota::new("namespace ns", 10_000, Some(Arc::clone(&everything)))));
    let stream = rig.publish(vec![lagging()]);
    unreachable(&rig);
    let headers = [("ce-specversion", "1.0"), ("ce-id", "x"), ("ce-source", "/s"), ("ce-type", "t")];
    let taken = rig.run(async {
        let mut taken = 0;
        let refused = loop {
            let answer = rig.request("POST", PATH, &headers, b"data").await;
            match answer.status {
                202 => taken += 1,
                _ => break answer,
            }
            assert!(taken < 1000, "no quota");
        };
        assert_eq!(refused.status, 429);
        assert!(refused.headers.iter().any(|(name, _)| &**name == "Retry-After"));
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(text.contains("of 10000 bytes, the quota of namespace ns"), "{text}");
        assert_eq!(rig.copy(b"a replay").await, 429);
        taken
    });
    assert_eq!((stream.tally.over_quota.load(Relaxed), stream.tally.refused.load(Relaxed)), (2, 2));
    assert_eq!(everything.used(), stream.tally.kept_bytes.load(Relaxed));

    rig.rule(|_| ScriptedAnswer::Status(202));
    rig.run(async {
        rig.rest(seconds(8)).await;
        assert_eq!(rig.post("again", "t").await, 202);
        rig.rest(seconds(2)).await;
    });
    assert_eq!(ends(&stream, 0)[0] + ends(&stream, 0)[4], taken + 1);
    assert_eq!(everything.used(), stream.tally.kept_bytes.load(Relaxed));
}

/// A stream with a history retains delivered events, and releases them when the history is disabled.
#[test]
fn history_is_retained_until_disabled() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let live = |rig: &BrokerFixture| rig.counters.log.live_bytes.load(Relaxed);
    for (history_time, is_kept) in [(seconds(3600), true), (Duration::ZERO, false), (seconds(3600), true)] {
        rig.keeping.set(RetentionPolicy { history_time, ..RetentionPolicy::default() });
        let stream = rig.publish(vec![trigger("t", URL)]);
        rig.run(async {
            rig.sync();
            rig.rest(seconds(3)).await;
            post_many(&rig, 10).await;
            rig.rest(seconds(3)).await;
        });
        assert_eq!(ends(&stream, 0), [10, 0, 0, 0, 0]);
        assert_eq!(live(&rig) > 0, is_kept, "{history_time:?}");
    }
}

/// EV-DLV-13: an event that the disk changed is dropped with its reason, before or after its first attempt,
/// and does not block its subscriber.
#[test]
fn damaged_event_is_dropped_and_others_delivered() {
    for lags in [false, true] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let stream = rig.publish(vec![lagging()]);
        unreachable(&rig);
        rig.run(async {
            let events = if lags { 2000 } else { 400 };
            post_many(&rig, events).await;
            rig.rest(seconds(1)).await;
        });
        let file = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let file = file.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).min().unwrap();
        let file = fs::File::options().read(true).write(true).open(file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 55_000).unwrap();
        file.write_all_at(&[!byte[0]], 55_000).unwrap();

        rig.rule(|_| ScriptedAnswer::Status(202));
        rig.run(async { rig.rest(seconds(10)).await });
        let [delivered, _, _, dropped, pending] = ends(&stream, 0);
        assert_eq!((dropped, pending), (1, 0), "{lags}: {delivered}");
        assert_eq!(stream.subscribers[0].tally.damaged.load(Relaxed), 1);
        assert_eq!(rig.counters.log.damaged.load(Relaxed), 1);
    }
}

/// EV-DLV-13: a backlog larger than what is assumed to be in memory is read ahead by threads, and delivered
/// completely and once, from the cursor on after a restart and while its events are retried.
#[test]
fn cold_backlog_is_read_ahead_and_delivered() {
    const EVENTS: usize = 850;
    let folder = folder();
    let large = || wal::LogOptions { segment_bytes: 8 << 20, log_bytes_max: 256 << 20, ..super::options() };
    let rig = |seed| BrokerFixture::with(folder.path(), &[], seed, FaultProfile::calm(), large());
    let first = rig(1);
    first.publish(vec![lagging()]);
    unreachable(&first);
    first.run(async {
        let body = vec![7; 95_000];
        for nth in 0..EVENTS {
            let id = nth.to_string();
            let headers = [("ce-specversion", "1.0"), ("ce-id", &*id), ("ce-source", "/s"), ("ce-type", "t")];
            assert_eq!(first.request("POST", PATH, &headers, &body).await.status, 202);
        }
        first.rest(seconds(2)).await; // retries of the oldest
        first.events.drain().await;
    });
    first.end();

    let second = rig(2);
    let stream = second.publish(vec![lagging()]);
    second.run(async {
        second.sync();
        let begun = Instant::now(); // threads read while the simulated clock runs ahead
        while ends(&stream, 0)[0] < EVENTS as u64 && begun.elapsed() < seconds(30) {
            second.rest(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(ends(&stream, 0), [EVENTS as u64, 0, 0, 0, 0]);
    let mut ids = second.ids(URL);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), second.calls(URL).len()), (EVENTS, EVENTS));
}

/// APP-07: space is reclaimed even when nothing is appended any more.
#[test]
fn idle_log_reclaims_space() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![lagging()]);
    unreachable(&rig);
    let bytes = || rig.counters.log.bytes.load(Relaxed);
    rig.run(async {
        let body = vec![7; 90_000];
        let headers = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
        for _ in 0..100 {
            assert_eq!(rig.request("POST", PATH, &headers, &body).await.status, 202);
        }
        rig.rest(seconds(2)).await;
        assert!(bytes() >= 9 << 20, "{}", bytes());
        rig.rule(|_| ScriptedAnswer::Status(202));
        rig.rest(seconds(20)).await;
        assert!(bytes() <= 2 << 20, "{}", bytes());
    });
}

/// A flush costs the same for one event and for a hundred: it waits for tasks that are ready anyway, and on
/// a core that is never idle no longer than [`GATHER_MAX`], and with [`GATHERED_BYTES_MAX`] not at all.
#[test]
fn appends_before_idle_share_one_flush() {
    let folder = folder();
    let ring = Simulation::new(3, FaultProfile::calm()).ring();
    let writer = LogWriter::new(&ring, WriteAheadLog::open(folder.path(), options()).unwrap().0);
    let running = Rc::clone(&writer);
    ring.spawn(async move { drop(running.run().await) });
    let feed = writer.feed("s").unwrap();
    ring.block_on(async {
        ring.sleep(seconds(1)).await;
        let flushes = || writer.log().stat().flushes;
        let append = || writer.append(&feed, &[&[b"event"]]).unwrap().end;
        let (before, busy) = (flushes(), Rc::new(Cell::new(true)));
        for nth in 0..20 {
            let (ring, writer, feed) = (ring.clone(), Rc::clone(&writer), Rc::clone(&feed));
            ring.clone().spawn(async move {
                for _ in 0..nth {
                    ring.yield_now().await;
                }
                writer.append(&feed, &[&[b"event"]]).unwrap();
            });
        }
        writer.durable(append()).await.unwrap();
        assert_eq!((flushes(), writer.log().stat().staged_bytes), (before + 1, 0));

        let (other, goes_on) = (ring.clone(), Rc::clone(&busy));
        ring.spawn(async move {
            while goes_on.get() {
                other.yield_now().await;
            }
        });
        let begun = ring.now();
        writer.durable(append()).await.unwrap();
        let took = ring.now() - begun;
        assert!((GATHER_MAX..GATHER_MAX * 10).contains(&took), "{took:?}");

        let begun = ring.now();
        for _ in 0..GATHERED_BYTES_MAX / 1024 {
            writer.append(&feed, &[&[&[0; 1024]]]).unwrap();
        }
        writer.durable(append()).await.unwrap();
        assert!(ring.now() - begun < GATHER_MAX, "an append of this size does not wait: {:?}", ring.now() - begun);
        busy.set(false);
    });
    ring.shutdown();
}
