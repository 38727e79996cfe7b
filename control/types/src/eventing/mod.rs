//! `eventing.knative.dev`: Broker, Trigger, EventType and EventPolicy, and the rules that they share.

pub mod broker;
pub mod delivery_features;
pub mod event_policy;
pub mod event_type;
pub mod event_type_versions;
pub mod filters;
pub mod stream_options;
pub mod trigger;

pub const GROUP: &str = "eventing.knative.dev";
pub const VERSION: &str = "v1";

pub const BROKER_CLASS: &str = "eventing.knative.dev/broker.class";
/// The class that this program serves.
pub const OUR_CLASS: &str = "Sluicegate";
pub const BROKER_LABEL: &str = "eventing.knative.dev/broker";
pub const INJECTION: &str = "eventing.knative.dev/injection";
pub const DEPENDENCY: &str = "knative.dev/dependency";
