//! The operator's settings for admission: read from the store, parsed again only when a map has changed.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;

use crate::kind::Resource as _;
use crate::kinds::settings::{self, Data, Features, Setting as _, Settings};
use crate::store::{Key, Store, Stored};

use super::{Call, object};

#[derive(Debug)]
pub(super) struct Live {
    maps: Vec<Key>,
    /// The maps' versions, and what they say.
    last: Mutex<(Vec<u64>, Arc<Settings>)>,
}

impl Live {
    pub(super) fn new() -> Self {
        let maps = settings::rows().map(|row| key(row.namespace, row.name)).collect();
        Self { maps, last: Mutex::default() }
    }

    /// What holds now.
    pub(super) fn now(&self, store: &Store) -> Arc<Settings> {
        let memory = store.read();
        let version = |map| memory.get(map).map_or(0, |stored| stored.resource_version);
        let versions: Vec<u64> = self.maps.iter().map(version).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != versions {
            let read =
                Settings::read(|namespace, name| memory.get(&key(namespace, name)).map(|map| data(&map)));
            *last = (versions, Arc::new(read));
        }
        Arc::clone(&last.1)
    }
}

/// What an operator sets that changes nothing here.
pub(super) fn unheeded(call: &Call) -> Vec<String> {
    let at = (call.target.entry.meta.plural, call.target.namespace.as_deref(), call.target.name.as_deref());
    if at != ("configmaps", Some(Features::NAMESPACE), Some(Features::NAME)) {
        return Vec::new();
    }
    let settings = call.server.settings.now(&call.server.store);
    let told = |flag| {
        format!("data[{flag}] changes nothing: instances are processes of this host, not Pods of a cluster")
    };
    settings.features.idle().map(told).collect()
}

fn key(namespace: &str, name: &str) -> Key {
    Key { resource: object::resource_of(&ConfigMap::META), namespace: namespace.into(), name: name.into() }
}

fn data(map: &Stored) -> Data {
    let map = map.value();
    let pairs = map["data"].as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
