//! The operator's settings for admission: read from the store, parsed again only when a ConfigMap has changed.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;

use crate::store::{ObjectKey, ObjectStore, StoredObject};
use types::kind_registry::ResourceStrategy as _;
use types::settings::{self, ConfigMapData, ConfigMapSetting as _, ServingFeatures, Settings};

use super::{ApiRequest, prepare};

#[derive(Debug)]
pub(super) struct SettingsCache {
    maps: Vec<ObjectKey>,
    /// The maps' versions, and what they say.
    cached: Mutex<(Vec<u64>, Arc<Settings>)>,
}

impl SettingsCache {
    pub(super) fn new() -> Self {
        let maps = settings::config_maps().map(|row| key(row.namespace, row.name)).collect();
        Self { maps, cached: Mutex::default() }
    }

    /// The current settings.
    pub(super) fn get(&self, store: &ObjectStore) -> Arc<Settings> {
        let memory = store.read();
        let version = |map| memory.get(map).map_or(0, |stored| stored.resource_version);
        let versions: Vec<u64> = self.maps.iter().map(version).collect();
        let mut last = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != versions {
            let read = Settings::read(|namespace, name| memory.get(&key(namespace, name)).map(|map| data(&map)));
            *last = (versions, Arc::new(read));
        }
        Arc::clone(&last.1)
    }
}

/// The operator's settings that have no effect here.
pub(super) fn ignored_settings(call: &ApiRequest) -> Vec<String> {
    let at = (call.target.entry.meta.plural, call.target.namespace.as_deref(), call.target.name.as_deref());
    if at != ("configmaps", Some(ServingFeatures::NAMESPACE), Some(ServingFeatures::NAME)) {
        return Vec::new();
    }
    let settings = call.server.settings.get(&call.server.store);
    let warning_for =
        |flag| format!("data[{flag}] has no effect: instances are processes of this host, not Pods of a cluster");
    settings.features.unsupported().map(warning_for).collect()
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { resource: prepare::resource_of(&ConfigMap::META), namespace: namespace.into(), name: name.into() }
}

fn data(map: &StoredObject) -> ConfigMapData {
    let map = map.value();
    let pairs = map["data"].as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
