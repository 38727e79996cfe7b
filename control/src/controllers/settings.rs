//! The operator's ConfigMaps as controllers see them: followed, and obeyed at the next look.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use super::Task;
use super::cache::{Cache, Change, follow};
use super::certificate::authority;
use super::ingress::inner_tls;
use super::queue::{Item, Kind};
use super::trusts::BUNDLE_LABEL;
use super::world::{Error, World};
use crate::expiry::Source;
use crate::kinds::settings::{EVENTING, SERVING, Settings};
use crate::kinds::shared::{label, name};

/// The maps of both namespaces.
#[derive(Debug, Default)]
pub struct Maps {
    serving: Cache<ConfigMap>,
    eventing: Cache<ConfigMap>,
}

impl Maps {
    /// One of them.
    #[must_use]
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.of(namespace).get(namespace, name)
    }

    fn of(&self, namespace: &str) -> &Cache<ConfigMap> {
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
            label(&map.metadata, BUNDLE_LABEL).is_some() && !authority::is_it(SERVING, name(&map.metadata))
        });
        bundles.flat_map(|map| map.data.iter().flatten().map(|(_, pem)| pem.clone())).collect()
    }

    /// The authorities that deliveries by TLS believe beside the system's, by where they stand.
    fn bundles(&self) -> Vec<(String, String)> {
        let maps = self.eventing.all();
        let each = maps.iter().filter(|map| is_bundle(map)).flat_map(|map| {
            let data = map.data.iter().flatten();
            data.map(|(key, pem)| (format!("{}/{key}", name(&map.metadata)), pem.clone()))
        });
        each.collect()
    }
}

fn is_bundle(map: &ConfigMap) -> bool {
    label(&map.metadata, BUNDLE_LABEL) == Some("true")
}

/// Reads what is there, before anything is looked at.
pub(super) async fn restore(world: &World) -> Result<(), Error> {
    for namespace in [SERVING, EVENTING] {
        world.within(namespace).fill(world.maps.of(namespace)).await?;
    }
    obey(world, world.maps.read());
    set_bundles(world);
    Ok(())
}

/// Takes the operator's authorities; `true` if they are others than before.
fn set_bundles(world: &World) -> bool {
    let bundles = world.maps.bundles();
    let is_changed = world.trusts.set_bundles(bundles.clone());
    if is_changed {
        let expiries = &world.config.expiries;
        expiries.retain(Source::TrustBundle, |name| bundles.iter().any(|(bundle, _)| bundle == name));
        for (name, pem) in &bundles {
            expiries.record(Source::TrustBundle, name, pem.as_bytes(), Timestamp::now());
        }
    }
    is_changed
}

pub(super) fn watches(world: &World) -> [Task<'_>; 2] {
    [SERVING, EVENTING].map(|namespace| -> Task<'_> {
        let maps = world.maps.of(namespace);
        Box::pin(follow(world.within(namespace), maps, move |change| {
            let (before, after) = change;
            if concerns_bundles(change) && set_bundles(world) {
                look_at_all(world);
            }
            let has_label = |map: Option<&Arc<ConfigMap>>| {
                map.is_some_and(|map| label(&map.metadata, BUNDLE_LABEL).is_some())
            };
            if namespace == SERVING && (has_label(before) || has_label(after)) {
                inner_tls::look_at_all(world);
            }
            if before.map(|map| &map.data) != after.map(|map| &map.data) {
                let settings = world.maps.read();
                if *world.settings() != settings {
                    obey(world, settings);
                    world.keys.settings_changed();
                    world.sugar.settings_changed();
                    look_at_all(world);
                }
            }
        }))
    })
}

/// From now on these hold.
fn obey(world: &World, settings: Settings) {
    world.publisher.set_request_log(settings.observability.request_log.clone());
    world.set_settings(settings);
}

fn concerns_bundles((before, after): Change<'_, ConfigMap>) -> bool {
    before.is_some_and(|map| is_bundle(map)) || after.is_some_and(|map| is_bundle(map))
}

/// Any of them may be made otherwise now.
pub(super) fn look_at_all(world: &World) {
    look_at(world, Kind::Service, &world.services);
    look_at(world, Kind::Configuration, &world.configurations);
    look_at(world, Kind::Revision, &world.revisions);
    look_at(world, Kind::Route, &world.routes);
    look_at(world, Kind::DomainMapping, &world.domain_mappings);
    look_at(world, Kind::Broker, &world.brokers);
    look_at(world, Kind::Trigger, &world.triggers);
    look_at(world, Kind::Channel, &world.channels);
    look_at(world, Kind::InMemoryChannel, &world.in_memory_channels);
    look_at(world, Kind::Subscription, &world.subscriptions);
    look_at(world, Kind::EventType, &world.event_types);
    look_at(world, Kind::EventPolicy, &world.event_policies);
    look_at(world, Kind::PingSource, &world.sources.pings);
    look_at(world, Kind::Sequence, &world.sequences);
    look_at(world, Kind::Parallel, &world.parallels);
    look_at(world, Kind::Ingress, &world.ingress.ingresses);
    look_at(world, Kind::Certificate, &world.certificates);
}

pub(super) fn look_at<K: kube::Resource>(world: &World, kind: Kind, cache: &Cache<K>) {
    for (namespace, name) in cache.keys() {
        world.look_at(Item::new(kind, &namespace, &name));
    }
}
