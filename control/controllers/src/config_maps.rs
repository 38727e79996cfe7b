//! The operator's ConfigMaps.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;

use crate::informer_cache::InformerCache;
use crate::tls_secrets::is_authority;
use crate::trust_store::BUNDLE_LABEL;
use types::settings::{SERVING, Settings};
use types::shared::{label, name};

/// The maps of both namespaces.
#[derive(Debug, Default)]
pub(crate) struct OperatorConfigMaps {
    serving: InformerCache<ConfigMap>,
    eventing: InformerCache<ConfigMap>,
}

impl OperatorConfigMaps {
    /// One of them.
    #[must_use]
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.of(namespace).get(namespace, name)
    }

    pub(crate) fn of(&self, namespace: &str) -> &InformerCache<ConfigMap> {
        if namespace == SERVING { &self.serving } else { &self.eventing }
    }

    pub(crate) fn read(&self) -> Settings {
        Settings::read(|namespace, name| self.of(namespace).get(namespace, name)?.data.clone())
    }

    /// The authorities that verify backends of Ingresses. Upstream checks only the presence of the label.
    /// Ours is for names that developers choose, and does not identify a backend.
    pub(crate) fn serving_bundles(&self) -> Vec<String> {
        let maps = self.serving.all();
        let bundles = maps
            .iter()
            .filter(|map| label(&map.metadata, BUNDLE_LABEL).is_some() && !is_authority(SERVING, name(&map.metadata)));
        bundles.flat_map(|map| map.data.iter().flatten().map(|(_, pem)| pem.clone())).collect()
    }

    /// The authorities that deliveries by TLS trust besides the system's, by the object that contains them.
    pub(crate) fn trust_bundles(&self) -> Vec<(String, String)> {
        let maps = self.eventing.all();
        let each = maps.iter().filter(|map| is_trust_bundle(map)).flat_map(|map| {
            let data = map.data.iter().flatten();
            data.map(|(key, pem)| (format!("{}/{key}", name(&map.metadata)), pem.clone()))
        });
        each.collect()
    }
}

pub(crate) fn is_trust_bundle(map: &ConfigMap) -> bool {
    label(&map.metadata, BUNDLE_LABEL) == Some("true")
}
