//! Figures of this process, as the kernel counts them.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::limits::THREADS_MAX;

/// The kernel's unit of processor time in `/proc` (USER_HZ), on all architectures that Rust runs on.
const TICK: Duration = Duration::from_millis(10);

pub(super) fn figures() -> Value {
    json!({
        "pid": std::process::id(),
        "memory_bytes": memory_bytes(),
        "open_files": std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
        "open_files_max": getrlimit(Resource::Nofile).current,
        "threads": threads(),
    })
}

/// Resident.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// Threads that do the appliance's work, with their processor time since they began.
fn threads() -> Vec<Value> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut all: Vec<_> = tasks.filter_map(|task| thread(&task.path())).collect();
    all.sort();
    all.truncate(THREADS_MAX);
    all.into_iter().map(|(name, cpu_ms)| json!({ "name": name, "cpu_ms": cpu_ms })).collect()
}

fn thread(task: &Path) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    parse(&stat)
}

/// Name, and user and system time together. The name may have spaces and brackets.
fn parse(stat: &str) -> Option<(String, u64)> {
    let (front, rest) = stat.rsplit_once(") ")?;
    let (_, name) = front.split_once('(')?;
    // Fields 14 and 15 of proc(5), of which `rest` begins with the third.
    let ticks: u64 = rest.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Some((name.to_owned(), ticks * u64::try_from(TICK.as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_has_its_name_and_processor_time() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 70 30 0 0 20 0 4 0 99 0 0\n";
        assert_eq!(parse(stat), Some(("a) b (c".to_owned(), 1000)));
        assert_eq!(parse("no brackets"), None);
        assert!(threads().len() <= THREADS_MAX && memory_bytes() > 0);
    }
}
