//! Runs a test: starts its threads, collects what they report, and makes the result.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::{LoadTestError, RequestFailure};
use crate::process_cpu::ProcessCpu;
use crate::recorder::{IntervalResult, OutcomeCounts, Totals};
use crate::result::LoadResult;
use crate::series::{SeriesPoint, first_interval, interval_end};
use crate::spec::{CheckedSpec, LoadSpec};
use crate::thread::{SharedTest, ThreadReport, ThreadResult};

/// How far a running test is.
#[derive(Debug)]
pub struct LoadProgress<'a> {
    /// The interval that has just ended.
    pub point: &'a SeriesPoint,
    /// Of the measured part, if it is known.
    pub duration: Option<Duration>,
    /// Totals so far.
    pub counts: &'a OutcomeCounts,
}

/// Ends a running test early, from another thread or a signal handler.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// A handle over a flag that others may set too.
    #[must_use]
    pub fn new(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `spec` to its end.
///
/// # Errors
/// The test could not begin: see [`LoadTestError`]. Failures of single requests are part of the result.
pub fn run(spec: &LoadSpec) -> Result<LoadResult, LoadTestError> {
    run_observed(spec, &StopHandle::default(), &mut |_| ())
}

/// The same. `observe` is called after each interval, and `stop` ends the test early.
///
/// # Errors
/// See [`run`].
pub fn run_observed(
    spec: &LoadSpec,
    stop: &StopHandle,
    observe: &mut dyn FnMut(&LoadProgress<'_>),
) -> Result<LoadResult, LoadTestError> {
    let checked = Arc::new(spec.check()?);
    let mut clocks = vec![ProcessCpu::own()?];
    clocks.extend(spec.cpu_of.map(ProcessCpu::of).transpose()?);
    let shared = Arc::new(SharedTest {
        checked: Arc::clone(&checked),
        test_id: fastrand::u32(..),
        barrier: Barrier::new(spec.threads),
        connected: AtomicUsize::new(0),
        first_failure: Mutex::default(),
        stop: Arc::clone(&stop.0),
        clocks: clocks.clone(),
    });
    let (sender, reports) = channel();
    let mut threads = Vec::new();
    for index in 0..spec.threads {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        let builder = thread::Builder::new().name(format!("load-{index}"));
        let started = builder.spawn(move || crate::thread::run(&shared, index, &sender));
        threads.push(started.map_err(|why| LoadTestError::Thread(why.to_string()))?);
    }
    drop(sender);
    let mut collector = Collector::new(&checked);
    collector.collect(&reports, observe);
    let cpu_after: Vec<_> = clocks.iter().map(|clock| clock.now()).collect();
    for thread in threads {
        thread.join().map_err(|_| LoadTestError::Thread("it panicked".to_owned()))??;
    }
    if shared.connected.load(Ordering::SeqCst) == 0 {
        let failure = shared.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        return Err(unreachable_target(&checked, failure));
    }
    Ok(collector.result(&cpu_after))
}

fn unreachable_target(checked: &CheckedSpec, failure: Option<RequestFailure>) -> LoadTestError {
    match failure {
        Some(failure) => LoadTestError::Unreachable { target: checked.target.to_string(), failure },
        None => LoadTestError::Thread("no thread has connected".to_owned()),
    }
}

/// Merges what the threads report.
struct Collector<'a> {
    checked: &'a CheckedSpec,
    first_interval: Duration,
    /// Intervals that not all threads have reported, and how many have.
    open: BTreeMap<u64, (usize, IntervalResult)>,
    /// The number of intervals of each thread that has ended.
    ended: Vec<u64>,
    all: IntervalResult,
    series: Vec<SeriesPoint>,
    totals: Totals,
    unsent: u64,
    measured: Duration,
    cpu_before: Vec<Option<Duration>>,
}

impl<'a> Collector<'a> {
    fn new(checked: &'a CheckedSpec) -> Self {
        Self {
            checked,
            first_interval: first_interval(checked.duration),
            open: BTreeMap::new(),
            ended: Vec::new(),
            all: IntervalResult::default(),
            series: Vec::new(),
            totals: Totals::default(),
            unsent: 0,
            measured: Duration::ZERO,
            cpu_before: Vec::new(),
        }
    }

    /// Until all threads have ended.
    fn collect(&mut self, reports: &Receiver<ThreadReport>, observe: &mut dyn FnMut(&LoadProgress<'_>)) {
        while let Ok(report) = reports.recv() {
            match report {
                ThreadReport::Started(times) => self.cpu_before = times,
                ThreadReport::Interval(index, result) => self.add_interval(index, &result, observe),
                ThreadReport::Done(result) => self.add_result(&result),
            }
        }
        // Threads end at different times, so the last intervals are not those of all.
        for index in std::mem::take(&mut self.open) {
            self.close_interval(index.0, &index.1.1, observe);
        }
    }

    fn add_interval(&mut self, index: u64, result: &IntervalResult, observe: &mut dyn FnMut(&LoadProgress<'_>)) {
        let (reported, merged) = self.open.entry(index).or_default();
        *reported += 1;
        merged.merge(result);
        let missing = self.ended.iter().filter(|intervals| **intervals <= index).count();
        let is_complete = *reported + missing == self.checked.spec.threads;
        if is_complete && let Some((_, merged)) = self.open.remove(&index) {
            self.close_interval(index, &merged, observe);
        }
    }

    fn close_interval(&mut self, index: u64, result: &IntervalResult, observe: &mut dyn FnMut(&LoadProgress<'_>)) {
        self.all.merge(result);
        let start = index.checked_sub(1).map_or(Duration::ZERO, |before| interval_end(self.first_interval, before));
        let end = interval_end(self.first_interval, index);
        let point = SeriesPoint::new(start, end, result);
        observe(&LoadProgress { point: &point, duration: self.checked.duration, counts: &self.all.counts });
        self.series.push(point);
    }

    fn add_result(&mut self, result: &ThreadResult) {
        self.totals.merge(&result.totals);
        self.unsent += result.unsent;
        self.ended.push(result.intervals);
        self.measured = self.measured.max(result.measured);
    }

    fn result(mut self, cpu_after: &[Result<Duration, LoadTestError>]) -> LoadResult {
        let spec = &self.checked.spec;
        self.series.sort_by_key(|point| point.end); // the last ones come in the order of the threads' ends
        // A test that ends with its last request ends when that is answered.
        let by_requests = self.checked.profile.is_none() && self.checked.duration.is_none();
        let measured = if by_requests { self.totals.last_response } else { self.measured };
        self.trim_series(measured);
        let used = |at: usize| {
            let before = self.cpu_before.get(at).copied().flatten()?;
            Some(cpu_after.get(at)?.as_ref().ok()?.saturating_sub(before))
        };
        let mut notes = Vec::new();
        if self.unsent > 0 {
            notes.push(format!(
                "{} requests were due and not sent, because all connections were busy: the target did not keep up with the rate",
                self.unsent
            ));
        }
        if let Some(Err(why)) = cpu_after.get(1) {
            notes.push(why.to_string());
        }
        let generator_cpu = used(0).unwrap_or_default();
        #[allow(clippy::cast_precision_loss)]
        let busy = generator_cpu.as_secs_f64() / (measured.as_secs_f64() * spec.threads as f64).max(1e-9);
        if busy > 0.95 && spec.rate.is_some() {
            notes.push(
                "the generator itself was busy all the time; raise --threads, and do not trust the latencies"
                    .to_owned(),
            );
        }
        LoadResult {
            target: self.checked.target.url().to_owned(),
            description: crate::result::describe(spec),
            measured,
            counts: self.all.counts,
            in_time: self.totals.in_time,
            statuses: self.totals.statuses(),
            grpc_statuses: self.totals.grpc_statuses,
            failures: self.totals.failures,
            latency: self.all.latency,
            series: self.series,
            unsent: self.unsent,
            generator_cpu,
            target_cpu: used(1),
            notes,
        }
    }

    /// The last interval ends with the test, and what comes later belongs to it.
    fn trim_series(&mut self, measured: Duration) {
        while let [.., before, last] = &self.series[..]
            && before.end >= measured
            && last.counts == OutcomeCounts::default()
        {
            self.series.pop();
        }
        if let Some(last) = self.series.last_mut()
            && last.end > measured
        {
            let start = last.end.saturating_sub(last.length);
            last.length = measured.saturating_sub(start);
            last.end = start + last.length;
            if last.length.is_zero() && last.counts == OutcomeCounts::default() {
                self.series.pop();
            }
        }
    }
}
