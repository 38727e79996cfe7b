//! The common part of kinds with subscribers: the list that controllers write, and the status of
//! each entry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_errors::FieldErrors;
use crate::shared::{AuthStatus, ConditionStatus, DeliverySpec};

/// One subscriber of a channel, resolved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriberSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The Subscription's.
    pub uid: String,
    /// The Subscription's, as it was resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber_uri: Option<String>,
    #[serde(rename = "subscriberCACerts", skip_serializing_if = "Option::is_none")]
    pub subscriber_ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber_audience: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_uri: Option<String>,
    #[serde(rename = "replyCACerts", skip_serializing_if = "Option::is_none")]
    pub reply_ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_audience: Option<String>,
    /// Its own options or the channel's, with the dead letter sink as a URL. Absent if none are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
}

/// The status of a subscriber. The generation is in it under both of its names, because clients of either
/// exist (AMB-37).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriberStatus {
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    pub ready: ConditionStatus,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl SubscriberStatus {
    /// The status of `entry`; `problem` keeps it from being served.
    #[must_use]
    pub fn of(entry: &SubscriberSpec, problem: Option<&str>) -> Self {
        Self {
            uid: entry.uid.clone(),
            generation: entry.generation,
            observed_generation: entry.generation,
            ready: if problem.is_none() { ConditionStatus::True } else { ConditionStatus::False },
            message: problem.unwrap_or_default().to_owned(),
        }
    }
}

/// Every subscriber has a destination.
pub fn validate_subscribers(subscribers: &[SubscriberSpec], at: &str, problems: &mut FieldErrors) {
    for (n, subscriber) in subscribers.iter().enumerate() {
        if subscriber.subscriber_uri.is_none() && subscriber.reply_uri.is_none() {
            problems.add(format!("{at}[{n}]"), "expected at least one, got none: replyURI, subscriberURI");
        }
    }
}
