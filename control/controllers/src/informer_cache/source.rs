//! The source of a cache: our own store, or a remote API server.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use kube::{Api, Resource};

use apiserver::store::{self, ObjectStore, StoredObject};

/// Objects of one kind.
#[derive(Debug, Clone)]
pub struct ObjectSource<K> {
    pub(super) api: Api<K>,
    /// The store behind the API, if it is our own: its objects need not be serialized and parsed again.
    pub(super) store: Weak<ObjectStore>,
    pub(super) scope: WatchScope,
}

/// Where a cache finds again what it does not hold.
#[derive(Debug, Clone)]
pub(super) struct BackingStore {
    pub(super) store: Weak<ObjectStore>,
    pub(super) scope: WatchScope,
}

/// Which of them.
#[derive(Debug, Clone)]
pub(super) struct WatchScope {
    /// As the store names it.
    resource: Arc<str>,
    /// `None`: all.
    namespace: Option<String>,
    pub(super) excluded_label: Option<&'static str>,
}

impl<K: Resource<DynamicType = ()>> ObjectSource<K> {
    /// The objects of one namespace, or of all. `api` is the same, for when there is no `store`.
    #[must_use]
    pub(crate) fn new(api: Api<K>, store: Weak<ObjectStore>, namespace: Option<&str>) -> Self {
        let resource = format!("{}/{}", K::group(&()), K::plural(&())).into();
        Self {
            api,
            store,
            scope: WatchScope { resource, namespace: namespace.map(str::to_owned), excluded_label: None },
        }
    }

    /// Only those that do not have this label.
    #[must_use]
    pub fn without_label(mut self, label: &'static str) -> Self {
        self.scope.excluded_label = Some(label);
        self
    }
}

impl<K> ObjectSource<K> {
    pub(super) fn backing_store(&self) -> BackingStore {
        BackingStore { store: Weak::clone(&self.store), scope: self.scope.clone() }
    }
}

impl BackingStore {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        self.scope.get(&*self.store.upgrade()?, namespace, name)
    }

    /// All of them, or of one namespace.
    pub(super) fn list(&self, namespace: Option<&str>) -> impl Iterator<Item = Arc<StoredObject>> {
        let (resource, all) = (&self.scope.resource, self.scope.namespace.as_deref());
        let listing = self.store.upgrade().map(|store| store.read().list(resource, namespace.or(all)));
        listing.into_iter().flatten().filter(|object| self.scope.matches(object))
    }
}

impl WatchScope {
    pub(super) fn matches(&self, object: &StoredObject) -> bool {
        object.key.resource == self.resource
            && self.namespace.as_deref().is_none_or(|namespace| &*object.key.namespace == namespace)
            && self.excluded_label.is_none_or(|label| object.head.label(label).is_none())
    }

    /// All of them as of one moment. The store is free for commits again when this returns.
    pub(super) fn list(&self, store: &ObjectStore) -> (u64, impl Iterator<Item = Arc<StoredObject>> + Clone) {
        let listing = store.read().list(&self.resource, self.namespace.as_deref());
        (listing.revision, listing.into_iter().filter(|object| self.matches(object)))
    }

    pub(super) fn get(&self, store: &ObjectStore, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        let resource = Arc::clone(&self.resource);
        let key = store::ObjectKey { resource, namespace: namespace.into(), name: name.into() };
        store.read().get(&key).filter(|object| self.matches(object))
    }

    pub(super) fn resource(&self) -> (&Arc<str>, Option<&str>) {
        (&self.resource, self.namespace.as_deref())
    }
}
