//! What instances and this host use, for `kubectl top`: measured twice, and the rate is that between the two.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use apiserver::instance_usage::{MeasuredUsage, UsageReport, UsageSource};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::sessions::SessionClient;
use runtime::usage::ResourceUsage;

/// A rate over less time is that of a moment.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// A rate over more time says little of now.
const WINDOW_MAX: Duration = Duration::from_secs(60);
/// Between the two measurements if there is no earlier one.
const PAUSE: Duration = Duration::from_secs(1);
/// Milliseconds of a unit of `/proc/stat`, which is a hundredth of a second.
const HOST_TICK_MILLIS: u64 = 10;

/// What had been used at a moment.
#[derive(Debug, Clone)]
struct UsageSample {
    at: Instant,
    host: Option<ResourceUsage>,
    /// With the start of each.
    instances: HashMap<u64, (Instant, ResourceUsage)>,
}

/// The API is built before the runtime, so the runtime's client is set later.
#[derive(Default)]
pub struct RuntimeUsage(Arc<UsageState>);

#[derive(Default)]
struct UsageState {
    sessions: OnceLock<SessionClient>,
    /// The sample that the next one is compared with.
    last: Mutex<Option<UsageSample>>,
}

impl RuntimeUsage {
    /// Sets the runtime's client. Until then there are no instances.
    pub fn connect_runtime(&self, sessions: SessionClient) {
        let _ = self.0.sessions.set(sessions); // an error: it was connected before
    }
}

impl fmt::Debug for RuntimeUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeUsage").finish_non_exhaustive()
    }
}

impl UsageSource for RuntimeUsage {
    fn measure(&self) -> BoxFuture<'static, UsageReport> {
        let state = Arc::clone(&self.0);
        async move { state.measure().await }.boxed()
    }
}

impl UsageState {
    async fn measure(&self) -> UsageReport {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let fits = |sample: &UsageSample| (WINDOW_MIN..=WINDOW_MAX).contains(&sample.at.elapsed());
        let before = match last.filter(fits) {
            Some(before) => before,
            None => {
                let before = self.sample().await;
                tokio::time::sleep(PAUSE).await;
                before
            }
        };
        let now = self.sample().await;
        let report = report(&before, &now);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        report
    }

    async fn sample(&self) -> UsageSample {
        let all = match self.sessions.get() {
            Some(sessions) => sessions.processes().await,
            None => Vec::new(),
        };
        let read = move || {
            let instances = all.iter().map(|one| (one.instance, (one.began, one.usage()))).collect();
            UsageSample { at: Instant::now(), host: host_usage(), instances }
        };
        let empty = || UsageSample { at: Instant::now(), host: None, instances: HashMap::new() };
        support::blocking::run("usage", read).await.unwrap_or_else(|_| empty())
    }
}

/// The rates between two samples. An instance that is not in the first one is measured since its start.
fn report(before: &UsageSample, now: &UsageSample) -> UsageReport {
    let between = now.at.saturating_duration_since(before.at);
    let host = before.host.zip(now.host).map(|(before, now)| measured(before.cpu, now, between));
    let instances = now.instances.iter().map(|(id, (began, usage))| {
        let (used, window) = match before.instances.get(id) {
            Some((_, before)) => (before.cpu, between),
            None => (Duration::ZERO, now.at.saturating_duration_since(*began)),
        };
        (*id, measured(used, *usage, window))
    });
    UsageReport { host, instances: instances.collect() }
}

fn measured(before: Duration, now: ResourceUsage, window: Duration) -> MeasuredUsage {
    let used = now.cpu.saturating_sub(before).as_nanos().saturating_mul(1_000_000_000);
    let nanocores = used.checked_div(window.as_nanos()).unwrap_or(0);
    MeasuredUsage { nanocores: u64::try_from(nanocores).unwrap_or(u64::MAX), memory_bytes: now.memory_bytes, window }
}

/// All that runs here.
fn host_usage() -> Option<ResourceUsage> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // User, nice, system, interrupts, soft interrupts, stolen: all but what was idle, or counted twice.
    let busy = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|index| ticks.get(index)).sum::<u64>();
    let cpu = Duration::from_millis(busy.saturating_mul(HOST_TICK_MILLIS));
    let [total, available] = memory_of_host()?;
    Some(ResourceUsage { cpu, memory_bytes: total.saturating_sub(available) })
}

/// Bytes of memory, and those that are available.
pub(crate) fn memory_of_host() -> Option<[u64; 2]> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some([bytes("MemTotal")?, bytes("MemAvailable")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_between_two_samples_or_since_the_start() {
        let began = Instant::now();
        let later = began + Duration::from_secs(2);
        let usage = |millis: u64| ResourceUsage { cpu: Duration::from_millis(millis), memory_bytes: 7 };
        let before = UsageSample { at: began, host: Some(usage(100)), instances: [(1, (began, usage(50)))].into() };
        let both = [(1, (began, usage(1050))), (2, (began + Duration::from_secs(1), usage(250)))];
        let now = UsageSample { at: later, host: Some(usage(4100)), instances: both.into() };
        let report = report(&before, &now);
        let cores = |usage: MeasuredUsage| (usage.nanocores / 1_000_000, usage.window.as_secs());
        assert_eq!(report.host.map(cores), Some((2000, 2)));
        assert_eq!((cores(report.instances[&1]), cores(report.instances[&2])), ((500, 2), (250, 1)));
        assert_eq!(measured(Duration::ZERO, usage(1), Duration::ZERO).nanocores, 0);
    }

    #[test]
    fn host_has_memory_and_has_used_processors() {
        let usage = host_usage().unwrap();
        assert!(usage.cpu > Duration::ZERO && usage.memory_bytes > 0);
    }
}
