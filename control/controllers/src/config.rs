//! The configuration that all controllers get from the program.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use apiserver::expiry::Expiries;
use apiserver::store::ObjectStore;
use contract::event_store::EventStoreClient;
use contract::target_policy::TargetPolicy;
use support::clock::WallClock;

use crate::listeners::{GatewayListenerConfig, ListenerAddresses, ServiceListenerConfig};
use crate::publish::QuotaConfig;
use crate::roles::RoleSet;
use crate::stream_addresses::EventsTlsListener;

/// The external store of Brokers whose class has one.
#[derive(Debug, Clone)]
pub struct EventStoreConfig {
    pub client: EventStoreClient,
    /// The servers of Brokers that name none.
    pub servers: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct ContextConfig {
    /// `localhost`
    pub domain: String,
    /// The port that URLs name.
    pub http_port: u16,
    /// `http://127.0.0.1:8081`
    pub events_url_base: String,
    /// Where events are accepted by TLS, if anywhere.
    pub events_tls: Option<EventsTlsListener>,
    /// Where requests are accepted, for statuses.
    pub listeners: ListenerAddresses,
    /// What Gateways may open beside them.
    pub gateway_listeners: GatewayListenerConfig,
    /// For ports of core Services, if instances have names.
    pub service_listeners: Option<ServiceListenerConfig>,
    pub quotas: QuotaConfig,
    /// Which addresses objects may name as targets.
    pub targets: Arc<TargetPolicy>,
    /// The clock for expiry of tokens.
    pub clock: WallClock,
    /// Instances are shown as Pods: in an API of our own, not in a cluster's.
    pub publishes_pods: bool,
    /// The parts of the system that this appliance takes over.
    pub roles: RoleSet,
    /// Our identity among the appliances that follow one API server; `None`: the API is our own.
    pub leader_identity: Option<String>,
    /// For Brokers whose events are not in our logs.
    pub event_store: EventStoreConfig,
    /// Where the objects are, if the API is our own.
    pub store: Weak<ObjectStore>,
    /// Holds the directories that outlive instances; `None`: there are none.
    pub state_root: Option<PathBuf>,
    /// Records when certificates of Secrets and trust bundles expire.
    pub expiries: Arc<Expiries>,
}
