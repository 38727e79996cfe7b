//! PodAutoscaler: the desired and the actual scale of a Revision.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};
use crate::conditions::ConditionSet;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{PrinterColumn, READY, REASON};
use crate::role_rules::RECONCILED;
use crate::shared::Status;

/// Instances take requests, or will as soon as they are ready.
pub const ACTIVE: &str = "Active";
/// The instances that had to be ready once were.
pub const SCALE_TARGET_INITIALIZED: &str = "ScaleTargetInitialized";
/// Requests find the instances, or wait for them.
pub const SKS_READY: &str = "SKSReady";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[ACTIVE, SCALE_TARGET_INITIALIZED, SKS_READY] };

kind! {
    /// `autoscaling.internal.knative.dev/v1alpha1` PodAutoscaler.
    PodAutoscaler { spec: PodAutoscalerSpec, status: PodAutoscalerStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAutoscalerSpec {
    /// Requests that one instance takes at a time; 0 = as many as come.
    pub container_concurrency: i64,
    /// The scaled object.
    pub scale_target_ref: ScaleTarget,
    /// `Reachable`, `Unreachable`, or empty while unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reachability: String,
    /// `http1` or `h2c`.
    pub protocol_type: String,
}

/// Names what is scaled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaleTarget {
    /// Group and version of its kind.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name, in the same namespace.
    pub name: String,
}

impl ScaleTarget {
    /// `at`: the path of the field that it is.
    pub fn validate(&self, at: &str, problems: &mut FieldErrors) {
        for (field, value) in [("apiVersion", &self.api_version), ("kind", &self.kind), ("name", &self.name)] {
            if value.is_empty() {
                problems.add(format!("{at}.{field}"), MISSING);
            }
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAutoscalerStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Under which name requests find the instances.
    pub service_name: String,
    /// Under which name the counters are found.
    pub metrics_service_name: String,
    /// Instances that should run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_scale: Option<i32>,
    /// Instances that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_scale: Option<i32>,
}

impl ResourceStrategy for PodAutoscaler {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "PodAutoscaler",
        plural: "podautoscalers",
        singular: "podautoscaler",
        short_names: &["kpa", "pa"],
        categories: &["knative-internal", "autoscaling"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[
            PrinterColumn {
                name: "DesiredScale",
                path: ".status.desiredScale",
                format: "integer",
                priority: 0,
                custom: None,
            },
            PrinterColumn {
                name: "ActualScale",
                path: ".status.actualScale",
                format: "integer",
                priority: 0,
                custom: None,
            },
            READY,
            REASON,
        ],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        self.spec.scale_target_ref.validate("spec.scaleTargetRef", problems);
        if !["http1", "h2c"].contains(&self.spec.protocol_type.as_str()) {
            problems.add("spec.protocolType", format!("invalid value: {}", self.spec.protocol_type));
        }
        if !["", "Reachable", "Unreachable"].contains(&self.spec.reachability.as_str()) {
            problems.add("spec.reachability", format!("invalid value: {}", self.spec.reachability));
        }
    }
}
