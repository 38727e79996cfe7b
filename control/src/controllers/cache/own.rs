//! A watch of our own store: what changed is read from where it is kept, once.

use std::sync::{Arc, Weak};

use kube::Resource;
use serde::de::DeserializeOwned;
use tokio::task::yield_now;

use super::kept::{Slot, read};
use super::source::Scope;
use super::{Cache, Change, Key, PIECE, Source, joined, stored_key};
use crate::store::{Event, Expired, Reader, Store, Stored};

/// Changes that are told of before others have their turn.
const CHANGES_MAX: usize = 64;

/// Keeps `cache` current until the store is shut, and then for ever as it is.
pub(super) async fn follow<K>(source: &Source<K>, cache: &Cache<K>, mut told: impl FnMut(Change<'_, K>))
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    if let Some(store) = source.store.upgrade() {
        let mut newest = store.revision();
        drop(store); // or else it would not end while it is followed
        begin(source, cache, &mut told).await;
        loop {
            newest.borrow_and_update();
            while advance(&source.store, &source.scope, cache, &mut told) {
                yield_now().await;
            }
            if newest.changed().await.is_err() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Tells of all that are there.
async fn begin<K>(source: &Source<K>, cache: &Cache<K>, told: &mut impl FnMut(Change<'_, K>))
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    let is_filled = cache.lock().reached.is_some();
    if !is_filled && let Some(store) = source.store.upgrade() {
        cache.fill(&source.home(), &store);
    }
    for keys in cache.keys().chunks(PIECE) {
        for object in cache.opened(keys) {
            let before = is_filled.then_some(&object);
            told((before, Some(&object)));
        }
        yield_now().await;
    }
}

/// Takes in some changes; whether there may be more.
fn advance<K>(
    store: &Weak<Store>,
    scope: &Scope,
    cache: &Cache<K>,
    told: &mut impl FnMut(Change<'_, K>),
) -> bool
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    let reached = cache.lock().reached.as_ref().map(Reader::reached);
    let (Some(store), Some(reached)) = (store.upgrade(), reached) else { return false };
    let (resource, namespace) = scope.resource();
    let changes = store.read().changes(Some(resource), namespace, reached, CHANGES_MAX);
    match changes {
        Ok((events, reached)) => {
            events.iter().for_each(|event| cache.hear(scope, event, &mut *told));
            cache.reach(reached);
            events.len() == CHANGES_MAX
        }
        Err(Expired { .. }) => {
            cache.begin_again(scope, &store, reached, told);
            true
        }
    }
}

impl<K: Resource + DeserializeOwned + Send + Sync> Cache<K> {
    fn hear(&self, scope: &Scope, event: &Event, mut told: impl FnMut(Change<'_, K>)) {
        let is_there = !event.deleted && scope.has(&event.object);
        let before = event.before.as_ref().filter(|before| scope.has(before));
        if self.lock().home.is_some() {
            let before = before.and_then(|before| self.known(before));
            let after = is_there.then(|| self.read(&event.object)).flatten();
            self.change(&stored_key(&event.object), before, after, told);
        } else if is_there {
            if let Some(object) = self.read(&event.object) {
                self.apply(object, told);
            }
        } else if before.is_some() {
            let before = self.lock().remove(&stored_key(&event.object));
            if let Some(before) = before.or_else(|| self.read(&event.object)) {
                told((Some(&before), None));
            }
        }
    }

    /// Takes in a change of what is held by the store.
    fn change(
        &self,
        key: &Key,
        before: Option<Arc<K>>,
        after: Option<Arc<K>>,
        mut told: impl FnMut(Change<'_, K>),
    ) {
        match (&before, &after) {
            (before, Some(after)) => self.lock().change(key.clone(), before.as_ref(), Arc::clone(after)),
            (Some(before), None) => self.lock().drop_it(key, before),
            (None, None) => return,
        }
        told((before.as_ref(), after.as_ref()));
    }

    /// More has changed than the store remembers: what it has is told of like what is new, and who died since, too.
    fn begin_again(&self, scope: &Scope, store: &Store, reached: u64, mut told: impl FnMut(Change<'_, K>)) {
        if self.lock().home.is_none() {
            let (revision, items) = scope.list(store);
            self.take_in_all(items.filter_map(|stored| self.read(&stored)), told);
            self.reach(revision);
            return;
        }
        let (resource, namespace) = scope.resource();
        let (all, deaths) = {
            let memory = store.read();
            (memory.list(resource, namespace), memory.deaths(resource, namespace, reached))
        };
        let (inside, outside): (Vec<_>, Vec<_>) = all.iter().partition(|stored| scope.has(stored));
        let mut names = Vec::new();
        let maker = self.lock().maker();
        for (key, words, _) in inside.iter().filter_map(|stored| maker.make(stored)) {
            names.extend(words.iter().map(|word| joined([word, &key])));
        }
        self.lock().begin_again(names);
        // Who is told finds all of the list.
        let last_words = deaths.iter().map(|event| event.before.as_ref().unwrap_or(&event.object));
        for gone in last_words.chain(&outside).filter_map(|stored| self.read(stored)) {
            told((Some(&gone), None));
        }
        for object in inside.iter().filter_map(|stored| self.read(stored)) {
            told((None, Some(&object)));
        }
        self.reach(all.revision);
    }

    fn reach(&self, revision: u64) {
        if let Some(reader) = &self.lock().reached {
            reader.reach(revision);
        }
    }

    /// What is kept open need not be read.
    fn known(&self, stored: &Stored) -> Option<Arc<K>> {
        let open = match self.lock().objects.get(&stored_key(stored)) {
            Some(Slot::Open(object)) => Some(Arc::clone(object)),
            _ => None,
        };
        let version = |object: &Arc<K>| object.meta().resource_version.as_deref()?.parse().ok();
        open.filter(|object| version(object) == Some(stored.resource_version)).or_else(|| self.read(stored))
    }

    fn read(&self, stored: &Stored) -> Option<Arc<K>> {
        let open = self.lock().open;
        read(stored, open)
    }
}
