//! A watch of our own store: what changed is read from where it is kept, once.

use std::sync::{Arc, Weak};

use kube::Resource;
use serde::de::DeserializeOwned;
use tokio::task::yield_now;

use super::kept::read;
use super::source::Scope;
use super::{Cache, Change, PIECE, Source, stored_key};
use crate::store::{Event, Expired, Listing, Store, Stored};

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
        cache.fill(source.scope.list(&store));
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
    let (Some(store), Some(reached)) = (store.upgrade(), cache.lock().reached) else { return false };
    let (resource, namespace) = scope.resource();
    let changes = store.read().changes(Some(resource), namespace, reached, CHANGES_MAX);
    match changes {
        Ok((events, reached)) => {
            events.iter().for_each(|event| cache.hear(scope, event, &mut *told));
            cache.lock().reached = Some(reached);
            events.len() == CHANGES_MAX
        }
        Err(Expired { .. }) => {
            let listing = scope.list(&store);
            drop(store);
            cache.begin_again(listing, told);
            true
        }
    }
}

impl<K: Resource + DeserializeOwned + Send + Sync> Cache<K> {
    fn hear(&self, scope: &Scope, event: &Event, mut told: impl FnMut(Change<'_, K>)) {
        let is_there = !event.deleted && scope.has(&event.object);
        let was_there = event.before.as_ref().is_some_and(|before| scope.has(before));
        if is_there {
            if let Some(object) = self.read(&event.object) {
                self.apply(object, Some(Arc::clone(&event.object)), told);
            }
        } else if was_there {
            let before = self.lock().remove(&stored_key(&event.object));
            if let Some(before) = before.or_else(|| self.read(&event.object)) {
                told((Some(&before), None));
            }
        }
    }

    /// More has changed than the store remembers: what it has is compared with what was known.
    fn begin_again(&self, listing: Listing, told: impl FnMut(Change<'_, K>)) {
        let items = listing.items.into_iter();
        self.take_in_all(items.filter_map(|stored| Some((self.read(&stored)?, Some(stored)))), told);
        self.lock().reached = Some(listing.revision);
    }

    fn read(&self, stored: &Stored) -> Option<Arc<K>> {
        let open = self.lock().open;
        read(stored, open)
    }
}
