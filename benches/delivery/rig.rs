//! The appliance on its own processor, a subscriber that only counts, and their resource use.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use kit::manifest::{NAMESPACE, trigger, with};
use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{Appliance, ApplianceSetup, HttpRequest, TIMEOUT, open_loop, wait};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

/// Another binary to be measured, of an older version say, in place of the one that was built with this bench.
const BINARY_VARIABLE: &str = "SLUICEGATE_BENCH_BINARY";
/// Of the clock that /proc counts processor time in.
const TICKS_PER_SECOND: f64 = 100.0;
/// Times of deliveries that are kept.
const TIMES_MAX: usize = 1 << 20;
/// Writes that the disk's own time is taken over.
const FLUSHES: u64 = 2000;

/// Whose work a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The appliance's, or what replaces it: processor 0.
    Measured,
    /// All others.
    Load,
}

/// From here on this thread, and what it starts, runs on that side's processors.
pub(super) fn pin(side: Side) {
    static ALLOWED: OnceLock<CpuSet> = OnceLock::new();
    let allowed = ALLOWED.get_or_init(|| sched_getaffinity(None).unwrap());
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let mut set = CpuSet::new();
    match side {
        Side::Measured => cpus.next().into_iter().for_each(|cpu| set.set(cpu)),
        Side::Load => cpus.skip(1).for_each(|cpu| set.set(cpu)),
    }
    if sched_setaffinity(None, &set).is_err() {
        eprintln!("cannot pin to a processor: the figures mix load and appliance");
    }
}

/// Lets the load go on for so long; how long it was.
#[allow(clippy::disallowed_methods, reason = "a bench's own thread")]
pub(super) fn span(wait: Duration) -> Duration {
    let began = Instant::now();
    std::thread::sleep(wait);
    began.elapsed()
}

/// An appliance with one worker and the Broker `main`.
pub(super) struct Stage {
    pub(super) appliance: Appliance,
}

pub(super) fn setup() -> ApplianceSetup {
    let other = std::env::var(BINARY_VARIABLE);
    ApplianceSetup::new(other.as_deref().unwrap_or(env!("CARGO_BIN_EXE_sluicegate")))
}

impl Stage {
    pub(super) fn start(setup: &ApplianceSetup) -> Self {
        pin(Side::Measured);
        let appliance = kit::scene::with_broker(&setup.clone().flag("workers", "1"));
        pin(Side::Load);
        Self { appliance }
    }

    /// A Trigger to `sink` that gives nothing up while a bench runs.
    pub(super) fn subscribe(&self, name: &str, sink: &Sink, changes: &[(&str, Value)]) {
        let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT1S" });
        let plain = with(trigger(name, "main", &sink.url()), "/spec/delivery", patient);
        let object = changes.iter().fold(plain, |object, (at, value)| with(object, at, value.clone()));
        let api = self.appliance.api();
        api.create(&object);
        api.wait_ready("Trigger", NAMESPACE, name, TIMEOUT);
    }

    /// Processor time used so far, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.appliance.pid())).unwrap();
        cpu_of(&stat)
    }

    /// Memory that is the process's own, and with the pages of files that it has mapped; in MiB.
    pub(super) fn memory(&self) -> (f64, f64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.appliance.pid())).unwrap();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
            let kib = line.trim_start_matches(':').split_whitespace().next().unwrap_or("0");
            kib.parse::<f64>().unwrap_or(0.0) / 1024.0
        };
        (of("RssAnon"), of("VmRSS"))
    }

    /// Waits until all that was accepted is delivered; every subscriber was offered all of it.
    pub(super) fn conserved(&self, subscribers: usize) {
        let metric = |name: &str| self.appliance.metric(&format!("sluicegate_{name}"), "");
        wait::until(TIMEOUT * 4, "the rest to be delivered", || (metric("subscriber_pending") == 0).then_some(()));
        let accepted = metric("stream_accepted_total");
        assert_eq!(metric("subscriber_delivered_total"), accepted * subscribers as u64);
    }
}

pub(super) fn cpu_of(stat: &str) -> f64 {
    let behind_name = stat.rsplit_once(')').map_or(stat, |(_, rest)| rest);
    let field = |nth| behind_name.split_whitespace().nth(nth).and_then(|text| text.parse::<f64>().ok());
    (field(11).unwrap_or(0.0) + field(12).unwrap_or(0.0)) / TICKS_PER_SECOND
}

/// A subscriber that answers 202 and remembers no more than how many and how late.
pub(super) struct Sink {
    server: TestServer,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    received: AtomicU64,
    /// Nanoseconds from the publisher's sending to here.
    times: Mutex<Vec<u64>>,
}

impl Sink {
    pub(super) fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    pub(super) fn start_at(address: SocketAddr) -> Self {
        pin(Side::Load);
        let seen = Arc::new(Seen::default());
        let noted = Arc::clone(&seen);
        let server = TestServer::start(address, move || {
            move |request: HttpRequest| {
                noted.received.fetch_add(1, Relaxed);
                if let Some(time) = request.headers.get("ce-left").and_then(open_loop::since) {
                    let mut times = noted.times.lock().unwrap();
                    if times.len() < TIMES_MAX {
                        times.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
                    }
                }
                async { HandlerReply::Send(ReceivedMessage::new(202)) }
            }
        });
        Self { server, seen }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address())
    }

    pub(super) fn received(&self) -> u64 {
        self.seen.received.load(Relaxed)
    }

    /// Says the same wherever it is taken.
    pub(super) fn counter(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let seen = Arc::clone(&self.seen);
        move || seen.received.load(Relaxed)
    }

    pub(super) fn forget_times(&self) {
        self.seen.times.lock().unwrap().clear();
    }

    pub(super) fn times(&self) -> Vec<u64> {
        self.seen.times.lock().unwrap().clone()
    }
}

/// What the disk below `folder` takes for one write of a record and its flush, in seconds: the median.
pub(super) fn flush(folder: &Path) -> f64 {
    let path = folder.join("bench-flush");
    let file = fs::OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    let page = [0_u8; 4096];
    for at in 0..FLUSHES {
        file.write_all_at(&page, at * 4096).unwrap();
    }
    file.sync_all().unwrap();
    let mut times: Vec<f64> = (0..FLUSHES)
        .map(|at| {
            let began = Instant::now();
            file.write_all_at(&page[..1024], at * 1024).unwrap();
            file.sync_data().unwrap();
            began.elapsed().as_secs_f64()
        })
        .collect();
    fs::remove_file(path).unwrap();
    median(&mut times)
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
