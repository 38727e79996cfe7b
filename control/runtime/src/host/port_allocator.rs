//! Allocates a loopback port for an instance.
//!
//! Taken from below the kernel's range for outgoing connections where possible: a port inside that range
//! may be given to any outgoing connection before the instance listens, and a probe that connects to such a
//! port can even connect to itself.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use crate::limits::PORT_ATTEMPTS_MAX;

/// Below are well-known services and the ports that users choose for them.
const PORT_MIN: u16 = 16_384;

/// The ports of running instances, so that two concurrent starts never get the same.
#[derive(Debug)]
pub(crate) struct PortAllocator {
    range: Range<u16>,
    allocated: HashSet<u16>,
}

impl PortAllocator {
    pub(crate) fn for_host() -> Self {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        Self { range: range_below(&text), allocated: HashSet::new() }
    }

    /// A port without a listener. `chance` returns a number below its argument. Fails with the kernel's
    /// error, or if no port is free.
    pub(crate) fn allocate(&mut self, mut chance: impl FnMut(u16) -> u16) -> io::Result<u16> {
        let width = self.range.end - self.range.start;
        for _ in 0..PORT_ATTEMPTS_MAX {
            // Without a range the kernel chooses.
            let candidate = if width == 0 { 0 } else { self.range.start + chance(width) };
            if self.allocated.contains(&candidate) {
                continue;
            }
            let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, candidate)) {
                Ok(listener) => listener,
                Err(why) if why.kind() == io::ErrorKind::AddrInUse => continue,
                Err(why) => return Err(why), // no descriptor left, say: another port would not help
            };
            let port = listener.local_addr()?.port();
            if self.allocated.insert(port) {
                return Ok(port);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("no free port for an instance after {PORT_ATTEMPTS_MAX} attempts"),
        ))
    }

    pub(crate) fn release(&mut self, port: u16) {
        self.allocated.remove(&port);
    }
}

/// The range from `PORT_MIN` to the kernel's own range; empty when too small.
fn range_below(ip_local_port_range: &str) -> Range<u16> {
    /// The minimum number of ports: with fewer, instances would reuse just closed ones.
    const WIDTH_MIN: u16 = 1024;
    let end = ip_local_port_range.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
    if end >= PORT_MIN + WIDTH_MIN { PORT_MIN..end } else { 0..0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_ports_lie_outside_the_range_of_outgoing_connections() {
        assert_eq!(range_below("32768\t60999\n"), 16_384..32_768);
        assert_eq!(range_below("1024 65535"), 0..0);
        assert_eq!(range_below(""), 0..0);
        assert_eq!(range_below("99999999 x"), 0..0);
    }

    #[test]
    fn used_port_is_not_allocated() {
        let squatter = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let busy = squatter.local_addr().unwrap().port();
        // The random numbers always give the busy port: an error instead of an endless loop.
        let mut ports = PortAllocator { range: busy..busy + 1, allocated: HashSet::new() };
        assert_eq!(ports.allocate(|_| 0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(squatter);

        assert_eq!(ports.allocate(|_| 0).unwrap(), busy);
        assert!(ports.allocate(|_| 0).is_err(), "taken by the line above");
        ports.release(busy);
        assert_eq!(ports.allocate(|_| 0).unwrap(), busy);
    }
}
