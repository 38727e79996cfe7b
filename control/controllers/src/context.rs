//! The context of every controller: the API, caches of it, the autoscaler and the publisher. It does not depend on any controller.

use std::sync::{Arc, Mutex, PoisonError};

use contract::tls::TlsIdentity;
use k8s_openapi::api::core::v1::{Endpoints, Service as CoreService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource};

use crate::access_tokens::AccessTokenCache;
use crate::api::{Error, NamespacedObject, now};
use crate::backend_trust::BackendTrustCache;
use crate::caches::{Caches, ObjectSources};
use crate::config::ContextConfig;
use crate::config_maps::OperatorConfigMaps;
use crate::context_change::{ContextChange, ContextChanges};
use crate::destination_resolver::{DestinationAddress, DestinationResolver, ResolveError, describe};
use crate::event_recorder::{self, EventRecorder};
use crate::external_streams::ExternalStreams;
use crate::field_managers;
use crate::informer_cache::{ObjectSource, without_managed_fields};
use crate::jwks_cache::JwksCache;
use crate::leadership::Leadership;
use crate::names::SERVICE_NAME;
use crate::publish::{NamespaceQuotas, Publisher};
use crate::replica_reports::{ReplicaBehind, ReplicaReports};
use crate::service_backends::{BackendResolveError, ServiceLookup};
use crate::stream_addresses::{self, AddressesResult};
use crate::tls_secrets::TlsIdentityCache;
use crate::trust_store::TrustStore;
use crate::work_queue::{WorkItem, WorkQueue};
use autoscaler::Autoscaler;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::settings::{CROSS_NAMESPACE, Settings};
use types::shared::{ConditionStatus, Destination, HasConditions, label, name, namespace};

pub struct ControllerContext {
    pub config: ContextConfig,
    pub client: Client,
    /// Caches of the kinds that controllers share.
    pub caches: Caches,
    pub queue: Arc<WorkQueue>,
    /// Changes of what is in here that controllers have to see.
    pub changes: ContextChanges,
    /// Whether this appliance writes.
    pub leadership: Leadership,
    /// What the other replicas serve.
    pub(crate) replicas: ReplicaReports,
    pub recorder: EventRecorder,
    /// The operator's ConfigMaps.
    pub(crate) config_maps: OperatorConfigMaps,
    /// The settings in them.
    settings: Arc<Mutex<Arc<Settings>>>,
    pub resolver: DestinationResolver,
    pub autoscaler: Autoscaler,
    pub publisher: Arc<Publisher>,
    pub quotas: NamespaceQuotas,
    /// The keys that verify senders' tokens.
    pub jwks: JwksCache,
    /// Tokens of our own.
    pub access_tokens: AccessTokenCache,
    /// The authorities that deliveries over TLS trust.
    pub trust_store: TrustStore,
    /// How backends are verified that are reached by TLS.
    pub(crate) backend_trust: BackendTrustCache,
    /// Streams of Brokers that are not in our logs.
    pub(crate) external_streams: ExternalStreams,
    /// Certificates that were read from Secrets.
    pub(crate) tls_identities: TlsIdentityCache,
}

impl ControllerContext {
    pub fn new(config: ContextConfig, client: Client, scaler: Autoscaler, publisher: Arc<Publisher>) -> Self {
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
            replicas: ReplicaReports::default(),
            config,
            client,
            caches: Caches::default(),
            autoscaler: scaler,
            publisher,
            queue,
            changes: ContextChanges::default(),
            config_maps: OperatorConfigMaps::default(),
            settings,
            jwks: JwksCache::default(),
            access_tokens: AccessTokenCache::default(),
            trust_store: trusts,
            backend_trust: BackendTrustCache::default(),
            external_streams: ExternalStreams::default(),
            tls_identities: TlsIdentityCache::default(),
        }
    }

    /// The operator's settings as they are now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, for a part of the context: the settings in it are always the current ones.
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

    pub(crate) fn sources(&self) -> ObjectSources {
        ObjectSources { client: self.client.clone(), store: self.config.store.clone() }
    }

    /// All objects of a kind, for a cache.
    pub(crate) fn source<K: Resource<DynamicType = ()>>(&self) -> ObjectSource<K> {
        self.sources().all()
    }

    /// The objects of one namespace.
    pub(crate) fn source_in<K: NamespacedObject>(&self, namespace: &str) -> ObjectSource<K> {
        self.sources().in_namespace(namespace)
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

    /// Whether every replica serves the object as this one does. In an API of our own there are no others to ask.
    ///
    /// # Errors
    /// One does not yet.
    pub(crate) async fn check_replicas(&self, object: &ObjectMeta) -> Result<(), ReplicaBehind> {
        let Some(me) = &self.config.leader_identity else { return Ok(()) };
        self.replicas.check((&self.client, me), object, self.caches.newest_revisions()).await
    }

    /// Writes `after`'s status unless it says what is there already, and tells of a change of readiness. Ready is said when all
    /// replicas serve the object.
    pub async fn set_status<K: NamespacedObject + HasConditions>(&self, before: &K, after: &K) -> Result<(), Error> {
        if before != after && self.leadership.is_leader() {
            let meta = after.meta();
            let is_true = |object: &K| object.ready().is_some_and(|ready| ready.status == ConditionStatus::True);
            if is_true(after) && !is_true(before) {
                self.check_replicas(meta).await?;
            }
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

    /// Notifies the controllers that depend on it.
    pub fn notify(&self, change: ContextChange) {
        self.changes.add(change);
    }

    /// A destination's address, if it exists and the data plane can speak to it.
    pub async fn resolve_deliverable(
        &self,
        item: &WorkItem,
        destination: &Destination,
    ) -> Result<Result<DestinationAddress, ResolveError>, Error> {
        let resolved = self.resolver.resolve(item, destination).await?;
        Ok(resolved.and_then(|found| match self.trust_store.target(&found) {
            Ok(_) => Ok(found),
            // The object that gave the address, unless it is in the destination itself (EV-ADR-06).
            Err(why) => Err(ResolveError(match &destination.reference {
                Some(reference) => format!("{}: {why}", describe(item, reference)),
                None => why,
            })),
        }))
    }

    /// Where a stream takes events in, for its status.
    pub fn stream_addresses(&self, path: &str) -> AddressesResult {
        let schemes = stream_addresses::event_schemes(&self.settings().event_features);
        stream_addresses::addresses(schemes, &self.config.events_url_base, self.config.events_tls.as_ref(), path)
    }

    /// The certificate in a Secret.
    pub(crate) fn tls_identity(&self, ns: &str, name: &str) -> Result<TlsIdentity, BackendResolveError> {
        self.tls_identities.identity(&self.caches.secrets, ns, name, &self.config.expiries)
    }
}

impl ServiceLookup for ControllerContext {
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<CoreService>> {
        self.caches.core_services.get(namespace, name)
    }

    fn endpoints(&self, namespace: &str, name: &str) -> Option<Arc<Endpoints>> {
        self.caches.endpoints.get(namespace, name)
    }

    fn slices(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.caches.endpoint_slices.list(namespace);
        slices.retain(|slice| label(&slice.metadata, SERVICE_NAME) == Some(service));
        slices
    }

    fn revision(&self, namespace: &str, name: &str) -> Option<Arc<Revision>> {
        self.caches.revisions.get(namespace, name)
    }

    fn route(&self, namespace: &str, name: &str) -> Option<Arc<Route>> {
        self.caches.routes.get(namespace, name)
    }
}
