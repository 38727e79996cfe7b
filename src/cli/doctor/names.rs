//! Name resolution: of the host, and of `*.localhost` for the examples.

use std::fs;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::Check;

/// A resolver that takes longer delays each new target.
const SLOW: Duration = Duration::from_millis(500);

pub(super) fn checks() -> Vec<Check> {
    let start = Instant::now();
    let addresses: Vec<IpAddr> = ("hello.default.localhost", 0)
        .to_socket_addrs()
        .map(|list| list.map(|address| address.ip()).collect())
        .unwrap_or_default();
    vec![localhost(&addresses, start.elapsed()), servers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())]
}

fn localhost(addresses: &[IpAddr], time: Duration) -> Check {
    if time >= SLOW {
        let advice = "each lookup of a target waits: check the name servers in /etc/resolv.conf";
        return Check::warning("*.localhost", format!("answered after {} ms", time.as_millis()), advice);
    }
    if !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback) {
        return Check::ok("*.localhost", "this host");
    }
    let advice = "browsers resolve these names themselves; with curl use `-H 'Host: NAME.NAMESPACE.localhost' http://127.0.0.1:8080`";
    Check::warning("*.localhost", "does not resolve to this host", advice)
}

fn servers(resolv_conf: &str) -> Check {
    let servers: Vec<&str> = resolv_conf
        .lines()
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .filter(|(key, _)| *key == "nameserver")
        .filter_map(|(_, rest)| rest.split_whitespace().next())
        .collect();
    if servers.is_empty() {
        let advice = "targets are reached by address or /etc/hosts only, and no registry by name: add a nameserver to /etc/resolv.conf";
        return Check::warning("name servers", "none", advice);
    }
    Check::ok("name servers", servers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn names_are_judged() {
        let fast = Duration::from_millis(1);
        assert_eq!(localhost(&["127.0.0.1".parse().unwrap()], fast).verdict, Verdict::Ok);
        assert_eq!(localhost(&["192.0.2.1".parse().unwrap()], fast).verdict, Verdict::Warning);
        assert_eq!(localhost(&[], fast).verdict, Verdict::Warning);
        assert_eq!(localhost(&["127.0.0.1".parse().unwrap()], SLOW).verdict, Verdict::Warning);
        assert_eq!(servers("# x\nsearch a\nnameserver 127.0.0.53\n").value, "127.0.0.53");
        assert_eq!(servers("search a\n").verdict, Verdict::Warning);
    }
}
