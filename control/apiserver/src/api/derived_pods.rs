//! Pods and Deployments that show what Revisions run: the controllers write them, and clients only look and delete.

use serde_json::Value;

use types::kind_registry::{KindMeta, RequestContext};

use super::errors::{CHANGE_SERVICE, StatusError};

/// The Revision that an object was made for.
pub(super) fn revision_of(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let is_revision = |owner: &&Value| {
        // Whatever its group: controllers decide by the kind, and an object must not be derived for one part only.
        owner["controller"] == true && owner["kind"] == "Revision"
    };
    owners.iter().find(is_revision)?["name"].as_str()
}

/// Whether objects of a kind may show what a Revision runs.
pub(super) fn has_derived_objects(meta: &KindMeta) -> bool {
    matches!((meta.group, meta.plural), ("", "pods") | ("apps", "deployments"))
}

/// Our controllers write such objects whole: what they show is known at once.
pub(super) fn writes_status(meta: &KindMeta, requester: &RequestContext) -> bool {
    requester.internal && has_derived_objects(meta)
}

/// Refuses a client's write of an object that a Revision's controller writes.
pub(super) fn check_not_derived(
    meta: &KindMeta,
    name: &str,
    object: &Value,
    requester: &RequestContext,
) -> Result<(), StatusError> {
    if has_derived_objects(meta) && !requester.is_controller() && revision_of(object).is_some() {
        return Err(StatusError::forbidden(meta, name, CHANGE_SERVICE));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use types::kind_registry::ResourceStrategy as _;

    use super::*;

    /// The rules of Pods are skipped for those of Revisions, so a client must not be able to name such an owner.
    #[test]
    fn client_cannot_name_a_revision_of_any_group_as_controller() {
        let pod = |group: &str, kind: &str, controller: bool| {
            json!({ "metadata": { "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1" },
                { "apiVersion": format!("{group}/v1"), "kind": kind, "name": "r", "uid": "2", "controller": controller },
            ] } })
        };
        let (client, ours) =
            (RequestContext::default(), RequestContext { internal: true, ..RequestContext::default() });
        for group in ["serving.knative.dev", "example.com"] {
            let refused = check_not_derived(&Pod::META, "p", &pod(group, "Revision", true), &client).unwrap_err();
            assert_eq!(refused.reason, "Forbidden", "{group}");
            assert!(check_not_derived(&Pod::META, "p", &pod(group, "Revision", true), &ours).is_ok(), "{group}");
        }
        for other in [pod("apps", "ReplicaSet", true), pod("example.com", "Revision", false), json!({})] {
            assert!(check_not_derived(&Pod::META, "p", &other, &client).is_ok(), "{other}");
        }
    }
}
