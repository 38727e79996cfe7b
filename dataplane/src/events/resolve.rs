//! Names of subscribers outside: looked up by the system on a thread that may wait, kept for a while.
//!
//! Addresses and `localhost` need no look-up; hosts of our own are found in the table before anybody
//! asks here.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Bell, Remote, Ring, Tick};

use super::limits::{LOOKUPS_MAX, NAMES_MAX, RESOLVED_FOR};

/// How the system is asked; another one in tests.
pub type LookUp = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

pub struct Resolver {
    ring: Ring,
    remote: Remote,
    look_up: LookUp,
    names: RefCell<HashMap<(Box<str>, u16), Entry, RandomState>>,
    under_way: Cell<usize>,
    outcomes: mpsc::Receiver<Outcome>,
    report: mpsc::Sender<Outcome>,
    /// A look-up has ended.
    ended: Bell,
}

enum Entry {
    UnderWay,
    /// Never empty if `Ok`.
    Known {
        result: Result<Vec<SocketAddr>, Box<str>>,
        until: Tick,
        turn: usize,
    },
}

struct Outcome {
    name: (Box<str>, u16),
    result: io::Result<Vec<SocketAddr>>,
}

impl Resolver {
    #[must_use]
    pub fn new(ring: &Ring, look_up: LookUp) -> Self {
        let (report, outcomes) = mpsc::channel(); // holds LOOKUPS_MAX at most
        Self {
            ring: ring.clone(),
            remote: ring.remote(),
            look_up,
            names: RefCell::default(),
            under_way: Cell::new(0),
            outcomes,
            report,
            ended: Bell::default(),
        }
    }

    /// An address of `host` (lower case, without port). Several take turns.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<SocketAddr, Box<str>> {
        if let Some(ip) = without_look_up(host) {
            return Ok(SocketAddr::new(ip, port));
        }
        let name = (Box::from(host), port);
        loop {
            let seen = self.ended.count();
            if let Some(answer) = self.known(&name) {
                return answer;
            }
            self.begin(&name)?;
            self.ended.after(seen).await;
        }
    }

    /// Takes in what the threads found: called when the ring's bell was rung.
    pub fn look(&self) {
        let mut ended = false;
        while let Ok(Outcome { name, result }) = self.outcomes.try_recv() {
            self.under_way.set(self.under_way.get() - 1);
            let result = match result {
                Ok(addresses) if addresses.is_empty() => Err("the name has no addresses".into()),
                Ok(addresses) => Ok(addresses),
                Err(why) => Err(why.to_string().into()),
            };
            let until = self.ring.now() + RESOLVED_FOR;
            self.names.borrow_mut().insert(name, Entry::Known { result, until, turn: 0 });
            ended = true;
        }
        if ended {
            self.ended.ring();
        }
    }

    fn known(&self, name: &(Box<str>, u16)) -> Option<Result<SocketAddr, Box<str>>> {
        match self.names.borrow_mut().get_mut(name)? {
            Entry::Known { result, until, turn } if *until > self.ring.now() => {
                *turn += 1;
                let turn = *turn;
                Some(result.as_ref().map(|all| all[turn % all.len()]).map_err(Box::clone))
            }
            _ => None,
        }
    }

    /// Starts a look-up unless it is under way, or too many are.
    fn begin(&self, name: &(Box<str>, u16)) -> Result<(), Box<str>> {
        let mut names = self.names.borrow_mut();
        if matches!(names.get(name), Some(Entry::UnderWay)) || self.under_way.get() >= LOOKUPS_MAX {
            return Ok(());
        }
        if names.len() >= NAMES_MAX {
            let now = self.ring.now();
            names.retain(|_, entry| matches!(entry, Entry::Known { until, .. } if *until > now));
            if names.len() >= NAMES_MAX {
                names.clear(); // all in use: asking again is better than growing
            }
        }
        let (look_up, report, remote) = (self.look_up, self.report.clone(), self.remote.clone());
        let asked = name.clone();
        let thread = std::thread::Builder::new().name("look-up".into()).spawn(move || {
            let result = look_up(&asked.0, asked.1);
            let _ = report.send(Outcome { name: asked, result }); // fails only if the core has ended
            remote.wake();
        });
        thread.map_err(|why| why.to_string())?;
        self.under_way.set(self.under_way.get() + 1);
        names.insert(name.clone(), Entry::UnderWay);
        Ok(())
    }
}

/// The system's own way: hosts file, DNS, whatever it is configured to.
pub fn system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// The address of a host that needs no look-up.
#[must_use]
pub fn without_look_up(host: &str) -> Option<IpAddr> {
    if host == "localhost" || host.ends_with(".localhost") {
        return Some(Ipv4Addr::LOCALHOST.into()); // RFC 6761
    }
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host).parse().ok()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use ring::Options;

    use super::*;

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn fake(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        ASKED.fetch_add(1, Relaxed);
        match host {
            "two.example" => Ok(vec![([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], port).into()]),
            "none.example" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such name")),
        }
    }

    #[test]
    fn a_name_is_asked_for_once_and_its_addresses_take_turns() {
        let ring = Ring::kernel(Options::default()).unwrap();
        let resolver = Rc::new(Resolver::new(&ring, fake));
        let (listening, on) = (Rc::clone(&resolver), ring.clone());
        ring.spawn(async move {
            loop {
                on.woken().await;
                listening.look();
            }
        });
        let ask = |host: &'static str| ring.block_on(resolver.resolve(host, 80));
        let mut seen: Vec<_> = (0..4).map(|_| ask("two.example").unwrap().to_string()).collect();
        seen.sort();
        assert_eq!(seen, ["10.0.0.1:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:80"]);
        assert_eq!(ASKED.load(Relaxed), 1);
        assert!(ask("none.example").is_err() && ask("else.example").is_err());
        assert_eq!(ASKED.load(Relaxed), 3);

        for (host, address) in [
            ("localhost", "127.0.0.1:80"),
            ("a.b.localhost", "127.0.0.1:80"),
            ("[::1]", "[::1]:80"),
            ("1.2.3.4", "1.2.3.4:80"),
        ] {
            assert_eq!(ask(host).unwrap().to_string(), address);
        }
        assert_eq!(ASKED.load(Relaxed), 3);
    }
}
