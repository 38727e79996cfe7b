//! The operator's ConfigMaps as controllers see them: followed, and obeyed at the next look.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::ControllerTask;
use crate::certificate::authority;
use crate::context::{ControllerContext, Error};
use crate::informer_cache::{InformerCache, ObjectChange, follow};
use crate::ingress::system_internal_tls;
use crate::trust_store::BUNDLE_LABEL;
use crate::work_queue::{ControllerKind, WorkItem};
use apiserver::expiry::Source;
use types::settings::{EVENTING, SERVING, Settings};
use types::shared::{label, name};

/// The maps of both namespaces.
#[derive(Debug, Default)]
pub struct OperatorConfigMaps {
    serving: InformerCache<ConfigMap>,
    eventing: InformerCache<ConfigMap>,
}

impl OperatorConfigMaps {
    /// One of them.
    #[must_use]
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
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
    pub(crate) fn serving_bundles(&self) -> Vec<String> {
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
pub(crate) async fn restore(context: &ControllerContext) -> Result<(), Error> {
    for namespace in [SERVING, EVENTING] {
        context.source_in(namespace).fill(context.config_maps.of(namespace)).await?;
    }
    apply_settings(context, context.config_maps.read());
    set_bundles(context);
    Ok(())
}

/// Takes the operator's authorities; `true` if they are others than before.
fn set_bundles(context: &ControllerContext) -> bool {
    let bundles = context.config_maps.trust_bundles();
    let is_changed = context.trust_store.set_bundles(bundles.clone());
    if is_changed {
        let expiries = &context.config.expiries;
        expiries.retain(Source::TrustBundle, |name| bundles.iter().any(|(bundle, _)| bundle == name));
        for (name, pem) in &bundles {
            expiries.record(Source::TrustBundle, name, pem.as_bytes(), Timestamp::now());
        }
    }
    is_changed
}

pub(crate) fn watches(context: &ControllerContext) -> [ControllerTask<'_>; 2] {
    [SERVING, EVENTING].map(|namespace| -> ControllerTask<'_> {
        let maps = context.config_maps.of(namespace);
        Box::pin(follow(context.source_in(namespace), maps, move |change| {
            let (before, after) = change;
            if affects_trust_bundles(change) && set_bundles(context) {
                requeue_all(context);
            }
            let has_label =
                |map: Option<&Arc<ConfigMap>>| map.is_some_and(|map| label(&map.metadata, BUNDLE_LABEL).is_some());
            if namespace == SERVING && (has_label(before) || has_label(after)) {
                system_internal_tls::requeue_all(context);
            }
            if before.map(|map| &map.data) != after.map(|map| &map.data) {
                let settings = context.config_maps.read();
                if *context.settings() != settings {
                    apply_settings(context, settings);
                    context.jwks.settings_changed();
                    context.broker_injection.settings_changed();
                    requeue_all(context);
                }
            }
        }))
    })
}

/// From now on these hold.
fn apply_settings(context: &ControllerContext, settings: Settings) {
    context.publisher.set_request_log(settings.observability.request_log.clone());
    context.set_settings(settings);
}

fn affects_trust_bundles((before, after): ObjectChange<'_, ConfigMap>) -> bool {
    before.is_some_and(|map| is_trust_bundle(map)) || after.is_some_and(|map| is_trust_bundle(map))
}

/// Any of them may be made otherwise now.
pub(crate) fn requeue_all(context: &ControllerContext) {
    requeue_kind(context, ControllerKind::Service, &context.services);
    requeue_kind(context, ControllerKind::Configuration, &context.configurations);
    requeue_kind(context, ControllerKind::Revision, &context.revisions);
    requeue_kind(context, ControllerKind::Route, &context.routes);
    requeue_kind(context, ControllerKind::DomainMapping, &context.domain_mappings);
    requeue_kind(context, ControllerKind::Broker, &context.brokers);
    requeue_kind(context, ControllerKind::Trigger, &context.triggers);
    requeue_kind(context, ControllerKind::Channel, &context.channels);
    requeue_kind(context, ControllerKind::InMemoryChannel, &context.in_memory_channels);
    requeue_kind(context, ControllerKind::Subscription, &context.subscriptions);
    requeue_kind(context, ControllerKind::EventType, &context.event_types);
    requeue_kind(context, ControllerKind::EventPolicy, &context.event_policies);
    requeue_kind(context, ControllerKind::PingSource, &context.sources.pings);
    requeue_kind(context, ControllerKind::Sequence, &context.sequences);
    requeue_kind(context, ControllerKind::Parallel, &context.parallels);
    requeue_kind(context, ControllerKind::Ingress, &context.ingress.ingresses);
    requeue_kind(context, ControllerKind::Certificate, &context.certificates);
}

pub(crate) fn requeue_kind<K: kube::Resource>(
    context: &ControllerContext,
    kind: ControllerKind,
    cache: &InformerCache<K>,
) {
    for (namespace, name) in cache.keys() {
        context.enqueue(WorkItem::new(kind, &namespace, &name));
    }
}
