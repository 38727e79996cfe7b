//! What every controller works with: the API, caches of it, the fleet and the way down.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cache::{Cache, Source, without_owners};
use super::core_names::CoreNames;
use super::duty::{Duty, NotOurs};
use super::ingress::Room;
use super::keys::Keys;
use super::managers;
use super::passes::Passes;
use super::queue::{Item, Queue};
use super::resolve::Resolver;
use super::revision::tokens::Tokens;
use super::settings::Maps;
use super::sources::Sources;
use super::sugar::Sugar;
use super::trusts::Trusts;
use super::{ControlConfig, addresses, certificate, configuration, pods, route, subscription, trigger};
use crate::events_recorder::{self, Recorder};
use crate::fleet::Fleet;
use crate::kinds::autoscaling::metric::Metric;
use crate::kinds::autoscaling::pod_autoscaler::PodAutoscaler;
use crate::kinds::eventing::broker::Broker;
use crate::kinds::eventing::event_policy::EventPolicy;
use crate::kinds::eventing::event_type::EventType;
use crate::kinds::eventing::trigger::Trigger;
use crate::kinds::flows::parallel::Parallel;
use crate::kinds::flows::sequence::Sequence;
use crate::kinds::messaging::channel::Channel;
use crate::kinds::messaging::in_memory_channel::InMemoryChannel;
use crate::kinds::messaging::subscription::Subscription;
use crate::kinds::networking::certificate::Certificate;
use crate::kinds::serving::configuration::Configuration;
use crate::kinds::serving::domain_claim::ClusterDomainClaim;
use crate::kinds::serving::domain_mapping::DomainMapping;
use crate::kinds::serving::revision::Revision;
use crate::kinds::serving::route::Route;
use crate::kinds::serving::service::Service;
use crate::kinds::settings::{CROSS_NAMESPACE, Settings};
use crate::kinds::shared::{HasConditions, Verdict, name, namespace};
use crate::publish::{Publisher, Quotas};

pub struct World {
    pub config: ControlConfig,
    pub client: Client,
    /// Whether it is ours to write.
    pub duty: Duty,
    pub fleet: Fleet,
    pub publisher: Arc<Publisher>,
    pub quotas: Quotas,
    pub queue: Arc<Queue>,
    pub resolver: Resolver,
    /// The operator's ConfigMaps.
    pub(super) maps: Maps,
    /// What they say.
    settings: Arc<Mutex<Arc<Settings>>>,
    /// What senders' tokens are checked by.
    pub keys: Keys,
    /// Tokens of our own.
    pub passes: Passes,
    /// Tokens that instances read.
    pub tokens: Tokens,
    /// Whom deliveries by TLS believe.
    pub trusts: Trusts,
    /// Namespaces that may get a Broker.
    pub sugar: Sugar,
    pub recorder: Recorder,
    /// Core Services and who stands behind them.
    pub core_names: CoreNames,
    pub services: Cache<Service>,
    pub configurations: Cache<Configuration>,
    pub revisions: Cache<Revision>,
    pub pods: Cache<Pod>,
    pub deployments: Cache<Deployment>,
    pub routes: Cache<Route>,
    pub domain_mappings: Cache<DomainMapping>,
    pub domain_claims: Cache<ClusterDomainClaim>,
    pub certificates: Cache<Certificate>,
    pub pod_autoscalers: Cache<PodAutoscaler>,
    pub metrics: Cache<Metric>,
    pub brokers: Cache<Broker>,
    pub triggers: Cache<Trigger>,
    pub channels: Cache<Channel>,
    pub in_memory_channels: Cache<InMemoryChannel>,
    pub subscriptions: Cache<Subscription>,
    pub event_types: Cache<EventType>,
    pub event_policies: Cache<EventPolicy>,
    pub sequences: Cache<Sequence>,
    pub parallels: Cache<Parallel>,
    pub sources: Sources,
    pub ingress: Room,
}

/// Why an object has to be looked at again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What is missing will come from another appliance.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    #[error("no answer in {0:?}")]
    Silent(Duration),
}

impl Error {
    /// Somebody else wrote first. The watch brings the news and a retry settles it.
    #[must_use]
    pub fn is_crossing(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => {
                status.is_conflict() || status.is_already_exists() || status.is_not_found()
            }
            Self::Api(_) | Self::NotOurs(_) | Self::Silent(_) => false,
        }
    }
}

/// What the typed clients need of a kind.
pub trait Object:
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

impl<K> Object for K where
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

impl World {
    pub fn new(config: ControlConfig, client: Client, fleet: Fleet, publisher: Arc<Publisher>) -> Self {
        let (queue, settings) = (Arc::new(Queue::default()), Arc::default());
        let by_tls = config.events_tls.as_ref().map(|tls| tls.url_base.as_str());
        let trusts = Trusts::with_doors([config.events_url_base.as_str()].into_iter().chain(by_tls));
        Self {
            resolver: Resolver::new(
                client.clone(),
                Arc::clone(&queue),
                Arc::clone(&settings),
                Arc::clone(&config.targets),
            ),
            recorder: Recorder::new(client.clone()),
            quotas: Quotas::new(config.quotas.clone()),
            duty: Duty::new(config.holder.is_none()),
            config,
            client,
            fleet,
            publisher,
            queue,
            maps: Maps::default(),
            settings,
            keys: Keys::default(),
            passes: Passes::default(),
            tokens: Tokens::default(),
            trusts,
            sugar: Sugar::default(),
            core_names: CoreNames::default(),
            services: Cache::of_sleepers(),
            configurations: Cache::of_sleepers(),
            revisions: Cache::of_sleepers_found_by(configuration::words),
            pods: Cache::of_sleepers_found_by(pods::words),
            deployments: Cache::of_sleepers(),
            routes: Cache::of_sleepers_found_by(route::words),
            domain_mappings: Cache::default(),
            domain_claims: Cache::default(),
            certificates: Cache::of_sleepers_found_by(certificate::words),
            pod_autoscalers: Cache::of_sleepers(),
            metrics: Cache::of_sleepers(),
            brokers: Cache::default(),
            triggers: Cache::of_sleepers_found_by(trigger::words),
            channels: Cache::default(),
            in_memory_channels: Cache::default(),
            subscriptions: Cache::found_by(subscription::words),
            event_types: Cache::default(),
            event_policies: Cache::default(),
            sequences: Cache::default(),
            parallels: Cache::default(),
            sources: Sources::default(),
            ingress: Room::default(),
        }
    }

    /// The operator's settings as they are now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same for somebody who lives as long as the world: what is in it changes.
    pub(super) fn shared_settings(&self) -> Arc<Mutex<Arc<Settings>>> {
        Arc::clone(&self.settings)
    }

    /// Whether an object in `home` may read what is in `other` (X-FEA-10).
    #[must_use]
    pub fn may_read(&self, home: &str, other: &str) -> bool {
        home == other || self.settings().event_features.is_enabled(CROSS_NAMESPACE)
    }

    pub(super) fn set_settings(&self, settings: Settings) {
        self.publisher.take_events_by(addresses::events_by(&settings.event_features));
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// All objects of a kind, for a cache.
    pub(super) fn all<K: Resource<DynamicType = ()>>(&self) -> Source<K> {
        Source::new(Api::all(self.client.clone()), self.config.store.clone(), None)
    }

    /// Those of one namespace.
    pub(super) fn within<K: Object>(&self, namespace: &str) -> Source<K> {
        Source::new(self.api(namespace), self.config.store.clone(), Some(namespace))
    }

    #[must_use]
    pub fn api<K: Object>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn create<K: Object>(&self, object: &K) -> Result<K, Error> {
        self.duty.check()?;
        let made = self.api(namespace(object.meta())).create(&managers::objects::<K>(), object).await?;
        Ok(without_owners(made))
    }

    pub async fn replace<K: Object>(&self, object: &K) -> Result<K, Error> {
        let meta = object.meta();
        self.duty.check()?;
        let written =
            self.api(namespace(meta)).replace(name(meta), &managers::objects::<K>(), object).await?;
        Ok(without_owners(written))
    }

    /// Writes `after`'s status unless it says what is there already, and tells of a change of readiness.
    pub async fn set_status<K: Object + HasConditions>(&self, before: &K, after: &K) -> Result<(), Error> {
        if before != after && self.duty.is_ours() {
            let meta = after.meta();
            self.api(namespace(meta)).replace_status(name(meta), &managers::statuses::<K>(), after).await?;
            if let Some(news) = events_recorder::readiness(before, after) {
                self.recorder.record(after, &news, now()).await;
            }
        }
        Ok(())
    }

    /// The same of what is on its way: a state that is neither well nor failed, and was neither before, is not written
    /// while more urgent work waits.
    pub async fn set_status_of<K: Object + HasConditions>(
        &self,
        item: &Item,
        before: &K,
        after: &K,
    ) -> Result<(), Error> {
        let is_open =
            |object: &K| object.condition("Ready").is_none_or(|ready| ready.status == Verdict::Unknown);
        let in_between = before != after && is_open(before) && is_open(after) && self.duty.is_ours();
        if in_between && self.queue.put_off(item) {
            return Ok(());
        }
        self.set_status(before, after).await
    }

    pub fn look_at(&self, item: Item) {
        self.queue.add(item);
    }
}

/// Conditions carry whole seconds, as Kubernetes' times do.
#[must_use]
pub fn now() -> jiff::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}
