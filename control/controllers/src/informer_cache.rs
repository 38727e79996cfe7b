//! Caches: the objects of one kind in the API, updated by a watch.
//!
//! A change calls back with the object before and after it, so that a deletion that happened while the
//! watch was down is noticed as well: the list after a reconnect is compared with the cache.
//!
//! Kinds of which every idle Service has an object keep only recently used objects decoded, because a decoded object
//! takes 4 KiB. The others are read from our own store, where they may be newer
//! than the last reported change; objects of a remote API are stored compressed, in 400 bytes.

mod cluster_watch;
mod managed_fields;
mod revisions;
mod source;
mod state;
mod store_watch;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

use apiserver::store::{ObjectStore, StoredObject};
use managed_fields::strip_managed_fields;
use revisions::RevisionTracker;
use state::{CacheSlot, CacheState, CachedObject, IndexFn, KEY_SEPARATOR, ObjectCompressor};
use support::worker_threads;
use types::shared::{name, namespace};

pub use cluster_watch::WATCH_SECONDS;
pub(super) use cluster_watch::watch_config;
pub use managed_fields::without_managed_fields;
use source::BackingStore;
pub use source::ObjectSource;

/// Namespace and name with [`KEY_SEPARATOR`] between them, in one piece: as a pair of strings a name takes twice as much.
type CacheKey = Box<str>;

/// Objects that are opened by one thread at a time, at some 10 us each.
const BATCH_OBJECTS: usize = 64;
/// Objects that a start decodes at a time, at 4 KiB each: enough that all processors have work.
pub(crate) const RESTORE_BATCH: usize = 1024;

#[derive(Debug)]
pub struct InformerCache<K> {
    state: Mutex<CacheState<K>>,
    transform: OnceLock<TransformFn<K>>,
    /// Of a remote API server, once the cache was filled from it.
    revisions: Mutex<Option<RevisionTracker>>,
}

/// A transformation of each arriving object.
struct TransformFn<K>(Box<dyn Fn(&mut K) + Send + Sync>);

impl<K> Debug for TransformFn<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TransformFn")
    }
}

/// An object before and after; never both `None`.
pub type ObjectChange<'a, K> = (Option<&'a Arc<K>>, Option<&'a Arc<K>>);

impl<K: Resource + DeserializeOwned> Default for InformerCache<K> {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl<K: Resource + DeserializeOwned> InformerCache<K> {
    fn new(words: Option<IndexFn<K>>, compressor: Option<ObjectCompressor<K>>) -> Self {
        let open = |json: &[u8]| serde_json::from_slice(&strip_managed_fields(json)).map(without_managed_fields);
        Self {
            state: Mutex::new(CacheState::new(words, open, compressor)),
            transform: OnceLock::new(),
            revisions: Mutex::default(),
        }
    }

    /// Objects are also found by these ([`InformerCache::by_index`]).
    #[must_use]
    pub fn with_index(words: IndexFn<K>) -> Self {
        Self::new(Some(words), None)
    }
}

impl<K: Resource + Serialize + DeserializeOwned> InformerCache<K> {
    /// Most of them sleep, and are asked for by name: they are compressed.
    #[must_use]
    pub fn compressed() -> Self {
        Self::new(None, Some(ObjectCompressor::default()))
    }

    /// The same, and they are also found by `words`, for which a start has to read each of them.
    #[must_use]
    pub fn compressed_with_index(words: IndexFn<K>) -> Self {
        Self::new(Some(words), Some(ObjectCompressor::default()))
    }
}

impl<K: Resource> InformerCache<K> {
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.lock().get(&join_key([namespace, name]))
    }

    /// The objects of a namespace that are found by `word`, by name.
    #[must_use]
    pub fn by_index(&self, namespace: &str, word: &str) -> Vec<Arc<K>> {
        let names = self.names_by_index(namespace, word);
        let mut kept = self.lock();
        names.into_iter().filter_map(|name| kept.get(&join_key([namespace, &name]))).collect()
    }

    /// Their names alone.
    #[must_use]
    pub fn names_by_index(&self, namespace: &str, word: &str) -> Vec<String> {
        self.lock().index_entries(&join_key([word, namespace, ""])).map(str::to_owned).collect()
    }

    /// Whether an object is found by `word`.
    #[must_use]
    pub fn is_indexed(&self, namespace: &str, name: &str, word: &str) -> bool {
        self.lock().index.contains(&join_key([word, namespace, name]))
    }

    /// Namespace and name of each object of all namespaces that is found by `word`.
    #[must_use]
    pub fn keys_by_index(&self, word: &str) -> Vec<(String, String)> {
        self.lock().index_entries(&join_key([word, ""])).filter_map(split_key).collect()
    }

    /// The objects of all namespaces that are found by `word`.
    #[must_use]
    pub fn all_by_index(&self, word: &str) -> Vec<Arc<K>> {
        let kept = self.lock();
        kept.index_entries(&join_key([word, ""])).filter_map(|key| kept.peek(key)).collect()
    }

    /// One of each group of objects that are found by the same word.
    #[must_use]
    pub fn one_per_shared_key(&self) -> Vec<Arc<K>> {
        let kept = self.lock();
        let group = |key: &CacheKey| key.rsplit_once(KEY_SEPARATOR).map_or(0, |(group, _)| group.len());
        let names: Vec<&CacheKey> = kept.index.iter().collect();
        let groups = names.chunk_by(|one, next| one[..group(one)] == next[..group(next)]);
        let one = groups.filter(|names| names.len() > 1).filter_map(|names| names[0].split_once(KEY_SEPARATOR));
        one.filter_map(|(_, key)| kept.peek(key)).collect()
    }

    /// Namespace and name of each.
    #[must_use]
    pub fn keys(&self) -> Vec<(String, String)> {
        let home = self.lock().backing_store.clone();
        match home {
            Some(home) => {
                let pair = |one: Arc<StoredObject>| (one.key.namespace.to_string(), one.key.name.to_string());
                home.list(None).map(pair).collect()
            }
            None => self.lock().slots.keys().filter_map(|key| split_key(key)).collect(),
        }
    }

    /// Applies this to each object that arrives from a cluster from now on. Only the first call counts.
    pub fn set_transform(&self, transform: impl Fn(&mut K) + Send + Sync + 'static) {
        let _ = self.transform.set(TransformFn(Box::new(transform)));
    }

    /// Compresses all objects, for a time when none of them is in use.
    pub(super) fn compress_all(&self) {
        self.lock().compress_down_to(0);
    }

    /// An object as it is kept.
    fn transformed(&self, object: K) -> Arc<K> {
        let mut object = without_managed_fields(object);
        if let Some(TransformFn(transform)) = self.transform.get() {
            transform(&mut object);
        }
        Arc::new(object)
    }

    /// Takes in a whole list; what is not in it is gone.
    pub fn replace(&self, list: Vec<K>, on_change: impl FnMut(ObjectChange<'_, K>)) {
        self.replace_all(list.into_iter().map(|object| self.transformed(object)), on_change);
    }

    fn replace_all(&self, list: impl Iterator<Item = Arc<K>>, mut on_change: impl FnMut(ObjectChange<'_, K>)) {
        let mut left: BTreeSet<CacheKey> = self.lock().slots.keys().cloned().collect();
        let mut changes = Vec::new();
        for object in list {
            let key = key(&*object);
            left.remove(&key);
            changes.push((self.lock().insert(key, Arc::clone(&object)), Some(object)));
        }
        changes.extend(left.iter().map(|key| (self.lock().remove(key), None)));
        // A callback finds all of the list.
        for (before, after) in changes {
            on_change((before.as_ref(), after.as_ref()));
            self.note_revisions(before.as_deref(), after.as_deref());
        }
    }

    fn apply(&self, object: Arc<K>, mut on_change: impl FnMut(ObjectChange<'_, K>)) {
        let before = self.lock().insert(key(&*object), Arc::clone(&object));
        on_change((before.as_ref(), Some(&object)));
        // After its work is queued, which a report of the version waits for.
        self.note_revisions(before.as_deref(), Some(&*object));
    }

    /// `object` is its last state, which is reported if the cache does not have it.
    fn delete(&self, object: Arc<K>, mut on_change: impl FnMut(ObjectChange<'_, K>)) {
        let before = self.lock().remove(&key(&*object));
        self.note_revisions(before.as_deref(), None);
        on_change((Some(&before.unwrap_or(object)), None));
    }

    fn note_revisions(&self, before: Option<&K>, after: Option<&K>) {
        if let Some(revisions) = &mut *self.lock_revisions() {
            revisions.note(before, after);
        }
    }

    /// Of a remote API server: the newest resourceVersions of the objects that exist, and of all that were seen.
    pub(crate) fn revisions(&self) -> Option<(u64, u64)> {
        self.lock_revisions().as_ref().map(|revisions| (revisions.newest_live(), revisions.newest_seen()))
    }

    fn lock_revisions(&self) -> MutexGuard<'_, Option<RevisionTracker>> {
        self.revisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, CacheState<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource + Send + Sync> InformerCache<K> {
    /// All objects of a namespace, by name. Decodes compressed objects.
    #[must_use]
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let kept = self.lock();
        if let Some(home) = kept.backing_store.clone() {
            drop(kept);
            return self.decode_all(home.list(Some(namespace)).map(CachedObject::Stored).collect());
        }
        let first = join_key([namespace, ""]);
        let of_it = kept.slots.range(first.clone()..).take_while(|(key, _)| key.starts_with(&*first));
        let snapshots = of_it.map(|(_, slot)| slot.snapshot()).collect();
        drop(kept);
        self.decode_all(snapshots)
    }

    /// Decodes compressed objects: where there may be many, [`InformerCache::get_many`] has some at a time.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        let home = self.lock().backing_store.clone();
        let snapshots = match home {
            Some(home) => home.list(None).map(CachedObject::Stored).collect(),
            None => self.lock().slots.values().map(CacheSlot::snapshot).collect(),
        };
        self.decode_all(snapshots)
    }

    /// The ones that still exist.
    #[must_use]
    pub fn get_many(&self, keys: &[(String, String)]) -> Vec<Arc<K>> {
        let kept = self.lock();
        let snapshots =
            keys.iter().filter_map(|(namespace, name)| kept.snapshot(&join_key([namespace, name]))).collect();
        drop(kept);
        self.decode_all(snapshots)
    }

    fn decode_all(&self, snapshots: Vec<CachedObject<K>>) -> Vec<Arc<K>> {
        let open = self.lock().decode;
        let mut objects = Vec::with_capacity(snapshots.len());
        if snapshots.len() <= BATCH_OBJECTS
            || snapshots.iter().all(|snapshot| matches!(snapshot, CachedObject::Decoded(_)))
        {
            objects.extend(snapshots.into_iter().filter_map(|snapshot| snapshot.decode(open)));
            return objects;
        }
        let work = |piece: Vec<CachedObject<K>>| -> Vec<_> {
            piece.into_iter().filter_map(|snapshot| snapshot.decode(open)).collect()
        };
        worker_threads::map_in_order(batches(snapshots), work, |some| objects.extend(some));
        objects
    }

    /// Takes in all that our own store has of it. To be done when there is nothing here yet; reports no changes.
    fn fill_from_store(&self, home: &BackingStore, store: &ObjectStore) {
        let (maker, mut objects, mut names) = (self.lock().slot_builder(), Vec::new(), Vec::new());
        let reader = store.new_reader(); // from before it is listed, so that no death is missed
        let (revision, all) = home.scope.list(store);
        reader.advance(revision);
        if maker.needs_decode() {
            let work = |piece: Vec<Arc<StoredObject>>| -> Vec<_> {
                piece.iter().filter_map(|stored| maker.build(stored)).collect()
            };
            worker_threads::map_in_order(batches(all), work, |some: Vec<_>| {
                for (key, words, slot) in some {
                    names.extend(words.iter().map(|word| join_key([word, &key])));
                    objects.extend(slot.map(|slot| (key, slot)));
                }
            });
        }
        self.lock().fill(home, objects, names, reader);
    }
}

/// The batch of one thread.
fn batches<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = Vec<T>> {
    let mut all = all.into_iter();
    std::iter::from_fn(move || {
        Some(all.by_ref().take(BATCH_OBJECTS).collect()).filter(|piece: &Vec<T>| !piece.is_empty())
    })
}

fn key<K: Resource>(object: &K) -> CacheKey {
    join_key([namespace(object.meta()), name(object.meta())])
}

fn stored_key(stored: &StoredObject) -> CacheKey {
    join_key([&stored.key.namespace, &stored.key.name])
}

fn join_key<const N: usize>(words: [&str; N]) -> CacheKey {
    words.join(KEY_SEPARATOR).into()
}

fn split_key(key: &str) -> Option<(String, String)> {
    key.split_once(KEY_SEPARATOR).map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
}

impl<K> ObjectSource<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Puts all that there are into `cache`; none if a cluster does not have the kind. Its watch continues asking.
    pub async fn fill(&self, cache: &InformerCache<K>) -> Result<(), kube::Error> {
        match self.store.upgrade() {
            Some(store) => cache.fill_from_store(&self.backing_store(), &store),
            None => {
                cache.replace(cluster_watch::list(self).await?, |_| {});
                // These have caused no work yet. They count as seen when the watch brings them.
                *cache.lock_revisions() = Some(RevisionTracker::default());
            }
        }
        Ok(())
    }
}

/// Keeps `cache` current forever, and tells of each change; first of all that are there.
pub async fn follow<K>(source: ObjectSource<K>, cache: &InformerCache<K>, on_change: impl FnMut(ObjectChange<'_, K>))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    if source.store.strong_count() > 0 {
        store_watch::follow(&source, cache, on_change).await;
    } else {
        cluster_watch::follow(source, cache, on_change).await;
    }
}
