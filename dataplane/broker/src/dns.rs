//! Host names of external subscribers: resolved by the system on a thread that may block, cached for a
//! while.
//!
//! Addresses and `localhost` need no look-up; our own hosts are found in the table before this module is
//! used.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;

use contract::host_address::parse_literal;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Notify, Ring, Tick, WakeHandle};

use super::limits::{LOOKUPS_MAX, NAMES_MAX, RESOLVED_FOR};

/// The system's resolver; another one in tests.
pub type DnsLookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

pub struct DnsResolver {
    ring: Ring,
    wake_handle: WakeHandle,
    lookup: DnsLookup,
    names: RefCell<HashMap<(Box<str>, u16), DnsCacheEntry, RandomState>>,
    in_flight: Cell<usize>,
    outcomes: mpsc::Receiver<DnsOutcome>,
    report: mpsc::Sender<DnsOutcome>,
    /// Notified when a look-up ends.
    ended: Notify,
}

enum DnsCacheEntry {
    InFlight,
    /// Never empty if `Ok`.
    Resolved {
        result: Result<Vec<SocketAddr>, Box<str>>,
        until: Tick,
        turn: usize,
    },
}

struct DnsOutcome {
    name: (Box<str>, u16),
    result: io::Result<Vec<SocketAddr>>,
}

impl DnsResolver {
    #[must_use]
    pub fn new(ring: &Ring, look_up: DnsLookup) -> Self {
        let (report, outcomes) = mpsc::channel(); // holds LOOKUPS_MAX at most
        Self {
            ring: ring.clone(),
            wake_handle: ring.wake_handle(),
            lookup: look_up,
            names: RefCell::default(),
            in_flight: Cell::new(0),
            outcomes,
            report,
            ended: Notify::default(),
        }
    }

    /// An address of `host` (lower case, without port). Several addresses are used in turn.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<SocketAddr, Box<str>> {
        if let Some(ip) = parse_literal(host) {
            return Ok(SocketAddr::new(ip, port));
        }
        let name = (Box::from(host), port);
        loop {
            let seen = self.ended.count();
            if let Some(answer) = self.cached(&name) {
                return answer;
            }
            self.start(&name)?;
            self.ended.after(seen).await;
        }
    }

    /// Takes the results of the threads: called when the ring was woken.
    pub fn get(&self) {
        let mut ended = false;
        while let Ok(DnsOutcome { name, result }) = self.outcomes.try_recv() {
            self.in_flight.set(self.in_flight.get() - 1);
            let result = match result {
                Ok(addresses) if addresses.is_empty() => Err("the name has no addresses".into()),
                Ok(addresses) => Ok(addresses),
                Err(why) => Err(why.to_string().into()),
            };
            let until = self.ring.now() + RESOLVED_FOR;
            self.names.borrow_mut().insert(name, DnsCacheEntry::Resolved { result, until, turn: 0 });
            ended = true;
        }
        if ended {
            self.ended.ring();
        }
    }

    fn cached(&self, name: &(Box<str>, u16)) -> Option<Result<SocketAddr, Box<str>>> {
        match self.names.borrow_mut().get_mut(name)? {
            DnsCacheEntry::Resolved { result, until, turn } if *until > self.ring.now() => {
                *turn += 1;
                let turn = *turn;
                Some(result.as_ref().map(|all| all[turn % all.len()]).map_err(Box::clone))
            }
            _ => None,
        }
    }

    /// Starts a look-up unless one is in flight, or too many are.
    fn start(&self, name: &(Box<str>, u16)) -> Result<(), Box<str>> {
        let mut names = self.names.borrow_mut();
        if matches!(names.get(name), Some(DnsCacheEntry::InFlight)) || self.in_flight.get() >= LOOKUPS_MAX {
            return Ok(());
        }
        if names.len() >= NAMES_MAX {
            let now = self.ring.now();
            names.retain(|_, entry| matches!(entry, DnsCacheEntry::Resolved { until, .. } if *until > now));
            if names.len() >= NAMES_MAX {
                names.clear(); // full: resolving again is better than growing
            }
        }
        let (look_up, report, wake_handle) = (self.lookup, self.report.clone(), self.wake_handle.clone());
        let asked = name.clone();
        let thread = std::thread::Builder::new().name("look-up".into()).spawn(move || {
            let result = look_up(&asked.0, asked.1);
            let _ = report.send(DnsOutcome { name: asked, result }); // fails only if the core has ended
            wake_handle.wake();
        });
        thread.map_err(|why| why.to_string())?;
        self.in_flight.set(self.in_flight.get() + 1);
        names.insert(name.clone(), DnsCacheEntry::InFlight);
        Ok(())
    }
}

/// The system's own resolver: hosts file, DNS, whatever is configured.
pub fn system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use ring::RingOptions;

    use super::*;

    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

    fn fake(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        LOOKUPS.fetch_add(1, Relaxed);
        match host {
            "two.example" => Ok(vec![([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], port).into()]),
            "none.example" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such name")),
        }
    }

    #[test]
    fn name_is_resolved_once_and_addresses_rotate() {
        let ring = Ring::kernel(RingOptions::default()).unwrap();
        let resolver = Rc::new(DnsResolver::new(&ring, fake));
        let (listening, on) = (Rc::clone(&resolver), ring.clone());
        ring.spawn(async move {
            loop {
                on.woken().await;
                listening.get();
            }
        });
        let ask = |host: &'static str| ring.block_on(resolver.resolve(host, 80));
        let mut seen: Vec<_> = (0..4).map(|_| ask("two.example").unwrap().to_string()).collect();
        seen.sort();
        assert_eq!(seen, ["10.0.0.1:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:80"]);
        assert_eq!(LOOKUPS.load(Relaxed), 1);
        assert!(ask("none.example").is_err() && ask("else.example").is_err());
        assert_eq!(LOOKUPS.load(Relaxed), 3);

        for (host, address) in [
            ("localhost", "127.0.0.1:80"),
            ("a.b.localhost", "127.0.0.1:80"),
            ("[::1]", "[::1]:80"),
            ("1.2.3.4", "1.2.3.4:80"),
        ] {
            assert_eq!(ask(host).unwrap().to_string(), address);
        }
        assert_eq!(LOOKUPS.load(Relaxed), 3);
    }
}
