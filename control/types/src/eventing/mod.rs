//! `eventing.knative.dev`: Broker, Trigger, EventType, EventPolicy and EventTransform, and the rules that they share.

pub mod broker;
pub mod delivery_features;
pub mod event_policy;
pub mod event_transform;
pub mod event_type;
pub mod event_type_versions;
pub mod filters;
pub mod jetstream;
pub mod stream_options;
pub mod trigger;

use crate::kind_registry::KindEntry;

pub const GROUP: &str = "eventing.knative.dev";
pub const VERSION: &str = "v1";

pub const BROKER_CLASS: &str = "eventing.knative.dev/broker.class";
/// The class whose events are in the logs of this program.
pub const OUR_CLASS: &str = "Sluicegate";
/// The class whose events are in a stream of NATS JetStream.
pub const JETSTREAM_CLASS: &str = "SluicegateJetStream";
pub const BROKER_LABEL: &str = "eventing.knative.dev/broker";
pub const INJECTION: &str = "eventing.knative.dev/injection";
pub const DEPENDENCY: &str = "knative.dev/dependency";

/// The rows of the kinds of eventing.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<broker::Broker>(),
        KindEntry::of::<trigger::Trigger>().with_warnings(filters::warnings),
        event_type_versions::v1beta2(),
        event_type_versions::v1beta3(),
        event_type_versions::v1beta1(),
        KindEntry::of::<event_policy::EventPolicy>(),
        KindEntry::of::<event_transform::EventTransform>(),
    ]
}
