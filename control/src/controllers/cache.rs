//! Caches: what the API has of one kind, kept current by a watch.
//!
//! A change calls back with the object before and after it, so that a deletion that happened while the
//! watch was down is noticed as well: the list after a reconnect is compared with what was known.
//!
//! A kind of which a sleeping Service has one keeps open only those that were asked for of late, because an object with its
//! fields open takes 4 KiB. The others are what the store holds anyway; of another's API, or where the store has a newer
//! version already, they are packed, in 400 bytes.

mod follow;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Debug};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use follow::{follow, follow_some};

use crate::kinds::shared::{name, namespace};
use crate::packed::{Samples, Text};
use crate::store::{self, Store, Stored};

/// Words with [`SEAM`] between them, in one piece: as a pair of strings a name takes twice as much.
type Key = Box<str>;
/// No name holds it, and it comes before all that names hold, so that keys are in the order of their words.
const SEAM: &str = "\0";

/// What some objects of a namespace are found by, beside their names.
type Words<K> = fn(&K) -> Vec<String>;

#[derive(Debug)]
pub struct Cache<K> {
    kept: Mutex<Kept<K>>,
    dress: OnceLock<Dress<K>>,
}

#[derive(Debug)]
struct Kept<K> {
    /// By namespace and name.
    objects: BTreeMap<Key, Slot<K>>,
    words: Words<K>,
    /// Word, namespace and name: a look at one object must not go through all the others.
    names: BTreeSet<Key>,
    packer: Option<Packer<K>>,
}

#[derive(Debug)]
enum Slot<K> {
    Open(Arc<K>),
    /// The same version in the store.
    Stored(Arc<Stored>),
    Packed(Text),
}

/// How objects are packed that nobody asks for.
#[derive(Debug)]
struct Packer<K> {
    /// `None`: stays open.
    pack: fn(&K, &Samples<()>) -> Option<Text>,
    open: fn(&[u8]) -> K,
    /// The version of it in a store, if that has the same.
    find: fn(&K, &Store) -> Option<Arc<Stored>>,
    samples: Samples<()>,
    /// Where the objects come from, if that is a store of our own.
    store: Weak<Store>,
    /// Who was opened, the oldest first. Who was packed or deleted since is passed over.
    opened: VecDeque<Key>,
}

/// Objects of one kind that stay open, at 4 KiB each: twice as many as are in work at once.
const OPEN_MAX: usize = 64;

/// What is done to each object that comes in.
struct Dress<K>(Box<dyn Fn(&mut K) + Send + Sync>);

impl<K> Debug for Dress<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Dress")
    }
}

/// An object before and after; never both `None`.
pub type Change<'a, K> = (Option<&'a Arc<K>>, Option<&'a Arc<K>>);

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self::found_by(|_| Vec::new())
    }
}

impl<K> Cache<K> {
    /// Objects are also found by these ([`Cache::having`]).
    #[must_use]
    pub fn found_by(words: Words<K>) -> Self {
        let kept = Kept { objects: BTreeMap::new(), words, names: BTreeSet::new(), packer: None };
        Self { kept: Mutex::new(kept), dress: OnceLock::new() }
    }
}

impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned> Cache<K> {
    /// Most of them sleep, and are asked for by name: they are packed.
    #[must_use]
    pub fn of_sleepers(store: Weak<Store>, words: Words<K>) -> Self {
        let mut cache = Self::found_by(words);
        let kept = cache.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        kept.packer = Some(Packer {
            pack: |object, samples| Some(samples.pack(&(), &[], serde_json::to_vec(object).ok()?)),
            open: |json| without_owners(serde_json::from_slice(json).expect("a kind reads what it wrote")),
            find: in_store,
            samples: Samples::default(),
            store,
            opened: VecDeque::new(),
        });
        cache
    }
}

impl<K: Resource> Cache<K> {
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.lock().get(&joined([namespace, name]))
    }

    /// All objects of a namespace, by name. Opens those of sleepers.
    #[must_use]
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let first = joined([namespace, ""]);
        let kept = self.lock();
        let of_it = kept.objects.range(first.clone()..).take_while(|(key, _)| key.starts_with(&*first));
        of_it.filter_map(|(_, slot)| kept.look(slot)).collect()
    }

    /// The objects of a namespace that are found by `word`, by name.
    #[must_use]
    pub fn having(&self, namespace: &str, word: &str) -> Vec<Arc<K>> {
        let names = self.names_having(namespace, word);
        let mut kept = self.lock();
        names.into_iter().filter_map(|name| kept.get(&joined([namespace, &name]))).collect()
    }

    /// Their names alone.
    #[must_use]
    pub fn names_having(&self, namespace: &str, word: &str) -> Vec<String> {
        self.lock().found(&joined([word, namespace, ""])).map(str::to_owned).collect()
    }

    /// The objects of all namespaces that are found by `word`.
    #[must_use]
    pub fn all_having(&self, word: &str) -> Vec<Arc<K>> {
        let kept = self.lock();
        kept.found(&joined([word, ""])).filter_map(|key| kept.look(kept.objects.get(key)?)).collect()
    }

    /// One of each group of objects that are found by the same word.
    #[must_use]
    pub fn crowds(&self) -> Vec<Arc<K>> {
        let kept = self.lock();
        let group = |key: &Key| key.rsplit_once(SEAM).map_or(0, |(group, _)| group.len());
        let names: Vec<&Key> = kept.names.iter().collect();
        let groups = names.chunk_by(|one, next| one[..group(one)] == next[..group(next)]);
        let one = groups.filter(|names| names.len() > 1).filter_map(|names| names[0].split_once(SEAM));
        one.filter_map(|(_, key)| kept.look(kept.objects.get(key)?)).collect()
    }

    /// Opens those of sleepers.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        let kept = self.lock();
        kept.objects.values().filter_map(|slot| kept.look(slot)).collect()
    }

    /// Namespace and name of each.
    #[must_use]
    pub fn keys(&self) -> Vec<(String, String)> {
        let kept = self.lock();
        let parts = kept.objects.keys().filter_map(|key| key.split_once(SEAM));
        parts.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).collect()
    }

    /// Does this to each object that comes in from now on. The first to say so is heard.
    pub fn dress_by(&self, dress: impl Fn(&mut K) + Send + Sync + 'static) {
        let _ = self.dress.set(Dress(Box::new(dress)));
    }

    /// Nobody works with any: those of sleepers are packed.
    pub(super) fn rest(&self) {
        self.lock().close(0);
    }

    /// An object as it is kept.
    fn taken_in(&self, object: K) -> Arc<K> {
        let mut object = without_owners(object);
        if let Some(Dress(dress)) = self.dress.get() {
            dress(&mut object);
        }
        Arc::new(object)
    }

    /// Takes in a whole list; what is not in it is gone.
    pub fn replace(&self, list: Vec<K>, mut told: impl FnMut(Change<'_, K>)) {
        let mut left: BTreeSet<Key> = self.lock().objects.keys().cloned().collect();
        let mut changes = Vec::new();
        for object in list {
            let object = self.taken_in(object);
            let key = key(&*object);
            left.remove(&key);
            changes.push((self.lock().insert(key, Arc::clone(&object)), Some(object)));
        }
        changes.extend(left.iter().map(|key| (self.lock().remove(key), None)));
        // Who is told finds all of the list.
        for (before, after) in changes {
            told((before.as_ref(), after.as_ref()));
        }
    }

    fn apply(&self, object: K, mut told: impl FnMut(Change<'_, K>)) {
        let object = self.taken_in(object);
        let before = self.lock().insert(key(&*object), Arc::clone(&object));
        told((before.as_ref(), Some(&object)));
    }

    fn delete(&self, object: K, mut told: impl FnMut(Change<'_, K>)) {
        let before = self.lock().remove(&key(&object));
        let last = before.unwrap_or_else(|| Arc::new(object));
        told((Some(&last), None));
    }

    fn lock(&self) -> MutexGuard<'_, Kept<K>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Kept<K> {
    /// What follows `first` in the names that begin with it.
    fn found(&self, first: &str) -> impl Iterator<Item = &str> {
        let from = (Bound::Included(first), Bound::Unbounded);
        self.names.range::<str, _>(from).map_while(move |key| key.strip_prefix(first))
    }

    /// Somebody works with it: it stays open for a while.
    fn get(&mut self, key: &Key) -> Option<Arc<K>> {
        match self.objects.get(key)? {
            Slot::Open(object) => Some(Arc::clone(object)),
            closed => {
                let object = self.look(closed)?;
                self.put(key.clone(), Arc::clone(&object));
                Some(object)
            }
        }
    }

    fn look(&self, slot: &Slot<K>) -> Option<Arc<K>> {
        match slot {
            Slot::Open(object) => Some(Arc::clone(object)),
            Slot::Stored(stored) => self.opened(&stored.json()),
            Slot::Packed(text) => self.opened(&text.bytes(&[])),
        }
    }

    fn opened(&self, json: &[u8]) -> Option<Arc<K>> {
        self.packer.as_ref().map(|packer| Arc::new((packer.open)(json)))
    }

    /// Keeps an object open, and packs who was so for the longest time.
    fn put(&mut self, key: Key, object: Arc<K>) -> Option<Slot<K>> {
        let before = self.objects.insert(key.clone(), Slot::Open(object));
        if let Some(packer) = &mut self.packer
            && !matches!(before, Some(Slot::Open(_)))
        {
            packer.opened.push_back(key);
        }
        self.close(OPEN_MAX);
        before
    }

    /// Until no more than so many are open.
    fn close(&mut self, open_max: usize) {
        let Some(packer) = &mut self.packer else { return };
        let store = packer.store.upgrade();
        while packer.opened.len() > open_max {
            let Some(key) = packer.opened.pop_front() else { break };
            let Some(slot) = self.objects.get_mut(&key) else { continue };
            let Slot::Open(object) = slot else { continue };
            let stored = store.as_ref().and_then(|store| (packer.find)(object, store));
            let packed = || (packer.pack)(object, &packer.samples).map(Slot::Packed);
            if let Some(closed) = stored.map(Slot::Stored).or_else(packed) {
                *slot = closed;
            }
        }
    }

    fn insert(&mut self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let words = (self.words)(&object);
        let before = self.put(key.clone(), object);
        let before = before.and_then(|slot| self.look(&slot));
        if let Some(before) = &before {
            self.unlist(&key, before);
        }
        self.names.extend(words.iter().map(|word| joined([word, &key])));
        before
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let slot = self.objects.remove(key)?;
        let before = self.look(&slot)?;
        self.unlist(key, &before);
        Some(before)
    }

    fn unlist(&mut self, key: &Key, object: &K) {
        for word in (self.words)(object) {
            self.names.remove(&joined([&word, key]));
        }
    }
}

/// Who owns which field is the API server's to keep: no controller reads it, it is a third of what an object
/// weighs, and a write without it leaves it as it is.
pub fn without_owners<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

fn in_store<K: Resource<DynamicType = ()>>(object: &K, store: &Store) -> Option<Arc<Stored>> {
    let meta = object.meta();
    let resource = format!("{}/{}", K::group(&()), K::plural(&()));
    let key =
        store::Key { resource: resource.into(), namespace: namespace(meta).into(), name: name(meta).into() };
    let version: u64 = meta.resource_version.as_ref()?.parse().ok()?;
    store.read().get(&key).filter(|stored| stored.resource_version == version).cloned()
}

fn key<K: Resource>(object: &K) -> Key {
    joined([namespace(object.meta()), name(object.meta())])
}

fn joined<const N: usize>(words: [&str; N]) -> Key {
    words.join(SEAM).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::eventing::broker::{Broker, BrokerSpec};

    fn broker(name: &str) -> Broker {
        Broker::new("ns", name, BrokerSpec::default())
    }

    #[test]
    fn what_a_new_list_lacks_was_deleted() {
        let cache = Cache::default();
        cache.replace(vec![broker("a"), broker("b")], |_| {});
        let mut gone = Vec::new();
        cache.replace(vec![broker("b"), broker("c")], |(before, after)| {
            if after.is_none() {
                gone.extend(before.map(|b| b.metadata.name.clone()));
            }
        });
        assert_eq!(gone, [Some("a".to_owned())]);
        assert!(cache.get("ns", "a").is_none());
        assert_eq!(cache.list("ns").len(), 2);
        assert!(cache.list("n").is_empty());
    }

    #[test]
    fn objects_are_found_by_what_they_say_now() {
        let labelled = |name: &str, label: &str| {
            let mut broker = broker(name);
            broker.metadata.labels = Some([("l".to_owned(), label.to_owned())].into());
            broker
        };
        let cache = Cache::found_by(|broker: &Broker| {
            broker.metadata.labels.iter().flat_map(|labels| labels.values().cloned()).collect()
        });
        let found = |ns: &str, word: &str| {
            let all = cache.having(ns, word);
            all.iter().filter_map(|one| one.metadata.name.clone()).collect::<Vec<_>>()
        };
        cache.replace(vec![labelled("a", "x"), labelled("b", "x"), labelled("c", "y")], |_| {});
        assert_eq!((found("ns", "x"), found("n", "x")), (vec!["a".into(), "b".into()], vec![]));
        cache.apply(labelled("a", "y"), |_| {});
        cache.delete(labelled("c", "whatever"), |_| {});
        assert_eq!((found("ns", "x"), found("ns", "y")), (vec!["b".into()], vec!["a".into()]));
        cache.replace(vec![labelled("b", "y")], |_| {});
        assert_eq!((found("ns", "x"), found("ns", "y")), (vec![], vec!["b".into()]));
        assert_eq!(cache.lock().names.len(), 1, "words of nobody are kept");
    }

    #[tokio::test]
    async fn sleepers_are_what_the_store_holds_unless_it_has_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path()).unwrap());
        let put = async |name: &str| {
            let key = store::Key {
                resource: "eventing.knative.dev/brokers".into(),
                namespace: "ns".into(),
                name: name.into(),
            };
            let value = serde_json::to_value(broker(name)).unwrap();
            let written = store.write(move |_| Ok::<_, store::StoreError>(store::Change::Put(key, value)));
            let json = written.await.unwrap().object().json();
            serde_json::from_slice::<Broker>(&json).unwrap()
        };
        let cache = Cache::of_sleepers(Arc::downgrade(&store), |_| Vec::new());
        let (same, old) = (put("same").await, put("old").await);
        put("old").await;
        cache.replace(vec![same.clone(), old.clone(), broker("strange")], |_| {});
        cache.rest();
        let is_stored = |name: &str| matches!(cache.lock().objects[&joined(["ns", name])], Slot::Stored(_));
        assert_eq!(["same", "old", "strange"].map(is_stored), [true, false, false]);
        for known in [same, old, broker("strange")] {
            let found = cache.get("ns", known.metadata.name.as_deref().unwrap());
            assert_eq!(found.as_deref(), Some(&known), "each is the version that the cache was told of");
        }
    }

    #[test]
    fn sleepers_are_packed_and_found_as_before() {
        let labelled = |name: usize, label: &str| {
            let mut broker = broker(&format!("b{name:03}"));
            broker.metadata.labels = Some([("l".to_owned(), label.to_owned())].into());
            broker
        };
        let words = |broker: &Broker| {
            broker.metadata.labels.iter().flat_map(|labels| labels.values().cloned()).collect()
        };
        let cache = Cache::of_sleepers(Weak::new(), words);
        let many = OPEN_MAX * 3;
        cache.replace((0..many).map(|n| labelled(n, if n == 0 { "x" } else { "y" })).collect(), |_| {});
        let open = || {
            let kept = cache.lock();
            kept.objects.values().filter(|slot| matches!(slot, Slot::Open(_))).count()
        };
        assert_eq!(open(), OPEN_MAX);

        let first = cache.get("ns", "b000").unwrap();
        assert_eq!(*first, labelled(0, "x"));
        assert!(Arc::ptr_eq(&first, &cache.get("ns", "b000").unwrap()), "it is opened once");
        assert_eq!((open(), cache.all().len(), cache.list("ns").len()), (OPEN_MAX, many, many));
        assert_eq!((cache.having("ns", "x").len(), cache.all_having("y").len()), (1, many - 1));
        assert_eq!(cache.crowds().len(), 1);

        let mut told = Vec::new();
        let last = many - 1;
        for n in [last, 0, 1] {
            cache.apply(labelled(n, "z"), |(before, after)| told.push((before.cloned(), after.cloned())));
        }
        let expected =
            |n, label: &str| (Some(Arc::new(labelled(n, label))), Some(Arc::new(labelled(n, "z"))));
        assert_eq!(told, [expected(last, "y"), expected(0, "x"), expected(1, "y")]);
        cache.delete(labelled(2, ""), |(before, _)| assert_eq!(before.unwrap().as_ref(), &labelled(2, "y")));
        assert!(cache.get("ns", "b002").is_none());
        assert_eq!(cache.names_having("ns", "z"), ["b000", "b001", &format!("b{last:03}")]);
        cache.rest();
        assert_eq!((open(), cache.get("ns", "b000").as_deref()), (0, Some(&labelled(0, "z"))));
        assert_eq!(open(), 1);
    }
}
