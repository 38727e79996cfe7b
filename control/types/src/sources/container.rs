//! ContainerSource: a program that is started with `K_SINK`, and sends events there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CloudEventOverrides, SOURCE, SourceStatus, is_empty_list};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, name, namespace};

pub const BINDING_READY: &str = "SinkBindingReady";
pub const ADAPTER_READY: &str = "ReceiveAdapterReady";

kind! {
    /// `sources.knative.dev/v1` ContainerSource.
    ContainerSource { spec: ContainerSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// The pod that sends them.
    pub template: Value,
}

source! { ContainerSource { conditions: [BINDING_READY, ADAPTER_READY] } }

impl ResourceStrategy for ContainerSource {
    const META: KindMeta =
        KindMeta { kind: "ContainerSource", plural: "containersources", singular: "containersource", ..SOURCE };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        let source = name(&self.metadata).to_owned();
        let containers = self.spec.template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
        for (nth, container) in containers.into_iter().flatten().filter_map(Value::as_object_mut).enumerate() {
            if container.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
                container.insert("name".into(), format!("{source}-{nth}").into());
            }
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        super::validate(&self.spec.sink, self.spec.ce_overrides.as_ref(), problems);
        let containers = &self.spec.template["spec"]["containers"];
        if is_empty_list(containers) {
            problems.add("spec.template.spec.containers", MISSING);
        }
        for (index, container) in containers.as_array().into_iter().flatten().enumerate() {
            if container["image"].as_str().is_none_or(str::is_empty) {
                problems.add(format!("spec.template.spec.containers[{index}].image"), MISSING);
            }
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// SRC-28: containers without a name are called after their source, each by its place.
    #[test]
    fn containers_are_named_after_their_source() {
        let containers = json!([{ "image": "a" }, { "name": "own", "image": "b" }, { "name": "", "image": "c" }]);
        let mut source: ContainerSource = serde_json::from_value(json!({
            "metadata": { "name": "heartbeats" },
            "spec": { "template": { "spec": { "containers": containers } } },
        }))
        .unwrap();
        source.set_defaults(None, &RequestContext::default());
        let named = source.spec.template["spec"]["containers"].as_array().unwrap();
        let names: Vec<_> = named.iter().map(|container| container["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["heartbeats-0", "own", "heartbeats-2"]);
    }
}
