//! The clock: certificates, tokens and schedules end by it.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Check;

/// 2026-01-01T00:00:00Z. A clock before it was never set.
const EARLIEST_SECONDS: u64 = 1_767_225_600;
/// Created by systemd-timesyncd at its first synchronization.
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";

pub(super) fn checks() -> Vec<Check> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let source =
        fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default();
    vec![set(now, std::path::Path::new(SYNCHRONIZED).exists()), clock_source(source.trim())]
}

fn set(now: u64, synchronized: bool) -> Check {
    if now < EARLIEST_SECONDS {
        let advice = "certificates and tokens are rejected: set the clock";
        return Check::failed("clock", format!("{now} s after 1970"), advice);
    }
    Check::ok("clock", if synchronized { "synchronized by systemd-timesyncd" } else { "set" })
}

fn clock_source(name: &str) -> Check {
    match name {
        "" => Check::ok("clock source", "unknown"),
        // Read without a system call (vDSO).
        "tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page" => Check::ok("clock source", name),
        slow => {
            let advice = "each reading of the time is a system call, some 1 µs a request: boot with clocksource=tsc if the processor allows it";
            Check::warning("clock source", slow, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn unset_clock_fails_and_slow_source_warns() {
        assert_eq!(set(0, true).verdict, Verdict::Failed);
        assert_eq!(set(EARLIEST_SECONDS, false).verdict, Verdict::Ok);
        assert_eq!(clock_source("tsc").verdict, Verdict::Ok);
        assert_eq!(clock_source("hpet").verdict, Verdict::Warning);
    }
}
