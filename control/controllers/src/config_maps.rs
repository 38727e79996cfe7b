//! The operator's ConfigMaps as controllers see them: followed, and obeyed at the next look.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use super::ControllerTask;
use super::certificate::authority;
use super::context::{ControllerContext, Error};
use super::informer_cache::{InformerCache, ObjectChange, follow};
use super::ingress::system_internal_tls;
use super::trust_store::BUNDLE_LABEL;
use super::work_queue::{ControllerKind, WorkItem};
use crate::expiry::Source;
use crate::kinds::settings::{EVENTING, SERVING, Settings};
use crate::kinds::shared::{label, name};

/// The maps of both namespaces.
#[derive(Debug, Default)]
pub struct OperatorConfigMaps {
    serving: InformerCache<ConfigMap>,
    eventing: InformerCache<ConfigMap>,
}

impl OperatorConfigMaps {
    /// One of them.
    #[must_use]
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.of(namespace).get(namespace, name)
    }

    fn of(&self, namespace: &str) -> &InformerCache<ConfigMap> {
        if namespace == SERVING { &self.serving } else { &self.eventing }
    }

    fn read(&self) -> Settings {
        Settings::read(|namespace, name| self.of(namespace).get(namespace, name)?.data.clone())
    }

    /// The authorities that backends of Ingresses are believed by. Upstream asks for the label alone, whatever it says.
    /// Ours is for names that developers choose, and says nothing of who a backend is.
    pub(super) fn serving_bundles(&self) -> Vec<String> {
        let maps = self.serving.all();
        let bundles = maps.iter().filter(|map| {
            label(&map.metadata, BUNDLE_LABEL).is_some() && !authority::is_authority(SERVING, name(&map.metadata))
        });
        bundles.flat_map(|map| map.data.iter().flatten().map(|(_, pem)| pem.clone())).collect()
    }

    /// The authorities that deliveries by TLS believe beside the system's, by where they stand.
    fn trust_bundles(&self) -> Vec<(String, String)> {
        let maps = self.eventing.all();
        let each = maps.iter().filter(|map| is_trust_bundle(map)).flat_map(|map| {
            let data = map.data.iter().flatten();
            data.map(|(key, pem)| (format!("{}/{key}", name(&map.metadata)), pem.clone()))
        });
        each.collect()
    }
}

fn is_trust_bundle(map: &ConfigMap) -> bool {
    label(&map.metadata, BUNDLE_LABEL) == Some("true")
}

/// Reads what is there, before anything is looked at.
pub(super) async fn restore(world: &ControllerContext) -> Result<(), Error> {
    for namespace in [SERVING, EVENTING] {
        world.source_in(namespace).fill(world.config_maps.of(namespace)).await?;
    }
    apply_settings(world, world.config_maps.read());
    set_bundles(world);
    Ok(())
}

/// Takes the operator's authorities; `true` if they are others than before.
fn set_bundles(world: &ControllerContext) -> bool {
    let bundles = world.config_maps.trust_bundles();
    let is_changed = world.trust_store.set_bundles(bundles.clone());
    if is_changed {
        let expiries = &world.config.expiries;
        expiries.retain(Source::TrustBundle, |name| bundles.iter().any(|(bundle, _)| bundle == name));
        for (name, pem) in &bundles {
            expiries.record(Source::TrustBundle, name, pem.as_bytes(), Timestamp::now());
        }
    }
    is_changed
}

pub(super) fn watches(world: &ControllerContext) -> [ControllerTask<'_>; 2] {
    [SERVING, EVENTING].map(|namespace| -> ControllerTask<'_> {
        let maps = world.config_maps.of(namespace);
        Box::pin(follow(world.source_in(namespace), maps, move |change| {
            let (before, after) = change;
            if affects_trust_bundles(change) && set_bundles(world) {
                requeue_all(world);
            }
            let has_label =
                |map: Option<&Arc<ConfigMap>>| map.is_some_and(|map| label(&map.metadata, BUNDLE_LABEL).is_some());
            if namespace == SERVING && (has_label(before) || has_label(after)) {
                system_internal_tls::requeue_all(world);
            }
            if before.map(|map| &map.data) != after.map(|map| &map.data) {
                let settings = world.config_maps.read();
                if *world.settings() != settings {
                    apply_settings(world, settings);
                    world.jwks.settings_changed();
                    world.broker_injection.settings_changed();
                    requeue_all(world);
                }
            }
        }))
    })
}

/// From now on these hold.
fn apply_settings(world: &ControllerContext, settings: Settings) {
    world.publisher.set_request_log(settings.observability.request_log.clone());
    world.set_settings(settings);
}

fn affects_trust_bundles((before, after): ObjectChange<'_, ConfigMap>) -> bool {
    before.is_some_and(|map| is_trust_bundle(map)) || after.is_some_and(|map| is_trust_bundle(map))
}

/// Any of them may be made otherwise now.
pub(super) fn requeue_all(world: &ControllerContext) {
    requeue_kind(world, ControllerKind::Service, &world.services);
    requeue_kind(world, ControllerKind::Configuration, &world.configurations);
    requeue_kind(world, ControllerKind::Revision, &world.revisions);
    requeue_kind(world, ControllerKind::Route, &world.routes);
    requeue_kind(world, ControllerKind::DomainMapping, &world.domain_mappings);
    requeue_kind(world, ControllerKind::Broker, &world.brokers);
    requeue_kind(world, ControllerKind::Trigger, &world.triggers);
    requeue_kind(world, ControllerKind::Channel, &world.channels);
    requeue_kind(world, ControllerKind::InMemoryChannel, &world.in_memory_channels);
    requeue_kind(world, ControllerKind::Subscription, &world.subscriptions);
    requeue_kind(world, ControllerKind::EventType, &world.event_types);
    requeue_kind(world, ControllerKind::EventPolicy, &world.event_policies);
    requeue_kind(world, ControllerKind::PingSource, &world.sources.pings);
    requeue_kind(world, ControllerKind::Sequence, &world.sequences);
    requeue_kind(world, ControllerKind::Parallel, &world.parallels);
    requeue_kind(world, ControllerKind::Ingress, &world.ingress.ingresses);
    requeue_kind(world, ControllerKind::Certificate, &world.certificates);
}

pub(super) fn requeue_kind<K: kube::Resource>(
    world: &ControllerContext,
    kind: ControllerKind,
    cache: &InformerCache<K>,
) {
    for (namespace, name) in cache.keys() {
        world.enqueue(WorkItem::new(kind, &namespace, &name));
    }
}
