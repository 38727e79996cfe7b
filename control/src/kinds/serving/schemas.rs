//! Schemas of the pod part, cut down to what a revision takes of Kubernetes' own types.

use k8s_openapi::api::core::v1::{Container, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};

use crate::schema::keep_properties;

/// What of `metadata` goes from a template to its Revision.
const METADATA: [&str; 5] = ["annotations", "finalizers", "labels", "name", "namespace"];
/// Fields of a container that no revision may set.
const CONTAINER_FORBIDDEN: [&str; 7] =
    ["lifecycle", "resizePolicy", "restartPolicy", "stdin", "stdinOnce", "tty", "volumeDevices"];
/// Where a volume's files may come from.
const VOLUME: [&str; 5] = ["name", "configMap", "emptyDir", "projected", "secret"];

pub(super) fn metadata(generator: &mut SchemaGenerator) -> Schema {
    kept::<ObjectMeta>(generator, &METADATA)
}

pub(super) fn containers(generator: &mut SchemaGenerator) -> Schema {
    let whole = Container::json_schema(generator).to_value();
    let names: Vec<&str> =
        whole["properties"].as_object().into_iter().flat_map(|p| p.keys()).map(String::as_str).collect();
    let allowed: Vec<&str> = names.into_iter().filter(|name| !CONTAINER_FORBIDDEN.contains(name)).collect();
    let items = kept::<Container>(generator, &allowed);
    json_schema!({ "type": "array", "items": items })
}

pub(super) fn volumes(generator: &mut SchemaGenerator) -> Schema {
    let items = kept::<Volume>(generator, &VOLUME);
    json_schema!({ "type": "array", "items": items })
}

/// A revision defaults what Kubernetes asks for (a container's name), so nothing is required.
fn kept<T: JsonSchema>(generator: &mut SchemaGenerator, names: &[&str]) -> Schema {
    let mut schema = T::json_schema(generator).to_value();
    keep_properties(&mut schema, names);
    Schema::try_from(schema).unwrap_or_default()
}
