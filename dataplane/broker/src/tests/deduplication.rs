//! Deduplication windows: which events are stored, and when a duplicate is acknowledged.

use std::pin::pin;

use super::*;

const URL: &str = "http://s/";

fn with_window(folder: &Path, faults: FaultProfile) -> BrokerFixture {
    let rig = BrokerFixture::with(folder, &[], 1, faults, options());
    rig.keeping.set(RetentionPolicy { deduplication_window: seconds(3600), ..RetentionPolicy::default() });
    rig
}

fn duplicates(stream: &EventStream) -> [u64; 2] {
    [&stream.tally.accepted, &stream.tally.deduplicated].map(|count| count.load(Relaxed))
}

/// DP-ACK-13: an event that comes twice is acknowledged twice and delivered once; alone, in a batch, and within one.
#[test]
fn repeated_event_is_acknowledged_and_delivered_once() {
    let folder = folder();
    let rig = with_window(folder.path(), FaultProfile::calm());
    let stream = rig.publish(vec![trigger("t", URL)]);
    let event = |id: u32| format!(r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t"}}"#);
    let batch = |ids: &[u32]| format!("[{}]", ids.iter().map(|id| event(*id)).collect::<Vec<_>>().join(","));
    rig.run(async {
        for id in ["1", "2", "1"] {
            assert_eq!(rig.post(id, "t").await, 202);
        }
        for ids in [&[3, 1, 4, 3][..], &[1, 2], &[]] {
            let headers = [("content-type", "application/cloudevents-batch+json")];
            assert_eq!(rig.request("POST", PATH, &headers, batch(ids).as_bytes()).await.status, 202, "{ids:?}");
        }
        rig.rest(seconds(1)).await;
    });
    assert_eq!(rig.calls(URL).len(), 4);
    assert_eq!(duplicates(&stream), [4, 5]);
}

/// DP-ACK-13: the window is read from the log when a process starts, also for events that were delivered.
#[test]
fn window_survives_a_restart() {
    let folder = folder();
    for lifetime in 0..3 {
        let rig = with_window(folder.path(), FaultProfile::calm());
        let stream = rig.publish(vec![trigger("t", URL)]);
        rig.sync();
        rig.run(async {
            for id in 0..20 {
                assert_eq!(rig.post(&id.to_string(), "t").await, 202);
            }
            rig.rest(seconds(5)).await;
        });
        assert_eq!(duplicates(&stream), if lifetime == 0 { [20, 0] } else { [0, 20] });
        rig.end();
    }
}

/// DP-ACK-02: a duplicate is not acknowledged before the event is durable.
#[test]
fn duplicate_waits_for_the_flush_of_its_event() {
    let folder = folder();
    let slow = FaultProfile { disk_latency: seconds(5)..=seconds(5), ..FaultProfile::calm() };
    let rig = with_window(folder.path(), slow);
    rig.publish(Vec::new());
    rig.run(async {
        let first = pin!(rig.post("1", "t"));
        let _ = rig.ring.timeout(seconds(1), first).await; // its sender gives up; the event is being written
        let began = rig.ring.now();
        assert_eq!(rig.post("1", "t").await, 202);
        assert!(rig.ring.now() - began >= seconds(3), "{:?}", rig.ring.now() - began);
    });
}

/// An event that was not stored is not remembered: the sender's next attempt is the first.
#[test]
fn rejected_event_is_not_remembered() {
    let folder = folder();
    let rig = with_window(folder.path(), FaultProfile::calm());
    let quota = Arc::new(ByteQuota::new("of the test", 1, None));
    rig.quota.replace(Arc::clone(&quota));
    let stream = rig.publish(vec![trigger("t", URL)]);
    rig.run(async {
        quota.account(0, 10);
        assert_eq!(rig.post("1", "t").await, 429);
        quota.account(10, 0);
        assert_eq!(rig.post("1", "t").await, 202);
        rig.rest(seconds(1)).await;
    });
    assert_eq!((rig.ids(URL).len(), duplicates(&stream)), (1, [1, 0]));
}

/// Replies are events of their own, even if two have the same id: a subscriber answers each event.
#[test]
fn replies_are_not_compared() {
    let folder = folder();
    let rig = with_window(folder.path(), FaultProfile::calm());
    rig.publish(vec![of_type(trigger("ask", URL), "ask"), of_type(trigger("answer", "http://a/"), "answer")]);
    rig.rule(|call| if call.ty == "ask" { reply("same", "answer") } else { ScriptedAnswer::Status(202) });
    rig.run(async {
        for id in ["1", "2", "2"] {
            assert_eq!(rig.post(id, "ask").await, 202);
        }
        rig.rest(seconds(1)).await;
    });
    assert_eq!((rig.ids(URL).len(), rig.ids("http://a/").len()), (2, 2));
}

/// The window may be opened and closed while the stream has events.
#[test]
fn window_follows_the_stream() {
    let folder = folder();
    let rig = with_window(folder.path(), FaultProfile::calm());
    let windows = [(0, 2), (3600, 0), (0, 2), (3600, 0)];
    for (seconds_kept, stored) in windows {
        let deduplication_window = seconds(seconds_kept);
        rig.keeping.set(RetentionPolicy { deduplication_window, history_time: seconds(3600), ..Default::default() });
        let stream = rig.publish(Vec::new());
        rig.run(async {
            assert_eq!([rig.post("1", "t").await, rig.post("1", "t").await], [202, 202]);
            rig.rest(seconds(2)).await;
        });
        assert_eq!(duplicates(&stream), [stored, 2 - stored], "{deduplication_window:?}");
    }
}
