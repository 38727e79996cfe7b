//! Limits of this process and of the host's network.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::Check;

/// Connections that a small gateway should have room for; a proxied request holds two descriptors.
const DESCRIPTORS: u64 = 8192;
/// Locked memory of a core's rings. See `deploy/README.md`.
const LOCKED_BYTES_PER_CORE: u64 = 320 << 10;
/// A burst of new connections waits in this queue.
const LISTEN_BACKLOG: u64 = 4096;
/// Local ports: one for each connection to an instance.
const PORTS: u64 = 28_000;

pub(super) fn checks(workers: usize) -> Vec<Check> {
    let locked = workers as u64 * LOCKED_BYTES_PER_CORE;
    vec![
        descriptors(getrlimit(Resource::Nofile).maximum),
        locked_memory(getrlimit(Resource::Memlock).current, locked),
        backlog(number("/proc/sys/net/core/somaxconn")),
        ports(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default()),
    ]
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `maximum` is the hard limit; a start raises the soft limit to it. `None` is no limit.
fn descriptors(maximum: Option<u64>) -> Check {
    match maximum {
        Some(files) if files < DESCRIPTORS => Check::warning(
            "open files",
            format!("at most {files}"),
            format!("some {} connections at once: raise `ulimit -Hn` or LimitNOFILE= to 1048576", files / 2),
        ),
        Some(files) => Check::ok("open files", format!("at most {files}")),
        None => Check::ok("open files", "no limit"),
    }
}

fn locked_memory(current: Option<u64>, needed: u64) -> Check {
    match current {
        Some(bytes) if bytes < needed => Check::warning(
            "locked memory",
            format!("at most {} KiB, {} KiB needed", bytes >> 10, needed >> 10),
            "users other than root cannot create the rings: raise `ulimit -l` or LimitMEMLOCK=, or use fewer --workers",
        ),
        Some(bytes) => Check::ok("locked memory", format!("at most {} KiB", bytes >> 10)),
        None => Check::ok("locked memory", "no limit"),
    }
}

fn backlog(length: Option<u64>) -> Check {
    match length {
        Some(length) if length < LISTEN_BACKLOG => Check::warning(
            "listen backlog",
            format!("{length} connections"),
            format!("bursts of new connections are dropped: `sysctl net.core.somaxconn={LISTEN_BACKLOG}`"),
        ),
        Some(length) => Check::ok("listen backlog", format!("{length} connections")),
        None => Check::warning("listen backlog", "unknown", "/proc/sys/net/core/somaxconn cannot be read"),
    }
}

fn ports(range: &str) -> Check {
    let mut bounds = range.split_whitespace().map_while(|bound| bound.parse::<u64>().ok());
    let (Some(first), Some(last)) = (bounds.next(), bounds.next()) else {
        return Check::warning("local ports", "unknown", "/proc/sys/net/ipv4/ip_local_port_range cannot be read");
    };
    if last.saturating_sub(first) < PORTS {
        let advice = "fewer connections to one backend: `sysctl net.ipv4.ip_local_port_range='20000 65535'`";
        return Check::warning("local ports", format!("{first} to {last}"), advice);
    }
    Check::ok("local ports", format!("{first} to {last}"))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn low_limits_are_warnings_with_remedy() {
        let cases = [
            (descriptors(Some(1024)), true),
            (descriptors(Some(1 << 20)), false),
            (descriptors(None), false),
            (locked_memory(Some(64 << 10), 640 << 10), true),
            (locked_memory(None, u64::MAX), false),
            (backlog(Some(128)), true),
            (backlog(Some(4096)), false),
            (ports("32768\t60999\n"), false),
            (ports("60000 60999"), true),
            (ports("none"), true),
            (ports("60999 32768"), true),
        ];
        for (check, warns) in cases {
            assert_eq!(check.verdict == Verdict::Warning, warns, "{check:?}");
            assert_eq!(check.advice.is_empty(), !warns, "{check:?}");
        }
    }
}
