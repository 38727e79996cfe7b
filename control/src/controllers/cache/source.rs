//! Where the objects of a cache come from: our own store, or a cluster's API.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::{Cache, Change, cluster, own};
use crate::store::{Listing, Store, Stored};

/// Objects of one kind.
#[derive(Debug, Clone)]
pub struct Source<K> {
    pub(super) api: Api<K>,
    /// What is behind the API, if it is our own: what it has need not be written out and read again.
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

impl Scope {
    pub(super) fn has(&self, object: &Stored) -> bool {
        object.key.resource == self.resource
            && self.namespace.as_deref().is_none_or(|namespace| &*object.key.namespace == namespace)
            && self.without.is_none_or(|label| object.head.label(label).is_none())
    }

    /// All of them as of one moment. The store is free for commits again when this returns.
    pub(super) fn list(&self, store: &Store) -> Listing {
        let mut listing = store.read().list(&self.resource, self.namespace.as_deref());
        listing.items.retain(|object| self.has(object));
        listing
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
            Some(store) => cache.fill(self.scope.list(&store)),
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
