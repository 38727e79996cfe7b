//! Subscribers of every behavior on one Broker for a while: nothing is lost, every count adds up, and memory
//! does not grow.
//!
//! A few seconds in every run of the tests; a longer run:
//! `SLUICEGATE_SOAK_S=600 cargo test --release --test durability soak -- --ignored --nocapture`

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kit::manifest::{NAMESPACE, trigger, with};
use kit::scene::{BROKER, with_broker};
use kit::server::{self, HandlerReply, ReceivedMessage, TestServer, closed_address};
use kit::{Appliance, ApplianceSetup, OpenLoopLoad, TIMEOUT, TestEvent, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const EVENTS_PER_SECOND: u32 = 200;
/// The share of the run after which memory has found its level.
const SETTLED: f64 = 0.3;
/// What memory may differ by between the settled part's beginning and its end, in KiB: buffers come and go.
const WOBBLE_KIB: u64 = 24 << 10;
/// How often memory is checked.
const LOOK: Duration = Duration::from_millis(200);
/// Names of the Triggers; all but `hear` get every event that is published.
const BEHAVIORS: [&str; 7] = ["fast", "slow", "dead", "flapping", "replying", "throttling", "hear"];

/// A subscriber that counts: the appliance's memory is what is watched, not this process's.
struct SoakSubscriber {
    server: TestServer,
    taken: Arc<AtomicU64>,
}

impl SoakSubscriber {
    /// `answer` is given how many requests came before, and says how long to wait and what then.
    fn start(answer: impl Fn(u64) -> (Duration, ReceivedMessage) + Send + Copy + 'static) -> Self {
        let taken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&taken);
        let asked = Arc::new(AtomicU64::new(0));
        let server = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
            move |_| {
                let (wait, message) = answer(asked.fetch_add(1, SeqCst));
                let count = Arc::clone(&count);
                async move {
                    if !wait.is_zero() {
                        server::sleep(wait).await;
                    }
                    if message.status < 300 {
                        count.fetch_add(1, SeqCst);
                    }
                    HandlerReply::Send(message)
                }
            }
        });
        Self { server, taken }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.server.address())
    }

    fn taken(&self) -> u64 {
        self.taken.load(SeqCst)
    }
}

fn status(code: u16) -> (Duration, ReceivedMessage) {
    (Duration::ZERO, ReceivedMessage::new(code))
}

/// Two seconds well, two seconds not.
fn flapping(_: u64) -> (Duration, ReceivedMessage) {
    let is_up = (Duration::from_nanos(kit::open_loop::clock()).as_secs() / 2).is_multiple_of(2);
    status(if is_up { 202 } else { 503 })
}

fn replying(nth: u64) -> (Duration, ReceivedMessage) {
    let head = [("Ce-Specversion", "1.0"), ("Ce-Source", "/soak"), ("Ce-Type", "reply")];
    let plain = ReceivedMessage::new(200).header("Ce-Id", &nth.to_string());
    (Duration::ZERO, head.iter().fold(plain, |message, (name, value)| message.header(name, value)))
}

fn throttling(nth: u64) -> (Duration, ReceivedMessage) {
    match nth % 20 {
        0 => (Duration::ZERO, ReceivedMessage::new(429).header("Retry-After", "1")),
        _ => status(202),
    }
}

fn subscribe(appliance: &Appliance, name: &str, url: &str, ty: &str, letters: &SoakSubscriber) {
    let retries = if name == "dead" { 1 } else { 200 };
    let mut options = json!({
        "retry": retries, "backoffPolicy": "linear", "backoffDelay": "PT0.3S",
        "deadLetterSink": { "uri": letters.url() },
    });
    if name == "throttling" {
        options["retryAfterMax"] = json!("PT2S");
    }
    let plain = with(trigger(name, "main", url), "/spec/delivery", options);
    let object = with(plain, "/spec/filter", json!({ "attributes": { "type": ty } }));
    appliance.api().create(&object);
    appliance.api().wait_ready("Trigger", NAMESPACE, name, TIMEOUT);
}

fn of(appliance: &Appliance, name: &str, what: &str) -> u64 {
    appliance.metric(&format!("sluicegate_subscriber_{what}"), &format!("default/{name}\""))
}

/// The process's own memory in KiB.
fn memory(appliance: &Appliance) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", appliance.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default()
}

fn soak(span: Duration) {
    let letters = SoakSubscriber::start(|_| status(202));
    let subscribers = [
        SoakSubscriber::start(|_| status(202)),
        SoakSubscriber::start(|_| (Duration::from_millis(100), ReceivedMessage::new(202))),
        SoakSubscriber::start(flapping),
        SoakSubscriber::start(replying),
        SoakSubscriber::start(throttling),
        SoakSubscriber::start(|_| status(202)),
    ];
    let [fast, slow, flaps, replies, throttles, hear] = subscribers;
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"));
    let features = json!({ "data": { "delivery-retryafter": "enabled" } });
    appliance.api().patch("ConfigMap", "knative-eventing", "config-features", &features);
    let nobody = format!("http://{}/", closed_address());
    let urls = [fast.url(), slow.url(), nobody, flaps.url(), replies.url(), throttles.url(), hear.url()];
    for (name, url) in BEHAVIORS.into_iter().zip(&urls) {
        let ty = if name == "hear" { "reply" } else { "kit.test" };
        subscribe(&appliance, name, url, ty, &letters);
    }

    let event = TestEvent::new("soak").data("application/octet-stream", vec![b'x'; 512]);
    let pulse = OpenLoopLoad::at_rate(appliance.events(), &event.binary(BROKER), 16, EVENTS_PER_SECOND);
    let samples = watch(&appliance, span);
    let unanswered = (pulse.refused(), pulse.broken());
    let published = pulse.stop();
    wait::until(TIMEOUT * 4, "everything to come to its end", || {
        BEHAVIORS.iter().all(|name| of(&appliance, name, "pending") == 0).then_some(())
    });

    assert_eq!(unanswered, (0, 0), "the Broker takes everything");
    assert_conserved(&appliance, published);
    for (name, subscriber) in [("fast", &fast), ("slow", &slow), ("flapping", &flaps), ("throttling", &throttles)] {
        assert!(subscriber.taken() >= published, "{name} got {} of {published}", subscriber.taken());
    }
    assert!(letters.taken() >= published, "each event for the dead one is a letter");
    assert!(hear.taken() >= published, "each reply is heard");
    let (begin, end) = (samples[0], samples[samples.len() - 1]);
    println!("{published} events in {span:?}, own memory {begin} KiB when settled, {end} KiB at the end");
    assert!(end <= begin + WOBBLE_KIB, "memory grew from {begin} to {end} KiB: {samples:?}");
}

/// Memory from where it has settled on: medians of the settled part's first and last third.
fn watch(appliance: &Appliance, span: Duration) -> Vec<u64> {
    let (began, mut samples) = (Instant::now(), Vec::new());
    while began.elapsed() < span {
        let _ = wait::try_until(LOOK, || None::<()>);
        if began.elapsed() >= span.mul_f64(SETTLED) {
            samples.push(memory(appliance));
        }
    }
    let third = (samples.len() / 3).max(1);
    let median = |part: &mut [u64]| {
        part.sort_unstable();
        part[part.len() / 2]
    };
    let last = samples.len() - third;
    vec![median(&mut samples[..third].to_vec()), median(&mut samples[last..].to_vec())]
}

/// accepted = published and replies; offered to each subscriber = accepted = delivered + filtered +
/// dead-lettered + dropped.
fn assert_conserved(appliance: &Appliance, published: u64) {
    let accepted = appliance.metric("sluicegate_stream_accepted_total", "");
    let replies = accepted - published;
    assert!(replies >= published, "each event was answered with one: {replies} of {published}");
    for name in BEHAVIORS {
        let count = |what: &str| of(appliance, name, what);
        let ends = ["delivered_total", "filtered_total", "dead_lettered_total", "dropped_total"].map(count);
        assert_eq!(count("offered_total"), accepted, "{name}");
        assert_eq!(ends.iter().sum::<u64>(), accepted, "{name}: {ends:?}");
        let [delivered, filtered, letters, dropped] = ends;
        let wanted = if name == "hear" { replies } else { published };
        assert_eq!((delivered + letters, filtered, dropped), (wanted, accepted - wanted, 0), "{name}");
        assert_eq!(letters, if name == "dead" { wanted } else { 0 }, "{name}");
    }
}

/// DP-RETRY-19, EV-SUB-21, EV-DLV-08: fast, slow, dead, flapping, replying and throttling subscribers next to
/// each other.
#[test]
fn mixed_subscribers_do_not_affect_each_other() {
    soak(Duration::from_secs(6));
}

#[test]
#[ignore = "runs for ten minutes, or SLUICEGATE_SOAK_S seconds"]
fn mixed_subscribers_do_not_affect_each_other_for_long() {
    let seconds = std::env::var("SLUICEGATE_SOAK_S").ok().and_then(|text| text.parse().ok());
    soak(Duration::from_secs(seconds.unwrap_or(600)));
}
