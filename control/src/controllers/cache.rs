//! Caches: what the API has of one kind, kept current by a watch.
//!
//! A change calls back with the object before and after it, so that a deletion that happened while the
//! watch was down is noticed as well: the list after a reconnect is compared with what was known.
//!
//! A kind of which a sleeping Service has one keeps open only those that were asked for of late, because an object with its
//! fields open takes 4 KiB. The others are looked up in our own store, in which they may be newer
//! than what was told of; of another's API they are packed, in 400 bytes.

mod cluster;
mod kept;
mod own;
mod owners;
mod source;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::hands;
use crate::kinds::shared::{name, namespace};
use crate::store::{Store, Stored};
use kept::{Kept, Packer, SEAM, Sight, Slot, Words};
use owners::cut_owners;

pub use cluster::WATCH_SECONDS;
pub(super) use cluster::watch_config;
pub use owners::without_owners;
use source::Home;
pub use source::{Source, follow};

/// Namespace and name with [`SEAM`] between them, in one piece: as a pair of strings a name takes twice as much.
type Key = Box<str>;

/// Objects that are opened by one thread at a time, at some 10 us each.
const PIECE: usize = 64;

#[derive(Debug)]
pub struct Cache<K> {
    kept: Mutex<Kept<K>>,
    dress: OnceLock<Dress<K>>,
}

/// What is done to each object that comes in.
struct Dress<K>(Box<dyn Fn(&mut K) + Send + Sync>);

impl<K> Debug for Dress<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Dress")
    }
}

/// An object before and after; never both `None`.
pub type Change<'a, K> = (Option<&'a Arc<K>>, Option<&'a Arc<K>>);

impl<K: Resource + DeserializeOwned> Default for Cache<K> {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl<K: Resource + DeserializeOwned> Cache<K> {
    fn new(words: Option<Words<K>>, packer: Option<Packer<K>>) -> Self {
        let open = |json: &[u8]| serde_json::from_slice(&cut_owners(json)).map(without_owners);
        Self { kept: Mutex::new(Kept::new(words, open, packer)), dress: OnceLock::new() }
    }

    /// Objects are also found by these ([`Cache::having`]).
    #[must_use]
    pub fn found_by(words: Words<K>) -> Self {
        Self::new(Some(words), None)
    }
}

impl<K: Resource + Serialize + DeserializeOwned> Cache<K> {
    /// Most of them sleep, and are asked for by name: they are packed.
    #[must_use]
    pub fn of_sleepers() -> Self {
        Self::new(None, Some(Packer::default()))
    }

    /// The same, and they are also found by `words`, for which a start has to read each of them.
    #[must_use]
    pub fn of_sleepers_found_by(words: Words<K>) -> Self {
        Self::new(Some(words), Some(Packer::default()))
    }
}

impl<K: Resource> Cache<K> {
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.lock().get(&joined([namespace, name]))
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

    /// Whether an object is found by `word`.
    #[must_use]
    pub fn is_found(&self, namespace: &str, name: &str, word: &str) -> bool {
        self.lock().names.contains(&joined([word, namespace, name]))
    }

    /// Namespace and name of each object of all namespaces that is found by `word`.
    #[must_use]
    pub fn keys_having(&self, word: &str) -> Vec<(String, String)> {
        self.lock().found(&joined([word, ""])).filter_map(parts).collect()
    }

    /// The objects of all namespaces that are found by `word`.
    #[must_use]
    pub fn all_having(&self, word: &str) -> Vec<Arc<K>> {
        let kept = self.lock();
        kept.found(&joined([word, ""])).filter_map(|key| kept.look(key)).collect()
    }

    /// One of each group of objects that are found by the same word.
    #[must_use]
    pub fn crowds(&self) -> Vec<Arc<K>> {
        let kept = self.lock();
        let group = |key: &Key| key.rsplit_once(SEAM).map_or(0, |(group, _)| group.len());
        let names: Vec<&Key> = kept.names.iter().collect();
        let groups = names.chunk_by(|one, next| one[..group(one)] == next[..group(next)]);
        let one = groups.filter(|names| names.len() > 1).filter_map(|names| names[0].split_once(SEAM));
        one.filter_map(|(_, key)| kept.look(key)).collect()
    }

    /// Namespace and name of each.
    #[must_use]
    pub fn keys(&self) -> Vec<(String, String)> {
        let home = self.lock().home.clone();
        match home {
            Some(home) => {
                let pair = |one: Arc<Stored>| (one.key.namespace.to_string(), one.key.name.to_string());
                home.list(None).map(pair).collect()
            }
            None => self.lock().objects.keys().filter_map(|key| parts(key)).collect(),
        }
    }

    /// Does this to each object that comes in from a cluster from now on. The first to say so is heard.
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
    pub fn replace(&self, list: Vec<K>, told: impl FnMut(Change<'_, K>)) {
        self.take_in_all(list.into_iter().map(|object| self.taken_in(object)), told);
    }

    fn take_in_all(&self, list: impl Iterator<Item = Arc<K>>, mut told: impl FnMut(Change<'_, K>)) {
        let mut left: BTreeSet<Key> = self.lock().objects.keys().cloned().collect();
        let mut changes = Vec::new();
        for object in list {
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

    fn apply(&self, object: Arc<K>, mut told: impl FnMut(Change<'_, K>)) {
        let before = self.lock().insert(key(&*object), Arc::clone(&object));
        told((before.as_ref(), Some(&object)));
    }

    /// `object` is what it was last, if nobody knew it here.
    fn delete(&self, object: Arc<K>, mut told: impl FnMut(Change<'_, K>)) {
        let before = self.lock().remove(&key(&*object));
        told((Some(&before.unwrap_or(object)), None));
    }

    fn lock(&self) -> MutexGuard<'_, Kept<K>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource + Send + Sync> Cache<K> {
    /// All objects of a namespace, by name. Opens those of sleepers.
    #[must_use]
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let kept = self.lock();
        if let Some(home) = kept.home.clone() {
            drop(kept);
            return self.open_all(home.list(Some(namespace)).map(Sight::Stored).collect());
        }
        let first = joined([namespace, ""]);
        let of_it = kept.objects.range(first.clone()..).take_while(|(key, _)| key.starts_with(&*first));
        let sights = of_it.map(|(_, slot)| slot.sight()).collect();
        drop(kept);
        self.open_all(sights)
    }

    /// Opens those of sleepers: where there may be many, [`Cache::opened`] has some at a time.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        let home = self.lock().home.clone();
        let sights = match home {
            Some(home) => home.list(None).map(Sight::Stored).collect(),
            None => self.lock().objects.values().map(Slot::sight).collect(),
        };
        self.open_all(sights)
    }

    /// Those of these that are still there.
    #[must_use]
    pub fn opened(&self, keys: &[(String, String)]) -> Vec<Arc<K>> {
        let kept = self.lock();
        let sights =
            keys.iter().filter_map(|(namespace, name)| kept.sight(&joined([namespace, name]))).collect();
        drop(kept);
        self.open_all(sights)
    }

    fn open_all(&self, sights: Vec<Sight<K>>) -> Vec<Arc<K>> {
        let open = self.lock().open;
        let mut objects = Vec::with_capacity(sights.len());
        if sights.len() <= PIECE || sights.iter().all(|sight| matches!(sight, Sight::Open(_))) {
            objects.extend(sights.into_iter().filter_map(|sight| sight.open(open)));
            return objects;
        }
        let work = |piece: Vec<Sight<K>>| -> Vec<_> {
            piece.into_iter().filter_map(|sight| sight.open(open)).collect()
        };
        hands::in_order(pieces(sights), work, |some| objects.extend(some));
        objects
    }

    /// Takes in all that our own store has of it. To be done when there is nothing here yet; tells nobody.
    fn fill(&self, home: &Home, store: &Store) {
        let (maker, mut objects, mut names) = (self.lock().maker(), Vec::new(), Vec::new());
        let reader = store.reader(); // from before it is listed, so that no death is missed
        let (revision, all) = home.scope.list(store);
        reader.reach(revision);
        if maker.reads() {
            let work = |piece: Vec<Arc<Stored>>| -> Vec<_> {
                piece.iter().filter_map(|stored| maker.make(stored)).collect()
            };
            hands::in_order(pieces(all), work, |some: Vec<_>| {
                for (key, words, slot) in some {
                    names.extend(words.iter().map(|word| joined([word, &key])));
                    objects.extend(slot.map(|slot| (key, slot)));
                }
            });
        }
        self.lock().fill(home, objects, names, reader);
    }
}

/// What one thread is given at a time.
fn pieces<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = Vec<T>> {
    let mut all = all.into_iter();
    std::iter::from_fn(move || {
        Some(all.by_ref().take(PIECE).collect()).filter(|piece: &Vec<T>| !piece.is_empty())
    })
}

fn key<K: Resource>(object: &K) -> Key {
    joined([namespace(object.meta()), name(object.meta())])
}

fn stored_key(stored: &Stored) -> Key {
    joined([&stored.key.namespace, &stored.key.name])
}

fn joined<const N: usize>(words: [&str; N]) -> Key {
    words.join(SEAM).into()
}

fn parts(key: &str) -> Option<(String, String)> {
    key.split_once(SEAM).map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
}
