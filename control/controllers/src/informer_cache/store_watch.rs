//! A watch of our own store, which reads each changed object from the store, once.

use std::sync::{Arc, Weak};

use kube::Resource;
use serde::de::DeserializeOwned;
use tokio::task::yield_now;

use super::source::WatchScope;
use super::state::{CacheSlot, decode_stored};
use super::{BATCH_OBJECTS, CacheKey, InformerCache, ObjectChange, ObjectSource, join_key, stored_key};
use apiserver::store::{ChangeEvent, ChangeReader, ObjectStore, RevisionExpired, StoredObject};

/// Changes that are processed before other tasks run.
const CHANGES_PER_TURN_MAX: usize = 64;

/// Keeps `cache` current until the store is shut, and then forever as it is.
pub(super) async fn follow<K>(
    source: &ObjectSource<K>,
    cache: &InformerCache<K>,
    mut on_change: impl FnMut(ObjectChange<'_, K>),
) where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    if let Some(store) = source.store.upgrade() {
        let mut newest = store.revision();
        drop(store); // or else it would not end while it is followed
        list_initial(source, cache, &mut on_change).await;
        loop {
            newest.borrow_and_update();
            while advance(&source.store, &source.scope, cache, &mut on_change) {
                yield_now().await;
            }
            if newest.changed().await.is_err() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Reports all existing objects.
async fn list_initial<K>(
    source: &ObjectSource<K>,
    cache: &InformerCache<K>,
    on_change: &mut impl FnMut(ObjectChange<'_, K>),
) where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    let is_filled = cache.lock().change_reader.is_some();
    if !is_filled && let Some(store) = source.store.upgrade() {
        cache.fill_from_store(&source.backing_store(), &store);
    }
    for keys in cache.keys().chunks(BATCH_OBJECTS) {
        for object in cache.get_many(keys) {
            let before = is_filled.then_some(&object);
            on_change((before, Some(&object)));
        }
        yield_now().await;
    }
}

/// Takes in some changes; whether there may be more.
fn advance<K>(
    store: &Weak<ObjectStore>,
    scope: &WatchScope,
    cache: &InformerCache<K>,
    on_change: &mut impl FnMut(ObjectChange<'_, K>),
) -> bool
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    let reached = cache.lock().change_reader.as_ref().map(ChangeReader::position);
    let (Some(store), Some(reached)) = (store.upgrade(), reached) else { return false };
    let (resource, namespace) = scope.resource();
    let changes = store.read().changes(Some(resource), namespace, reached, CHANGES_PER_TURN_MAX);
    match changes {
        Ok((events, reached)) => {
            events.iter().for_each(|event| cache.apply_event(scope, event, &mut *on_change));
            cache.set_reached(reached);
            events.len() == CHANGES_PER_TURN_MAX
        }
        Err(RevisionExpired { .. }) => {
            cache.relist(scope, &store, reached, on_change);
            true
        }
    }
}

impl<K: Resource + DeserializeOwned + Send + Sync> InformerCache<K> {
    fn apply_event(&self, scope: &WatchScope, event: &ChangeEvent, mut on_change: impl FnMut(ObjectChange<'_, K>)) {
        let is_there = !event.deleted && scope.matches(&event.object);
        let before = event.before.as_ref().filter(|before| scope.matches(before));
        if self.lock().backing_store.is_some() {
            let before = before.and_then(|before| self.decoded(before));
            let after = is_there.then(|| self.decode(&event.object)).flatten();
            self.apply_change(&stored_key(&event.object), before, after, on_change);
        } else if is_there {
            if let Some(object) = self.decode(&event.object) {
                self.apply(object, on_change);
            }
        } else if before.is_some() {
            let before = self.lock().remove(&stored_key(&event.object));
            if let Some(before) = before.or_else(|| self.decode(&event.object)) {
                on_change((Some(&before), None));
            }
        }
    }

    /// Takes in a change of what is held by the store.
    fn apply_change(
        &self,
        key: &CacheKey,
        before: Option<Arc<K>>,
        after: Option<Arc<K>>,
        mut on_change: impl FnMut(ObjectChange<'_, K>),
    ) {
        match (&before, &after) {
            (before, Some(after)) => self.lock().replace(key.clone(), before.as_ref(), Arc::clone(after)),
            (Some(before), None) => self.lock().remove_known(key, before),
            (None, None) => return,
        }
        on_change((before.as_ref(), after.as_ref()));
    }

    /// More has changed than the store remembers: existing objects are reported like new ones, and deleted ones, too.
    fn relist(
        &self,
        scope: &WatchScope,
        store: &ObjectStore,
        reached: u64,
        mut on_change: impl FnMut(ObjectChange<'_, K>),
    ) {
        if self.lock().backing_store.is_none() {
            let (revision, items) = scope.list(store);
            self.replace_all(items.filter_map(|stored| self.decode(&stored)), on_change);
            self.set_reached(revision);
            return;
        }
        let (resource, namespace) = scope.resource();
        let (all, deaths) = {
            let memory = store.read();
            (memory.list(resource, namespace), memory.tombstones(resource, namespace, reached))
        };
        let (inside, outside): (Vec<_>, Vec<_>) = all.iter().partition(|stored| scope.matches(stored));
        let mut names = Vec::new();
        let maker = self.lock().slot_builder();
        for (key, words, _) in inside.iter().filter_map(|stored| maker.build(stored)) {
            names.extend(words.iter().map(|word| join_key([word, &key])));
        }
        self.lock().reset(names);
        // A callback finds all of the list.
        let last_words = deaths.iter().map(|event| event.before.as_ref().unwrap_or(&event.object));
        for gone in last_words.chain(&outside).filter_map(|stored| self.decode(stored)) {
            on_change((Some(&gone), None));
        }
        for object in inside.iter().filter_map(|stored| self.decode(stored)) {
            on_change((None, Some(&object)));
        }
        self.set_reached(all.revision);
    }

    fn set_reached(&self, revision: u64) {
        if let Some(reader) = &self.lock().change_reader {
            reader.advance(revision);
        }
    }

    /// Decoded objects need not be read.
    fn decoded(&self, stored: &StoredObject) -> Option<Arc<K>> {
        let open = match self.lock().slots.get(&stored_key(stored)) {
            Some(CacheSlot::Decoded(object)) => Some(Arc::clone(object)),
            _ => None,
        };
        let version = |object: &Arc<K>| object.meta().resource_version.as_deref()?.parse().ok();
        open.filter(|object| version(object) == Some(stored.resource_version)).or_else(|| self.decode(stored))
    }

    fn decode(&self, stored: &StoredObject) -> Option<Arc<K>> {
        let open = self.lock().decode;
        decode_stored(stored, open)
    }
}
