//! What every controller works with: the API, caches of it, the autoscaler and the publisher.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access_tokens::AccessTokenCache;
use crate::broker_injection::BrokerInjection;
use crate::config_maps::OperatorConfigMaps;
use crate::destination_resolver::DestinationResolver;
use crate::event_recorder::{self, EventRecorder};
use crate::field_managers;
use crate::informer_cache::{InformerCache, ObjectSource, without_managed_fields};
use crate::ingress::IngressContext;
use crate::jwks_cache::JwksCache;
use crate::leader_election::{Leadership, NotLeader};
use crate::publish::{NamespaceQuotas, Publisher};
use crate::revision::projected_tokens::ProjectedTokenCache;
use crate::service_names::ServiceNameIndex;
use crate::sources::SourceCaches;
use crate::trust_store::TrustStore;
use crate::work_queue::{WorkItem, WorkQueue};
use crate::{ControllerConfig, certificate, configuration, pods, route, stream_addresses, subscription, trigger};
use autoscaler::Autoscaler;
use types::autoscaling::metric::Metric;
use types::autoscaling::pod_autoscaler::PodAutoscaler;
use types::eventing::broker::Broker;
use types::eventing::event_policy::EventPolicy;
use types::eventing::event_type::EventType;
use types::eventing::trigger::Trigger;
use types::flows::parallel::Parallel;
use types::flows::sequence::Sequence;
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscription::Subscription;
use types::networking::certificate::Certificate;
use types::serving::cluster_domain_claim::ClusterDomainClaim;
use types::serving::configuration::Configuration;
use types::serving::domain_mapping::DomainMapping;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::serving::service::Service;
use types::settings::{CROSS_NAMESPACE, Settings};
use types::shared::{ConditionStatus, HasConditions, name, namespace};

pub struct ControllerContext {
    pub config: ControllerConfig,
    pub client: Client,
    /// Whether it is ours to write.
    pub leadership: Leadership,
    pub autoscaler: Autoscaler,
    pub publisher: Arc<Publisher>,
    pub quotas: NamespaceQuotas,
    pub queue: Arc<WorkQueue>,
    pub resolver: DestinationResolver,
    /// The operator's ConfigMaps.
    pub(crate) config_maps: OperatorConfigMaps,
    /// What they say.
    settings: Arc<Mutex<Arc<Settings>>>,
    /// What senders' tokens are checked by.
    pub jwks: JwksCache,
    /// Tokens of our own.
    pub access_tokens: AccessTokenCache,
    /// Tokens that instances read.
    pub projected_tokens: ProjectedTokenCache,
    /// Whom deliveries by TLS believe.
    pub trust_store: TrustStore,
    /// Namespaces that may get a Broker.
    pub broker_injection: BrokerInjection,
    pub recorder: EventRecorder,
    /// Core Services and who stands behind them.
    pub service_names: ServiceNameIndex,
    pub services: InformerCache<Service>,
    pub configurations: InformerCache<Configuration>,
    pub revisions: InformerCache<Revision>,
    pub pods: InformerCache<Pod>,
    pub deployments: InformerCache<Deployment>,
    pub routes: InformerCache<Route>,
    pub domain_mappings: InformerCache<DomainMapping>,
    pub domain_claims: InformerCache<ClusterDomainClaim>,
    pub certificates: InformerCache<Certificate>,
    pub pod_autoscalers: InformerCache<PodAutoscaler>,
    pub metrics: InformerCache<Metric>,
    pub brokers: InformerCache<Broker>,
    pub triggers: InformerCache<Trigger>,
    pub channels: InformerCache<Channel>,
    pub in_memory_channels: InformerCache<InMemoryChannel>,
    pub subscriptions: InformerCache<Subscription>,
    pub event_types: InformerCache<EventType>,
    pub event_policies: InformerCache<EventPolicy>,
    pub sequences: InformerCache<Sequence>,
    pub parallels: InformerCache<Parallel>,
    pub sources: SourceCaches,
    pub ingress: IngressContext,
}

/// Why an object has to be looked at again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What is missing will come from another appliance.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    #[error("no answer in {0:?}")]
    ApiTimeout(Duration),
}

impl Error {
    /// Somebody else wrote first. The watch brings the news and a retry settles it.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => {
                status.is_conflict() || status.is_already_exists() || status.is_not_found()
            }
            Self::Api(_) | Self::NotLeader(_) | Self::ApiTimeout(_) => false,
        }
    }
}

/// What the typed clients need of a kind.
pub trait NamespacedObject:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + PartialEq
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> NamespacedObject for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

impl ControllerContext {
    pub fn new(config: ControllerConfig, client: Client, scaler: Autoscaler, publisher: Arc<Publisher>) -> Self {
        let (queue, settings) = (Arc::new(WorkQueue::default()), Arc::default());
        let by_tls = config.events_tls.as_ref().map(|tls| tls.url_base.as_str());
        let trusts = TrustStore::with_own_endpoints([config.events_url_base.as_str()].into_iter().chain(by_tls));
        Self {
            resolver: DestinationResolver::new(
                client.clone(),
                Arc::clone(&queue),
                Arc::clone(&settings),
                Arc::clone(&config.targets),
            ),
            recorder: EventRecorder::new(client.clone()),
            quotas: NamespaceQuotas::new(config.quotas.clone()),
            leadership: Leadership::new(config.leader_identity.is_none()),
            config,
            client,
            autoscaler: scaler,
            publisher,
            queue,
            config_maps: OperatorConfigMaps::default(),
            settings,
            jwks: JwksCache::default(),
            access_tokens: AccessTokenCache::default(),
            projected_tokens: ProjectedTokenCache::default(),
            trust_store: trusts,
            broker_injection: BrokerInjection::default(),
            service_names: ServiceNameIndex::default(),
            services: InformerCache::compressed(),
            configurations: InformerCache::compressed(),
            revisions: InformerCache::compressed_with_index(configuration::index_keys),
            pods: InformerCache::compressed_with_index(pods::index_keys),
            deployments: InformerCache::compressed(),
            routes: InformerCache::compressed_with_index(route::index_keys),
            domain_mappings: InformerCache::default(),
            domain_claims: InformerCache::default(),
            certificates: InformerCache::compressed_with_index(certificate::index_keys),
            pod_autoscalers: InformerCache::compressed(),
            metrics: InformerCache::compressed(),
            brokers: InformerCache::default(),
            triggers: InformerCache::compressed_with_index(trigger::index_keys),
            channels: InformerCache::default(),
            in_memory_channels: InformerCache::default(),
            subscriptions: InformerCache::with_index(subscription::index_keys),
            event_types: InformerCache::default(),
            event_policies: InformerCache::default(),
            sequences: InformerCache::default(),
            parallels: InformerCache::default(),
            sources: SourceCaches::default(),
            ingress: IngressContext::default(),
        }
    }

    /// The operator's settings as they are now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same for somebody who lives as long as the world: what is in it changes.
    pub(crate) fn shared_settings(&self) -> Arc<Mutex<Arc<Settings>>> {
        Arc::clone(&self.settings)
    }

    /// Whether an object in `home` may read what is in `other` (X-FEA-10).
    #[must_use]
    pub fn can_read_namespace(&self, home: &str, other: &str) -> bool {
        home == other || self.settings().event_features.is_enabled(CROSS_NAMESPACE)
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        self.publisher.set_event_schemes(stream_addresses::event_schemes(&settings.event_features));
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// All objects of a kind, for a cache.
    pub(crate) fn source<K: Resource<DynamicType = ()>>(&self) -> ObjectSource<K> {
        ObjectSource::new(Api::all(self.client.clone()), self.config.store.clone(), None)
    }

    /// Those of one namespace.
    pub(crate) fn source_in<K: NamespacedObject>(&self, namespace: &str) -> ObjectSource<K> {
        ObjectSource::new(self.api(namespace), self.config.store.clone(), Some(namespace))
    }

    #[must_use]
    pub fn api<K: NamespacedObject>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn create<K: NamespacedObject>(&self, object: &K) -> Result<K, Error> {
        self.leadership.check()?;
        let made = self.api(namespace(object.meta())).create(&field_managers::object_params::<K>(), object).await?;
        Ok(without_managed_fields(made))
    }

    pub async fn replace<K: NamespacedObject>(&self, object: &K) -> Result<K, Error> {
        let meta = object.meta();
        self.leadership.check()?;
        let written =
            self.api(namespace(meta)).replace(name(meta), &field_managers::object_params::<K>(), object).await?;
        Ok(without_managed_fields(written))
    }

    /// Writes `after`'s status unless it says what is there already, and tells of a change of readiness.
    pub async fn set_status<K: NamespacedObject + HasConditions>(&self, before: &K, after: &K) -> Result<(), Error> {
        if before != after && self.leadership.is_leader() {
            let meta = after.meta();
            self.api(namespace(meta)).replace_status(name(meta), &field_managers::status_params::<K>(), after).await?;
            if let Some(news) = event_recorder::readiness_change(before, after) {
                self.recorder.record(after, &news, now()).await;
            }
        }
        Ok(())
    }

    /// The same of what is on its way: a state that is neither well nor failed, and was neither before, is not written
    /// while more urgent work waits.
    pub async fn set_transient_status<K: NamespacedObject + HasConditions>(
        &self,
        item: &WorkItem,
        before: &K,
        after: &K,
    ) -> Result<(), Error> {
        let is_open =
            |object: &K| object.condition("Ready").is_none_or(|ready| ready.status == ConditionStatus::Unknown);
        let in_between = before != after && is_open(before) && is_open(after) && self.leadership.is_leader();
        if in_between && self.queue.requeue(item) {
            return Ok(());
        }
        self.set_status(before, after).await
    }

    pub fn enqueue(&self, item: WorkItem) {
        self.queue.add(item);
    }
}

/// Conditions carry whole seconds, as Kubernetes' times do.
#[must_use]
pub fn now() -> jiff::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}
