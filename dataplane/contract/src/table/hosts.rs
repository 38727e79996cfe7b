//! Routes by host name: a persistent map with constant lookup cost for 10 or 100,000 hosts, and cheap changes.
//!
//! It has [`SHARDS`] small open-addressed arrays, each behind an `Arc`. A copy of the map shares all of them, and a
//! change copies one, so a new route among 100,000 copies some hundred slots and not the map. A slot is one cache line
//! and holds the name itself: a lookup touches the shard's entry in the list, the slot, and the route.

use std::fmt;
use std::hash::BuildHasher;
use std::ops::Index;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::Route;

/// Number of shards; a power of two. More make a change cheaper and each copy of the list more expensive (24 bytes and
/// one reference count each).
const SHARDS: usize = 1024;
const SHARD_SHIFT: u32 = u64::BITS - SHARDS.ilog2();

/// Slots of a shard's first array.
const SLOTS_MIN: usize = 2;

/// Maximum load factor, in eighths: above it, probe sequences get long.
const TAKEN_OF_EIGHT_MAX: usize = 6;

/// Bytes of a name that fit into its slot; `NAME.NAMESPACE.svc.cluster.local` mostly does.
const SHORT_BYTES_MAX: usize = 54;

/// Host names and their routes. Names are lower case, without port and trailing dot; `*.PARENT` matches every name with
/// one label more than `PARENT`, and with any number more if its route says so ([`Route::matches_subdomains`]).
#[derive(Clone)]
pub struct HostTable {
    shards: Vec<HostShard>,
    hasher: RandomState,
    /// Names in all shards.
    len: usize,
    /// Names that begin with `*.`; without any, wildcards are not looked up.
    wildcards: usize,
    /// Those among them for any number of labels; without any, a lookup ends at the first label.
    subdomain_wildcards: usize,
}

#[derive(Clone)]
struct HostShard {
    /// Length 0 or a power of two.
    slots: Arc<[HostSlot]>,
    taken: u32,
}

/// One host. Aligned so that it is on one cache line.
#[derive(Clone, Default)]
#[repr(align(64))]
struct HostSlot {
    /// `None`: free.
    route: Option<Arc<Route>>,
    name: HostName,
}

#[derive(Clone)]
enum HostName {
    Short { bytes: [u8; SHORT_BYTES_MAX], length: u8 },
    Long(Arc<str>),
}

impl Default for HostName {
    fn default() -> Self {
        Self::Short { bytes: [0; SHORT_BYTES_MAX], length: 0 }
    }
}

impl HostName {
    fn new(name: &[u8]) -> Self {
        match name.len() {
            length @ 0..=SHORT_BYTES_MAX => {
                let mut bytes = [0; SHORT_BYTES_MAX];
                bytes[..length].copy_from_slice(name);
                Self::Short { bytes, length: length as u8 }
            }
            _ => Self::Long(String::from_utf8_lossy(name).into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { bytes, length } => &bytes[..usize::from(*length)],
            Self::Long(name) => name.as_bytes(),
        }
    }
}

impl Default for HostTable {
    fn default() -> Self {
        let empty: Arc<[HostSlot]> = Arc::new([]);
        let shard = HostShard { slots: empty, taken: 0 };
        Self {
            shards: vec![shard; SHARDS],
            hasher: RandomState::default(),
            len: 0,
            wildcards: 0,
            subdomain_wildcards: 0,
        }
    }
}

/// The key of a wildcard: `.example.com` for `*.example.com`, which is not a valid host.
fn key(host: &str) -> &str {
    match host.strip_prefix('*') {
        Some(parent) if parent.len() > 1 && parent.starts_with('.') => parent,
        _ => host,
    }
}

impl HostTable {
    /// The route of a requested host: its own, or that of its wildcard.
    #[inline]
    #[must_use]
    pub fn find(&self, host: &str) -> Option<&Arc<Route>> {
        if host.starts_with('.') {
            return None; // not a host; it would match a wildcard's key
        }
        let own = self.probe(host);
        if own.is_some() || self.wildcards == 0 {
            return own;
        }
        let parent = &host[host.find('.')?..];
        let nearest = self.probe(parent);
        if nearest.is_some() || self.subdomain_wildcards == 0 {
            return nearest;
        }
        // At most as many lookups as the name has dots, and a name has at most 255 bytes.
        let above = parent.match_indices('.').skip(1).map(|(at, _)| &parent[at..]);
        above.filter_map(|parent| self.probe(parent)).find(|route| route.matches_subdomains)
    }

    /// The route stored under exactly this name, wildcards included.
    #[inline]
    #[must_use]
    pub fn get(&self, host: &str) -> Option<&Arc<Route>> {
        self.probe(key(host))
    }

    #[must_use]
    pub fn contains_key(&self, host: &str) -> bool {
        self.get(host).is_some()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the route of `host`, replacing an existing one.
    pub fn insert(&mut self, host: &str, route: Arc<Route>) {
        let name = key(host);
        let hash = self.hash(name);
        let shard = &mut self.shards[shard_of(hash)];
        let is_wildcard = name.len() != host.len();
        self.subdomain_wildcards += usize::from(is_wildcard && route.matches_subdomains);
        let fresh = match shard.position(name, hash) {
            Some(at) => {
                let before = shard.own()[at].route.replace(route);
                let matched = is_wildcard && before.is_some_and(|route| route.matches_subdomains);
                self.subdomain_wildcards -= usize::from(matched);
                false
            }
            None => {
                if (shard.taken as usize + 1) * 8 > shard.slots.len() * TAKEN_OF_EIGHT_MAX {
                    shard.rebuild((shard.slots.len() * 2).max(SLOTS_MIN), &self.hasher, |_| true);
                }
                shard.put(HostSlot { route: Some(route), name: HostName::new(name.as_bytes()) }, hash);
                shard.taken += 1;
                true
            }
        };
        self.len += usize::from(fresh);
        self.wildcards += usize::from(fresh && is_wildcard);
    }

    pub fn remove(&mut self, host: &str) {
        let name = key(host);
        let hash = self.hash(name);
        let shard = &mut self.shards[shard_of(hash)];
        let Some(at) = shard.position(name, hash) else { return };
        let is_wildcard = name.len() != host.len();
        let matched = is_wildcard && shard.slots[at].route.as_ref().is_some_and(|route| route.matches_subdomains);
        self.subdomain_wildcards -= usize::from(matched);
        shard.taken -= 1;
        // The probe sequence of neighbours may pass through this slot, so the shard is rebuilt.
        let slots = if shard.taken == 0 { 0 } else { shard.slots.len() };
        shard.rebuild(slots, &self.hasher, |slot| slot.name.as_bytes() != name.as_bytes());
        self.len -= 1;
        self.wildcards -= usize::from(is_wildcard);
    }

    /// All names with their routes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (String, &Arc<Route>)> {
        self.shards.iter().flat_map(|shard| shard.slots.iter()).filter_map(|slot| {
            let name = String::from_utf8_lossy(slot.name.as_bytes());
            let name = if name.starts_with('.') { format!("*{name}") } else { name.into_owned() };
            Some((name, slot.route.as_ref()?))
        })
    }

    /// All routes; one that several hosts share is repeated.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.shards.iter().flat_map(|shard| shard.slots.iter()).filter_map(|slot| slot.route.as_ref())
    }

    fn probe(&self, name: &str) -> Option<&Arc<Route>> {
        let hash = self.hash(name);
        let shard = &self.shards[shard_of(hash)];
        shard.slots[shard.position(name, hash)?].route.as_ref()
    }

    fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name.as_bytes())
    }
}

/// The upper bits choose the shard, the lower ones the slot.
fn shard_of(hash: u64) -> usize {
    (hash >> SHARD_SHIFT) as usize
}

impl HostShard {
    /// The index of the name's slot.
    fn position(&self, name: &str, hash: u64) -> Option<usize> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        // Ends at a free slot: at least a quarter of them are.
        while let Some(slot) = self.slots.get(at) {
            slot.route.as_ref()?;
            if slot.name.as_bytes() == name.as_bytes() {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// The slots for writing; copied first if another map shares them.
    fn own(&mut self) -> &mut [HostSlot] {
        Arc::make_mut(&mut self.slots)
    }

    /// Inserts a name that is not present. There is a free slot.
    fn put(&mut self, slot: HostSlot, hash: u64) {
        let slots = self.own();
        insert_slot(slots, slot, hash);
    }

    /// The names that `keep` accepts, in an array of `length`.
    fn rebuild(&mut self, length: usize, hasher: &RandomState, keep: impl Fn(&HostSlot) -> bool) {
        let mut slots = vec![HostSlot::default(); length];
        for slot in self.slots.iter().filter(|slot| slot.route.is_some() && keep(slot)) {
            insert_slot(&mut slots, slot.clone(), hasher.hash_one(slot.name.as_bytes()));
        }
        self.slots = slots.into();
    }
}

fn insert_slot(slots: &mut [HostSlot], slot: HostSlot, hash: u64) {
    let mask = slots.len() - 1;
    let mut at = hash as usize & mask;
    while slots[at].route.is_some() {
        at = (at + 1) & mask;
    }
    slots[at] = slot;
}

impl Index<&str> for HostTable {
    type Output = Arc<Route>;

    /// # Panics
    ///
    /// The host has no route. For tests; the data plane uses [`HostTable::get`].
    fn index(&self, host: &str) -> &Arc<Route> {
        match self.get(host) {
            Some(route) => route,
            None => panic!("no route for {host}"),
        }
    }
}

impl fmt::Debug for HostTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn numbered(number: u8) -> Arc<Route> {
        let mut route = Route::of(Vec::new());
        route.hash = Some(number.to_string().into());
        Arc::new(route)
    }

    fn number(route: &Arc<Route>) -> u8 {
        route.hash.as_deref().unwrap().parse().unwrap()
    }

    #[test]
    fn slot_is_one_cache_line() {
        assert_eq!(size_of::<HostSlot>(), 64);
    }

    #[test]
    fn wildcard_matches_one_label_after_exact_names() {
        let mut hosts = HostTable::default();
        for (host, of) in [("*.example.com", 1), ("a.example.com", 2), ("*.a.example.com", 3)] {
            hosts.insert(host, numbered(of));
        }
        for (host, of) in [
            ("b.example.com", Some(1)),
            ("a.example.com", Some(2)),
            ("b.a.example.com", Some(3)),
            ("c.b.example.com", None),
            ("example.com", None),
            (".example.com", None),
            ("", None),
            ("*.example.com", Some(1)),
        ] {
            assert_eq!(hosts.find(host).map(number), of, "{host:?}");
        }
        hosts.remove("*.example.com");
        assert!(hosts.find("b.example.com").is_none() && hosts.find("b.a.example.com").is_some());
    }

    #[test]
    fn wildcard_for_subdomains_matches_any_number_of_labels() {
        let deep = |number: u8| {
            let hash = Some(number.to_string().into());
            let mut route = Route::default();
            (route.hash, route.matches_subdomains) = (hash, true);
            Arc::new(route)
        };
        let mut hosts = HostTable::default();
        hosts.insert("*.test", deep(1));
        hosts.insert("*.a.test", numbered(2));
        hosts.insert("*.b.test", deep(3));
        for (host, of) in [
            ("a.test", Some(1)),
            ("x.a.test", Some(2)),
            ("x.y.a.test", Some(1)),
            ("x.y.b.test", Some(3)),
            ("x.y.c.test", Some(1)),
            ("test", None),
            ("x.other", None),
        ] {
            assert_eq!(hosts.find(host).map(number), of, "{host:?}");
        }
        hosts.insert("*.test", numbered(4));
        assert!(hosts.find("x.y.c.test").is_none(), "it is for one label now");
        hosts.remove("*.b.test");
        assert!(hosts.find("x.y.b.test").is_none() && hosts.subdomain_wildcards == 0);
    }

    #[test]
    fn copy_is_not_affected_by_later_changes() {
        let mut hosts = HostTable::default();
        for n in 0..200_u8 {
            hosts.insert(&format!("app-{n}.example.com"), numbered(n));
        }
        let before = hosts.clone();
        hosts.insert("app-7.example.com", numbered(201));
        hosts.remove("app-8.example.com");
        assert_eq!((number(&before["app-7.example.com"]), number(&hosts["app-7.example.com"])), (7, 201));
        assert!(before.contains_key("app-8.example.com") && !hosts.contains_key("app-8.example.com"));
        assert_eq!((before.len(), hosts.len(), hosts.values().count()), (200, 199, 199));
    }

    /// The result of a linear search in a list.
    fn oracle<'a>(list: &'a BTreeMap<String, u8>, host: &str) -> Option<&'a u8> {
        list.get(host).or_else(|| {
            let (first, rest) = host.split_once('.')?;
            if first.is_empty() { None } else { list.get(&format!("*.{rest}")) }
        })
    }

    proptest! {
        #[test]
        fn lookup_matches_a_linear_search(
            edits in prop::collection::vec(("(\\*\\.)?[ab]{1,2}(\\.[ab]{1,2}){0,2}(\\.a{45,60})?", any::<Option<u8>>()), 0..120),
            asked in prop::collection::vec("[ab]{0,2}(\\.[ab]{1,2}){0,3}(\\.a{45,60})?", 0..60),
        ) {
            let (mut hosts, mut list) = (HostTable::default(), BTreeMap::new());
            for (host, number) in edits {
                match number {
                    Some(number) => {
                        hosts.insert(&host, numbered(number));
                        list.insert(host, number);
                    }
                    None => {
                        hosts.remove(&host);
                        list.remove(&host);
                    }
                }
            }
            prop_assert_eq!(hosts.len(), list.len());
            for host in asked.iter().chain(list.keys().filter(|host| !host.starts_with('*'))) {
                prop_assert_eq!(hosts.find(host).map(number), oracle(&list, host).copied(), "{}", host);
            }
        }
    }
}
