//! Metric: the windows over which a Revision's demand is averaged.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};
use crate::conditions::ConditionSet;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON};
use crate::role_rules::RECONCILED;
use crate::shared::Status;

/// Ready is set directly: the counters are in this process, so they can always be read.
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[] };

kind! {
    /// `autoscaling.internal.knative.dev/v1alpha1` Metric.
    Metric { spec: MetricSpec, status: MetricStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSpec {
    /// Demand is averaged over this, in nanoseconds.
    pub stable_window: i64,
    /// A rise is noticed within this, in nanoseconds.
    pub panic_window: i64,
    /// The scaled object.
    pub scrape_target: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MetricStatus {
    #[serde(flatten)]
    pub base: Status,
}

impl ResourceStrategy for Metric {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Metric",
        plural: "metrics",
        singular: "metric",
        short_names: &[],
        categories: &["knative-internal", "autoscaling"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[READY, REASON],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        for (field, span) in [("stableWindow", self.spec.stable_window), ("panicWindow", self.spec.panic_window)] {
            if span < 0 {
                problems.add(format!("spec.{field}"), format!("invalid value: {span}"));
            }
        }
    }
}
