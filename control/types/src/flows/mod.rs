//! `flows.knative.dev/v1`: Sequence and Parallel, which are made of channels and Subscriptions.

pub mod parallel;
pub mod sequence;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::ConditionSet;
use crate::kind_registry::KindEntry;
use crate::shared::{Condition, KReference};

pub const GROUP: &str = "flows.knative.dev";
pub const VERSION: &str = "v1";

pub const CHANNELS_READY: &str = "ChannelsReady";
pub const SUBSCRIPTIONS_READY: &str = "SubscriptionsReady";
pub const ADDRESSABLE: &str = "Addressable";
pub const EVENT_POLICIES_READY: &str = "EventPoliciesReady";
/// Both kinds have the same.
pub const CONDITIONS: ConditionSet =
    ConditionSet { dependents: &[CHANNELS_READY, SUBSCRIPTIONS_READY, ADDRESSABLE, EVENT_POLICIES_READY] };

/// The rows of the kinds of flows.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![KindEntry::of::<sequence::Sequence>(), KindEntry::of::<parallel::Parallel>()]
}

/// A channel of a flow, and how it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlowChannelStatus {
    pub channel: KReference,
    #[serde(rename = "ready", skip_serializing_if = "Option::is_none")]
    pub ready: Option<Condition>,
}

/// A Subscription of a flow, and how it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlowSubscriptionStatus {
    pub subscription: KReference,
    #[serde(rename = "ready", skip_serializing_if = "Option::is_none")]
    pub ready: Option<Condition>,
}
