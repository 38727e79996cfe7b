//! The kinds that several controllers read, each with its cache. A kind is one row: the cache, its source,
//! and the handlers that controllers register for it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};

use apiserver::store::ObjectStore;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Namespace, Pod, Secret, Service as CoreService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::NamespacedObject;
use crate::defaulting;
use crate::indexes;
use crate::informer_cache::{InformerCache, ObjectChange, ObjectSource, follow};
use crate::names::DERIVED_LABEL;
use crate::revisions::Revisions;
use types::autoscaling::metric::Metric;
use types::autoscaling::pod_autoscaler::PodAutoscaler;
use types::eventing::broker::Broker;
use types::eventing::event_policy::EventPolicy;
use types::eventing::event_type::EventType;
use types::eventing::trigger::Trigger;
use types::flows::parallel::Parallel;
use types::flows::sequence::Sequence;
use types::gateway_api::backend_tls_policy::BackendTlsPolicy;
use types::gateway_api::gateway::Gateway;
use types::gateway_api::gateway_class::GatewayClass;
use types::gateway_api::grpc_route::GrpcRoute;
use types::gateway_api::http_route::HttpRoute;
use types::gateway_api::reference_grant::ReferenceGrant;
use types::gateway_api::stream_route::{TcpRoute, TlsRoute, UdpRoute};
use types::gateway_policies::security_policy::GatewaySecurityPolicy;
use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscription::Subscription;
use types::networking::certificate::Certificate;
use types::networking::ingress::Ingress;
use types::serving::cluster_domain_claim::ClusterDomainClaim;
use types::serving::configuration::Configuration;
use types::serving::domain_mapping::DomainMapping;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::serving::service::Service;
use types::settings::Settings;
use types::sources::adapter_type::AdapterType;

/// A handler for changes of objects of the kind `K`.
pub(crate) type Handler<'a, K> = Box<dyn Fn(ObjectChange<'_, K>) + 'a>;
/// Something that runs as long as the controllers.
pub(crate) type ControllerTask<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A kind with a row in [`Caches`].
pub trait CachedKind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    fn cache(caches: &Caches) -> &InformerCache<Self>;
    fn handlers<'h, 'a>(handlers: &'h mut Handlers<'a>) -> &'h mut Vec<Handler<'a, Self>>;
}

/// Where objects are read from.
#[derive(Clone)]
pub struct ObjectSources {
    pub client: Client,
    /// Where the objects are, if the API is our own.
    pub store: Weak<ObjectStore>,
}

impl ObjectSources {
    /// All objects of a kind.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> ObjectSource<K> {
        ObjectSource::new(Api::all(self.client.clone()), self.store.clone(), None)
    }

    /// The objects of one namespace.
    pub(crate) fn in_namespace<K: NamespacedObject>(&self, namespace: &str) -> ObjectSource<K> {
        ObjectSource::new(Api::namespaced(self.client.clone(), namespace), self.store.clone(), Some(namespace))
    }
}

/// `FIELD: KIND = CACHE;`, and if need be the label of objects to leave out, whether the controllers start without the
/// right to read the kind, and what fills in the defaults of a kind that users write.
macro_rules! caches {
    ($($field:ident: $kind:ty = $cache:expr $(, without $label:path)? $(, optional $optional:literal)?
        $(, defaulted by $install:path)?;)+) => {
        #[derive(Debug)]
        pub struct Caches {
            $(pub $field: InformerCache<$kind>,)+
        }

        impl Default for Caches {
            fn default() -> Self {
                Self { $($field: $cache,)+ }
            }
        }

        impl Caches {
            /// Group and plural of each kind.
            #[cfg(test)]
            fn resources() -> Vec<(String, String)> {
                vec![$((<$kind>::group(&()).into_owned(), <$kind>::plural(&()).into_owned()),)+]
            }

            /// The newest object that exists of each kind that is followed.
            pub(crate) fn newest_revisions(&self) -> Revisions {
                let all = [$((stringify!($field), self.$field.revisions()),)+];
                all.into_iter().filter_map(|(kind, revisions)| Some((kind, revisions?.0))).collect()
            }

            /// The newest change of each kind that is followed.
            pub(crate) fn served_revisions(&self) -> Revisions {
                let all = [$((stringify!($field), self.$field.revisions()),)+];
                all.into_iter().filter_map(|(kind, revisions)| Some((kind, revisions?.1))).collect()
            }

            /// Compresses all objects, for a time when none of them is in use.
            pub(crate) fn compress(&self) {
                $(self.$field.compress_all();)+
            }
        }

        impl Caches {
            /// Fills in what the authors of objects left out, when these come in.
            pub(crate) fn install_defaults(&self, settings: &Arc<Mutex<Arc<Settings>>>) {
                $($($install(&self.$field, settings);)?)+
            }
        }

        /// The handlers of controllers, by kind.
        #[derive(Default)]
        pub struct Handlers<'a> {
            $($field: Vec<Handler<'a, $kind>>,)+
        }

        impl<'a> Handlers<'a> {
            /// Fills the caches of the kinds that have a handler.
            pub(crate) async fn fill(&self, sources: &ObjectSources, caches: &Caches) -> Result<(), kube::Error> {
                $(
                    if !self.$field.is_empty() {
                        let source: ObjectSource<$kind> = sources.all()$(.without_label($label))?;
                        let filled = source.fill(&caches.$field).await;
                        if let (Err(why), true) = (&filled, false $(|| $optional)?) {
                            tracing::warn!(
                                kind = %<$kind as Resource>::kind(&()), %why,
                                "the kind cannot be read; deploy/follow.yaml has the roles that allow it"
                            );
                        } else {
                            filled?;
                        }
                    }
                )+
                Ok(())
            }

            /// One task a kind that has a handler: keeps its cache current, and calls its handlers.
            pub(crate) fn follow(self, sources: &ObjectSources, caches: &'a Caches) -> Vec<ControllerTask<'a>> {
                let mut tasks: Vec<ControllerTask<'a>> = Vec::new();
                $(
                    if !self.$field.is_empty() {
                        let source: ObjectSource<$kind> = sources.all()$(.without_label($label))?;
                        let handlers = self.$field;
                        tasks.push(Box::pin(follow(source, &caches.$field, move |change| {
                            handlers.iter().for_each(|handler| handler(change));
                        })));
                    }
                )+
                tasks
            }
        }

        $(
            impl CachedKind for $kind {
                fn cache(caches: &Caches) -> &InformerCache<Self> {
                    &caches.$field
                }

                fn handlers<'h, 'a>(handlers: &'h mut Handlers<'a>) -> &'h mut Vec<Handler<'a, Self>> {
                    &mut handlers.$field
                }
            }
        )+
    };
}

caches! {
    services: Service = InformerCache::compressed(), defaulted by defaulting::install;
    configurations: Configuration = InformerCache::compressed(), defaulted by defaulting::install;
    revisions: Revision = InformerCache::compressed_with_index(indexes::revision_keys);
    routes: Route = InformerCache::compressed_with_index(indexes::route_keys), defaulted by defaulting::install;
    pod_autoscalers: PodAutoscaler = InformerCache::compressed();
    metrics: Metric = InformerCache::compressed();
    pods: Pod = InformerCache::compressed_with_index(indexes::pod_keys);
    deployments: Deployment = InformerCache::compressed();
    replica_sets: ReplicaSet = InformerCache::compressed();
    domain_mappings: DomainMapping = InformerCache::default(), defaulted by defaulting::install;
    domain_claims: ClusterDomainClaim = InformerCache::default();
    // A cluster may still have the roles of an earlier version of ours.
    certificates: Certificate = InformerCache::compressed_with_index(indexes::certificate_keys), optional true;
    ingresses: Ingress = InformerCache::default(), defaulted by defaulting::install;
    gateway_classes: GatewayClass = InformerCache::default();
    gateways: Gateway = InformerCache::default();
    http_routes: HttpRoute = InformerCache::default();
    grpc_routes: GrpcRoute = InformerCache::default();
    tls_routes: TlsRoute = InformerCache::default();
    tcp_routes: TcpRoute = InformerCache::default();
    udp_routes: UdpRoute = InformerCache::default();
    reference_grants: ReferenceGrant = InformerCache::default();
    backend_tls_policies: BackendTlsPolicy = InformerCache::default();
    // Not optional: routes whose policies cannot be read would be served without them.
    security_policies: GatewaySecurityPolicy = InformerCache::with_index(indexes::security_policy_keys);
    traffic_policies: GatewayTrafficPolicy = InformerCache::with_index(indexes::traffic_policy_keys);
    // Few of them are asked for: those with the authorities of backends.
    config_maps: ConfigMap = InformerCache::compressed();
    namespaces: Namespace = InformerCache::compressed();
    core_services: CoreService = InformerCache::compressed_with_index(indexes::core_service_keys);
    endpoints: Endpoints = InformerCache::default();
    endpoint_slices: EndpointSlice = InformerCache::default(), without DERIVED_LABEL;
    secrets: Secret = InformerCache::default();
    brokers: Broker = InformerCache::default(), defaulted by defaulting::install;
    triggers: Trigger = InformerCache::compressed_with_index(indexes::trigger_keys), defaulted by defaulting::install;
    event_types: EventType = InformerCache::default();
    event_policies: EventPolicy = InformerCache::default();
    channels: Channel = InformerCache::default(), defaulted by defaulting::install;
    in_memory_channels: InMemoryChannel = InformerCache::default(), defaulted by defaulting::install;
    subscriptions: Subscription = InformerCache::with_index(indexes::subscription_keys), defaulted by defaulting::install;
    sequences: Sequence = InformerCache::default(), defaulted by defaulting::install;
    parallels: Parallel = InformerCache::default(), defaulted by defaulting::install;
    // A cluster need not know our kind.
    adapter_types: AdapterType = InformerCache::default(), optional true;
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;
    use serde_json::Value;

    use super::*;

    /// Read in an API of our own alone, so a follower does not watch them: what runs is shown as Pods there.
    const EMBEDDED_ONLY: [&str; 4] = ["pods", "deployments", "replicasets", "namespaces"];

    /// AMB-62: a follower watches every kind that the controllers read.
    #[test]
    fn follower_may_watch_every_cached_kind() {
        let text = include_str!("../../../deploy/follow.yaml");
        let documents = serde_norway::Deserializer::from_str(text).map(|one| Value::deserialize(one).unwrap());
        let role = documents.into_iter().find(|one| one["kind"] == "ClusterRole").unwrap();
        let rules = role["rules"].as_array().unwrap();
        let has = |list: &Value, word: &str| list.as_array().is_some_and(|all| all.iter().any(|one| *one == word));
        let is_granted = |group: &str, plural: &str, verb: &str| {
            let mut all = rules.iter();
            all.any(|rule| {
                has(&rule["apiGroups"], group) && has(&rule["resources"], plural) && has(&rule["verbs"], verb)
            })
        };
        let all = Caches::resources();
        assert!(all.len() > EMBEDDED_ONLY.len());
        for (group, plural) in all.iter().filter(|(_, plural)| !EMBEDDED_ONLY.contains(&plural.as_str())) {
            for verb in ["get", "list", "watch"] {
                assert!(is_granted(group, plural, verb), "{verb} {plural}.{group} in deploy/follow.yaml");
            }
        }
    }
}
