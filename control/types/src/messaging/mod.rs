//! `messaging.knative.dev/v1`: Channel, its backing InMemoryChannel, and Subscription.

pub mod channel;
pub mod in_memory_channel;
pub mod subscribable;
pub mod subscription;

use crate::kind_registry::KindEntry;

pub const GROUP: &str = "messaging.knative.dev";
pub const VERSION: &str = "v1";
/// Group and version as references name them.
pub const API_VERSION: &str = "messaging.knative.dev/v1";

/// The annotation for the contract of kinds with subscribers.
pub const SUBSCRIBABLE: &str = "messaging.knative.dev/subscribable";
pub const SUBSCRIBABLE_VERSION: &str = "v1";

/// The rows of the kinds of messaging.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<channel::Channel>(),
        KindEntry::of::<in_memory_channel::InMemoryChannel>(),
        KindEntry::of::<subscription::Subscription>(),
    ]
}
