//! Types that many kinds share: status, conditions, addresses, destinations, delivery.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The error for an update of an immutable field: upstream's words, followed by the names of the fields. Its
/// conformance suites compare the whole text.
pub const SPEC_CHANGED: &str = "Immutable fields changed (-old +new): spec";

/// The common fields of every status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The `metadata.generation` that this status is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far the object is, one entry per aspect, sorted by type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Further information of the controller, for programs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// One aspect of an object's state. Its schema requires a status (SRC-13); a stored one without a status is read all
/// the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "One aspect of an object's state.", extend("required" = ["type", "status"]))]
pub struct Condition {
    /// The aspect; `Ready` sums up the others.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: ConditionStatus,
    /// How much it matters: empty (an error when not True), `Warning` or `Info`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub severity: String,
    /// When status, severity, reason or message last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The reason, in one word, for machines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A condition's status; absent means `Unknown` (COND-04).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    #[default]
    Unknown,
}

/// An object whose conditions other controllers read.
pub trait HasConditions: kube::Resource {
    fn status_base(&self) -> Option<&Status>;

    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status_base()?.conditions.iter().find(|c| c.kind == kind)
    }

    /// The Ready condition, if it is for the current spec.
    fn ready(&self) -> Option<&Condition> {
        let observed = self.status_base()?.observed_generation;
        if observed == self.meta().generation { self.condition("Ready") } else { None }
    }

    fn is_ready(&self) -> bool {
        self.ready().is_some_and(|c| c.status == ConditionStatus::True)
    }
}

/// Where an object is reached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Addressable {
    /// Distinguishes several addresses of one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where events or requests go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// CA certificates (PEM) of the address, besides the system's.
    #[serde(rename = "CACerts", skip_serializing_if = "Option::is_none")]
    pub ca_certs: Option<String>,
    /// The audience of tokens for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// Where events may be sent: an object, a URL, or a path below an object's URL.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Destination {
    /// An object that has an address.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<KReference>,
    /// An absolute URL; with `ref`, a path below the object's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// CA certificates (PEM) of the destination, besides the system's.
    #[serde(rename = "CACerts", skip_serializing_if = "Option::is_none")]
    pub ca_certs: Option<String>,
    /// The audience of tokens for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// Names another object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KReference {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object; by default that of the object that refers to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// Group and version of the object's kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Group of the object's kind instead, in whatever version it is served (X-FEA-01).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Which of the object's addresses, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl KReference {
    /// The namespace that it names, if it names one.
    #[must_use]
    pub fn explicit_namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty())
    }

    /// The reference as it reads in the namespace `home`: an empty field counts as absent, because Go's clients omit
    /// those.
    #[must_use]
    pub fn with_namespace(&self, home: &str) -> Self {
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Self {
            namespace: Some(self.explicit_namespace().unwrap_or(home).to_owned()),
            group: said(&self.group),
            address: said(&self.address),
            ..self.clone()
        }
    }

    /// The group of the kind that it names, however it says so. The version counts for kinds of others (AMB-60).
    #[must_use]
    pub fn group(&self) -> &str {
        self.explicit_group().unwrap_or_else(|| group_of(&self.api_version))
    }

    /// The group, in place of `apiVersion`.
    #[must_use]
    pub fn explicit_group(&self) -> Option<&str> {
        self.group.as_deref().filter(|group| !group.is_empty() && self.api_version.is_empty())
    }
}

/// The group in an `apiVersion`; empty for the core's.
#[must_use]
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The delivery options: retries, timeout, dead letter sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeliverySpec {
    /// Where events go that could not be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink: Option<Destination>,
    /// How often an event is sent again before it counts as undeliverable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<i32>,
    /// How long one attempt may take (ISO 8601, `PT30S`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// How the pause between attempts grows: `linear` or `exponential`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_policy: Option<String>,
    /// The first pause (ISO 8601, `PT0.2S`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_delay: Option<String>,
    /// Longest pause that an answer's Retry-After may ask for (ISO 8601); `PT0S` ignores the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_max: Option<String>,
    /// Which CloudEvents mode is sent: `json` (structured) or `binary`; by default what came in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// The state of the delivery options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DeliveryStatus {
    /// Where undeliverable events go.
    #[serde(rename = "deadLetterSinkUri", skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_uri: Option<String>,
    /// Certificates (PEM) of the dead-letter sink.
    #[serde(rename = "deadLetterSinkCACerts", skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_ca_certs: Option<String>,
    /// The audience of tokens for the dead-letter sink.
    #[serde(rename = "deadLetterSinkAudience", skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_audience: Option<String>,
}

/// Under which service accounts an object sends events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_account_names: Vec<String>,
}

impl AuthStatus {
    #[must_use]
    pub fn of(account: String) -> Self {
        Self { service_account_name: Some(account), service_account_names: Vec::new() }
    }
}

/// An EventPolicy that holds for an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedPolicy {
    pub api_version: String,
    pub name: String,
}

/// The name of an object that has one; stored objects always do.
#[must_use]
pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

#[must_use]
pub fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

#[must_use]
pub fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

#[must_use]
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The owner that manages the object, if it has one.
#[must_use]
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// Whether `owner` is the controller of the object with `meta`.
#[must_use]
pub fn is_controlled_by(meta: &ObjectMeta, owner: &ObjectMeta) -> bool {
    owner.uid.is_some() && controller(meta).map(|found| &found.uid) == owner.uid.as_ref()
}
