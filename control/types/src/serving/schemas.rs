//! Schemas of the pod part, reduced to the fields of Kubernetes' types that a revision supports.

use k8s_openapi::api::core::v1::{Container, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::Value;

use crate::schema::{self, retain_properties};

/// The fields of `metadata` that a Revision inherits from its template.
const METADATA: [&str; 5] = ["annotations", "finalizers", "labels", "name", "namespace"];
/// Fields of a container that no revision may set.
const CONTAINER_FORBIDDEN: [&str; 7] =
    ["lifecycle", "resizePolicy", "restartPolicy", "stdin", "stdinOnce", "tty", "volumeDevices"];
/// ... and such fields further down, each with what it is in.
const INNER_FORBIDDEN: [(&str, &str); 3] = [
    ("/properties/resources/properties", "claims"),
    ("/properties/volumeMounts/items/properties", "recursiveReadOnly"),
    ("/properties/volumeMounts/items/properties", "subPathExpr"),
];
/// Where a volume's files may come from.
const VOLUME: [&str; 6] = ["name", "configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"];

pub(super) fn metadata(generator: &mut SchemaGenerator) -> Schema {
    pruned_schema::<ObjectMeta>(generator, &METADATA)
}

pub(super) fn containers(generator: &mut SchemaGenerator) -> Schema {
    let whole = Container::json_schema(generator).to_value();
    let names: Vec<&str> =
        whole["properties"].as_object().into_iter().flat_map(|p| p.keys()).map(String::as_str).collect();
    let allowed: Vec<&str> = names.into_iter().filter(|name| !CONTAINER_FORBIDDEN.contains(name)).collect();
    let mut items = pruned_schema::<Container>(generator, &allowed).to_value();
    for (at, name) in INNER_FORBIDDEN {
        if let Some(fields) = items.pointer_mut(at).and_then(Value::as_object_mut) {
            fields.remove(name);
        }
    }
    json_schema!({ "type": "array", "items": items })
}

pub(super) fn anything(_: &mut SchemaGenerator) -> Schema {
    Schema::try_from(schema::anything()).unwrap_or_default()
}

pub(super) fn volumes(generator: &mut SchemaGenerator) -> Schema {
    let items = pruned_schema::<Volume>(generator, &VOLUME);
    json_schema!({ "type": "array", "items": items })
}

/// A revision defaults what Kubernetes asks for (a container's name), so nothing is required.
fn pruned_schema<T: JsonSchema>(generator: &mut SchemaGenerator, names: &[&str]) -> Schema {
    let mut schema = T::json_schema(generator).to_value();
    retain_properties(&mut schema, names);
    Schema::try_from(schema).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::revision_spec::RevisionSpec;

    /// `kubectl explain` does not list fields that a revision rejects.
    #[test]
    fn fields_that_no_revision_may_set_are_not_in_the_schema() {
        let schema = schema::of::<RevisionSpec>();
        let container = &schema["properties"]["containers"]["items"]["properties"];
        let inside = |fields: &Value| -> Vec<String> { fields.as_object().unwrap().keys().cloned().collect() };
        assert_eq!(inside(&container["resources"]["properties"]), ["limits", "requests"]);
        assert_eq!(
            inside(&container["volumeMounts"]["items"]["properties"]),
            ["mountPath", "mountPropagation", "name", "readOnly", "subPath"]
        );
        assert!(!inside(container).iter().any(|name| ["lifecycle", "restartPolicy"].contains(&name.as_str())));
    }

    /// SRV-EXT-03: of our own there is no field; what is beyond Knative is asked for by annotations.
    #[test]
    fn a_revision_has_no_fields_but_knatives() {
        let schema = schema::of::<RevisionSpec>();
        let mut fields: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "affinity",
                "automountServiceAccountToken",
                "containerConcurrency",
                "containers",
                "dnsConfig",
                "dnsPolicy",
                "enableServiceLinks",
                "hostAliases",
                "hostIPC",
                "hostNetwork",
                "hostPID",
                "idleTimeoutSeconds",
                "imagePullSecrets",
                "initContainers",
                "nodeSelector",
                "priorityClassName",
                "responseStartTimeoutSeconds",
                "runtimeClassName",
                "schedulerName",
                "securityContext",
                "serviceAccountName",
                "shareProcessNamespace",
                "timeoutSeconds",
                "tolerations",
                "topologySpreadConstraints",
                "volumes"
            ]
        );
    }
}
