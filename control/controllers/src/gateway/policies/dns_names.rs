//! Host names that policies refer to: resolved, cached, and resolved again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// How often a name is resolved, as those of `--route`.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// The same after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the resolver.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Names of all policies. Others have no addresses.
const NAMES_MAX: usize = 256;
/// Addresses of one name: each has connections of its own.
const ADDRESSES_MAX: usize = 64;
/// Names that are resolved at a time.
const LOOKUPS_MAX: usize = 8;
/// How long the task sleeps if there is no name.
const IDLE: Duration = Duration::from_secs(3600);

/// A host and a port.
pub(super) type HostPort = (String, u16);

/// The addresses of a name as they are known now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ResolvedName {
    /// After a failure they stay.
    pub(super) addresses: Vec<SocketAddr>,
    /// Why the last attempt failed, or that there was none.
    pub(super) failure: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct DnsNames {
    names: Mutex<BTreeMap<HostPort, (ResolvedName, Instant)>>,
    /// There is a new name.
    added: Notify,
}

impl DnsNames {
    /// The addresses of a name. A new one is resolved soon.
    pub(super) fn get(&self, host: &str, port: u16) -> ResolvedName {
        let mut names = self.lock();
        let name = (host.to_owned(), port);
        if let Some((known, _)) = names.get(&name) {
            return known.clone();
        }
        let unresolved = |why: String| ResolvedName { addresses: Vec::new(), failure: Some(why) };
        if names.len() >= NAMES_MAX {
            return unresolved(format!("the policies name more than {NAMES_MAX} hosts"));
        }
        let new = unresolved(format!("{host} has not been resolved yet"));
        names.insert(name, (new.clone(), Instant::now()));
        self.added.notify_one();
        new
    }

    /// Keeps the addresses of `wanted` names current, forever, and calls `changed` with a name whose addresses or failure are
    /// others.
    pub(super) async fn run(&self, wanted: impl Fn() -> BTreeSet<HostPort>, changed: impl Fn(&HostPort)) {
        loop {
            let due = self.due(&wanted(), Instant::now());
            let changed = &changed;
            let resolve = |name: HostPort| async move {
                if self.store(&name, resolve(&name).await, Instant::now()) {
                    changed(&name);
                }
            };
            stream::iter(due).for_each_concurrent(LOOKUPS_MAX, resolve).await;
            tokio::select! {
                () = sleep_until(self.next_due()) => {}
                () = self.added.notified() => {}
            }
        }
    }

    /// The names to resolve now. Those that no policy has are forgotten when they are due.
    fn due(&self, wanted: &BTreeSet<HostPort>, now: Instant) -> Vec<HostPort> {
        let mut names = self.lock();
        names.retain(|name, (_, due)| *due > now || wanted.contains(name));
        names.iter().filter(|(_, (_, due))| *due <= now).map(|(name, _)| name.clone()).collect()
    }

    fn next_due(&self) -> Instant {
        self.lock().values().map(|(_, due)| *due).min().unwrap_or_else(|| Instant::now() + IDLE)
    }

    /// Whether the addresses or the failure are others than before.
    fn store(&self, name: &HostPort, found: Result<Vec<SocketAddr>, String>, now: Instant) -> bool {
        let mut names = self.lock();
        let Some((known, due)) = names.get_mut(name) else { return false };
        let before = known.clone();
        match found {
            Ok(addresses) => {
                *known = ResolvedName { addresses, failure: None };
                *due = now + RESOLVE_INTERVAL;
            }
            Err(why) => {
                known.failure = Some(why);
                *due = now + RETRY_INTERVAL;
            }
        }
        if let Some(why) = known.failure.as_ref().filter(|_| known.failure != before.failure) {
            tracing::warn!(
                host = name.0,
                why,
                "a host of a SecurityPolicy cannot be resolved; known addresses stay in use"
            );
        }
        *known != before
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<HostPort, (ResolvedName, Instant)>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn resolve((host, port): &HostPort) -> Result<Vec<SocketAddr>, String> {
    match timeout(LOOKUP_TIMEOUT, lookup_host((host.as_str(), *port))).await {
        Ok(Ok(found)) => {
            let addresses: BTreeSet<_> = found.take(ADDRESSES_MAX).collect();
            Ok(addresses.into_iter().collect())
        }
        Ok(Err(why)) => Err(format!("{host} cannot be resolved: {why}")),
        Err(_) => Err(format!("{host} cannot be resolved: no answer within {LOOKUP_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(host: &str) -> HostPort {
        (host.to_owned(), 80)
    }

    #[tokio::test]
    async fn addresses_stay_in_use_after_a_failure() {
        let (names, now) = (DnsNames::default(), Instant::now());
        let wanted = BTreeSet::from([name("a.test")]);
        assert!(names.get("a.test", 80).addresses.is_empty());
        assert_eq!(names.due(&wanted, Instant::now()), [name("a.test")]);
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        assert!(names.store(&name("a.test"), Ok(vec![address]), now));
        assert!(!names.store(&name("a.test"), Ok(vec![address]), now), "nothing has changed");
        assert_eq!(names.next_due() - now, RESOLVE_INTERVAL);
        assert!(names.store(&name("a.test"), Err("no".to_owned()), now));
        assert_eq!(names.next_due() - now, RETRY_INTERVAL);
        let failed = names.get("a.test", 80);
        assert_eq!((failed.addresses, failed.failure.as_deref()), (vec![address], Some("no")));
        assert!(names.due(&BTreeSet::new(), now + RETRY_INTERVAL).is_empty());
        assert!(names.lock().is_empty(), "no policy names it");
    }

    #[tokio::test]
    async fn name_of_this_host_is_resolved() {
        let addresses = resolve(&("localhost".to_owned(), 9)).await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 9));
        let why = resolve(&("nowhere.invalid".to_owned(), 9)).await.unwrap_err();
        assert!(why.starts_with("nowhere.invalid cannot be resolved"), "{why}");
    }

    #[test]
    fn names_are_limited() {
        let names = DnsNames::default();
        for n in 0..=NAMES_MAX {
            names.get(&format!("{n}.test"), 80);
        }
        assert_eq!(names.lock().len(), NAMES_MAX);
    }
}
