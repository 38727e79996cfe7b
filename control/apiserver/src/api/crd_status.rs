//! The status of a CustomResourceDefinition: what a write may change in it, and its conditions.

use std::collections::HashSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use types::crd::versions;
use types::kind_registry::{KindMeta, ResourceStrategy as _};

use super::errors::StatusError;

pub(super) fn is_definition(meta: &KindMeta) -> bool {
    meta.group == CustomResourceDefinition::META.group && meta.plural == CustomResourceDefinition::META.plural
}

/// An admitted definition is served, and its status says so. A version that objects may be stored in stays, until
/// a client that has rewritten them removes it from the status.
pub(super) fn establish_definition(meta: &KindMeta, object: &mut Value) -> Result<(), StatusError> {
    if !is_definition(meta) || object["metadata"]["deletionTimestamp"].is_string() {
        return Ok(());
    }
    check_stored_versions(meta, object)?;
    let since = object["metadata"]["creationTimestamp"].clone();
    let stored = object["status"]["storedVersions"].clone();
    object["status"] = definition_status(&object["spec"], &stored, &since);
    Ok(())
}

fn definition_status(spec: &Value, stored: &Value, now: &Value) -> Value {
    let condition = |kind: &str, reason: &str, message: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now });
    json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": spec["names"],
        "storedVersions": versions::stored_versions(spec, stored),
    })
}

/// A version that objects may be stored in cannot be removed.
fn check_stored_versions(meta: &KindMeta, object: &Value) -> Result<(), StatusError> {
    let stored = object["status"]["storedVersions"].as_array();
    let versions = object["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let present: HashSet<String> = versions.iter().map(|version| version["name"].to_string()).collect();
    for (index, name) in stored.into_iter().flatten().enumerate() {
        if !present.contains(&name.to_string()) {
            let version = name.as_str().unwrap_or("");
            let why = format!(
                "Invalid value: {name}: missing from spec.versions; {version} was previously a storage version, and must \
                 remain in spec.versions until a storage migration ensures no data remains persisted in {version} and \
                 removes {version} from status.storedVersions"
            );
            let owner = object["metadata"]["name"].as_str().unwrap_or("");
            return Err(StatusError::invalid_field(meta, owner, &format!("status.storedVersions[{index}]"), why));
        }
    }
    Ok(())
}

/// A status always names the current storage version, and no version that no longer exists.
pub(super) fn check_definition_status(meta: &KindMeta, object: &Value) -> Result<(), StatusError> {
    let stored = object["status"]["storedVersions"].as_array().map_or(&[][..], Vec::as_slice);
    let versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let mut present = versions.filter(|version| version["storage"] == true).map(|version| &version["name"]);
    let why = match present.find(|name| !stored.contains(name)) {
        Some(_) if stored.is_empty() => "Invalid value: []: must have at least one stored version".to_owned(),
        Some(name) => {
            let name = name.as_str().unwrap_or("");
            format!("Invalid value: {name:?}: must have the storage version {name}")
        }
        None => return check_stored_versions(meta, object),
    };
    let owner = object["metadata"]["name"].as_str().unwrap_or("");
    Err(StatusError::invalid_field(meta, owner, "status.storedVersions", why))
}
