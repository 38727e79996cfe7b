//! Sinks: kinds that are Addressable. Events that are sent to most of them leave by another protocol: an adapter runs these,
//! and answers with a 2xx once the other system has confirmed the event. A JobSink makes a Job of each event.

/// Makes a kind of object a sink with these conditions.
macro_rules! sink {
    ($kind:ty { conditions: $conditions:expr }) => {
        impl $crate::sinks::SinkKind for $kind {
            const CONDITIONS: $crate::conditions::ConditionSet =
                $crate::conditions::ConditionSet { dependents: &$conditions };

            fn status_mut(&mut self) -> &mut $crate::sinks::SinkStatus {
                self.status.get_or_insert_default()
            }
        }
    };
}

pub mod adapter;
pub mod integration;
pub mod job;
pub mod kafka;
pub mod redis_stream;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapter_program::AdapterProgram;
use crate::conditions::ConditionSet;
use crate::duck_types::DuckType;
use crate::kind_registry::{CORE, KindEntry, KindMeta, UnknownFieldPolicy};
use crate::printer_column::{AGE, PrinterColumn, READY, REASON, column};
use crate::shared::{Addressable, AppliedPolicy, HasConditions, Status};

pub const GROUP: &str = "sinks.knative.dev";
pub const ADDRESSABLE: &str = "Addressable";
pub const DEPLOYED: &str = "Deployed";
pub const EVENT_POLICIES_READY: &str = "EventPoliciesReady";

const URL: PrinterColumn = column("URL", ".status.address.url");

/// What all sink kinds have in common.
const SINK: KindMeta = KindMeta {
    group: GROUP,
    version: "v1alpha1",
    categories: &["all", "knative", "eventing", "sink"],
    has_status: true,
    unknown_fields: UnknownFieldPolicy::Reject,
    columns: &[URL, AGE, READY, REASON],
    duck_types: &[DuckType::Addressable],
    ..CORE
};

/// A kind that accepts events.
pub trait SinkKind: HasConditions {
    const CONDITIONS: ConditionSet;

    fn status_mut(&mut self) -> &mut SinkStatus;
}

/// A sink that an adapter runs.
pub trait AdapterSinkKind: SinkKind {
    const DEPLOYED_CONDITION: &'static str;
    /// Conditions that hold as soon as the adapter is connected.
    const READY_CONDITIONS: &'static [&'static str] = &[];
    /// Conditions that hold without the adapter.
    const INDEPENDENT_CONDITIONS: &'static [&'static str] = &[];
    /// What the name of the adapter's Service ends with.
    const SERVICE_SUFFIX: &'static str;

    fn plan(&self) -> AdapterSinkPlan;

    /// Completes the sender's configuration with what only the Secrets in it tell.
    fn read_secrets(_sender: &mut Value, _secrets: &BTreeMap<String, BTreeMap<String, Vec<u8>>>) -> Result<(), String> {
        Ok(())
    }
}

/// What is to run.
#[derive(Debug, Clone, Default)]
pub struct AdapterSinkPlan {
    pub program: AdapterProgram,
    /// The configuration of the sending transport.
    pub sink: Value,
    pub service_account_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SinkStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where events go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
    /// The EventPolicies that apply to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<AppliedPolicy>,
}

/// The rows of the sink kinds.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<adapter::AdapterSink>(),
        KindEntry::of::<kafka::KafkaSink>(),
        KindEntry::of::<redis_stream::RedisStreamSink>(),
        KindEntry::of::<integration::IntegrationSink>().with_warnings(integration::warnings),
        job::entry(),
    ]
}
