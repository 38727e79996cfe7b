//! AdapterType: what is known of one adapter, for the whole cluster: the schemas of its configuration, and its events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::adapter::GROUP;
use crate::adapter_schemas::AdapterTypeSpec;
use crate::custom_kinds;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{AGE, column};
use crate::role_rules::CONTROLLER_READS;

/// `adapters.sluicegate.dev/v1alpha1` AdapterType. Lives in no namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdapterType {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is known.
    #[serde(default)]
    pub spec: AdapterTypeSpec,
}

impl kube::Resource for AdapterType {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.kind.into()
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.group.into()
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.version.into()
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.plural.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ResourceStrategy for AdapterType {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: "v1alpha1",
        kind: "AdapterType",
        plural: "adaptertypes",
        singular: "adaptertype",
        categories: &["knative", "eventing"],
        namespaced: false,
        unknown_fields: UnknownFieldPolicy::Reject,
        role_rules: &[CONTROLLER_READS],
        columns: &[column("Image", ".spec.adapter.image"), column("Transport", ".spec.adapter.transport"), AGE],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        self.spec.adapter.validate("spec.adapter", problems);
        for (field, schema) in [("sourceSchema", &self.spec.source_schema), ("sinkSchema", &self.spec.sink_schema)] {
            if !schema.is_null() {
                custom_kinds::validate_schema(schema, &format!("spec.{field}"), problems);
            }
        }
        for (index, emitted) in self.spec.event_types.iter().enumerate() {
            if emitted.kind.is_empty() {
                problems.add(format!("spec.eventTypes[{index}].type"), MISSING);
            }
        }
    }
}
