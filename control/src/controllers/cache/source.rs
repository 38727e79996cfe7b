//! Where the objects of a cache come from: our own store, or a cluster's API.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::{Cache, Change, cluster, own};
use crate::store::{self, Store, Stored};

/// Objects of one kind.
#[derive(Debug, Clone)]
pub struct Source<K> {
    pub(super) api: Api<K>,
    /// What is behind the API, if it is our own: what it has need not be written out and read again.
    pub(super) store: Weak<Store>,
    pub(super) scope: Scope,
}

/// Where a cache finds again what it does not hold.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) store: Weak<Store>,
    pub(super) scope: Scope,
}

/// Which of them.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    /// As the store names it.
    resource: Arc<str>,
    /// `None`: all.
    namespace: Option<String>,
    pub(super) without: Option<&'static str>,
}

impl<K: Resource<DynamicType = ()>> Source<K> {
    /// Those of one namespace, or of all. `api` is the same, for when there is no `store`.
    #[must_use]
    pub(crate) fn new(api: Api<K>, store: Weak<Store>, namespace: Option<&str>) -> Self {
        let resource = format!("{}/{}", K::group(&()), K::plural(&())).into();
        Self { api, store, scope: Scope { resource, namespace: namespace.map(str::to_owned), without: None } }
    }

    /// Only those that do not have this label.
    #[must_use]
    pub fn without(mut self, label: &'static str) -> Self {
        self.scope.without = Some(label);
        self
    }
}

impl<K> Source<K> {
    pub(super) fn home(&self) -> Home {
        Home { store: Weak::clone(&self.store), scope: self.scope.clone() }
    }
}

impl Home {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        self.scope.get(&*self.store.upgrade()?, namespace, name)
    }

    /// All of them, or of one namespace.
    pub(super) fn list(&self, namespace: Option<&str>) -> impl Iterator<Item = Arc<Stored>> {
        let (resource, all) = (&self.scope.resource, self.scope.namespace.as_deref());
        let listing = self.store.upgrade().map(|store| store.read().list(resource, namespace.or(all)));
        listing.into_iter().flatten().filter(|object| self.scope.has(object))
    }
}

impl Scope {
    pub(super) fn has(&self, object: &Stored) -> bool {
        object.key.resource == self.resource
            && self.namespace.as_deref().is_none_or(|namespace| &*object.key.namespace == namespace)
            && self.without.is_none_or(|label| object.head.label(label).is_none())
    }

    /// All of them as of one moment. The store is free for commits again when this returns.
    pub(super) fn list(&self, store: &Store) -> (u64, impl Iterator<Item = Arc<Stored>> + Clone) {
        let listing = store.read().list(&self.resource, self.namespace.as_deref());
        (listing.revision, listing.into_iter().filter(|object| self.has(object)))
    }

    pub(super) fn get(&self, store: &Store, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        let resource = Arc::clone(&self.resource);
        let key = store::Key { resource, namespace: namespace.into(), name: name.into() };
        store.read().get(&key).filter(|object| self.has(object))
    }

    pub(super) fn resource(&self) -> (&Arc<str>, Option<&str>) {
        (&self.resource, self.namespace.as_deref())
    }
}

impl<K> Source<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Puts all that there are into `cache`; none if a cluster does not have the kind. Its watch goes on asking.
    pub async fn fill(&self, cache: &Cache<K>) -> Result<(), kube::Error> {
        match self.store.upgrade() {
            Some(store) => cache.fill(&self.home(), &store),
            None => cache.replace(cluster::list(self).await?, |_| {}),
        }
        Ok(())
    }
}

/// Keeps `cache` current for ever, and tells of each change; first of all that are there.
pub async fn follow<K>(source: Source<K>, cache: &Cache<K>, told: impl FnMut(Change<'_, K>))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    if source.store.strong_count() > 0 {
        own::follow(&source, cache, told).await;
    } else {
        cluster::follow(source, cache, told).await;
    }
}
