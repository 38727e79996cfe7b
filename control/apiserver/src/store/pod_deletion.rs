//! How a Pod leaves that clients wrote: marked, until its containers have ended or its grace period is over.
//!
//! The grace period in its metadata holds it. What runs it deletes it again, with a grace period of zero, when the
//! containers have ended.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::ObjectKey;

const PODS: &str = "/pods";
/// Seconds from SIGTERM to SIGKILL of a Pod that does not say; Kubernetes' figure.
const GRACE_SECONDS: i64 = 30;
/// A day: of a longer grace period nothing is gained, and a time far off is none.
const GRACE_SECONDS_MAX: i64 = 86_400;

/// How long an object is to stay once it is deleted, in seconds; `wanted` is what the client asks for.
pub(super) fn grace_seconds(key: &ObjectKey, object: &Value, wanted: Option<i64>) -> i64 {
    let has_ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if &*key.resource != PODS || has_ended || !is_bound(object) || is_derived(object) {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64();
    wanted.or(own).unwrap_or(GRACE_SECONDS).clamp(0, GRACE_SECONDS_MAX)
}

/// Whether a deleted object waits for its containers.
pub(super) fn is_held(key: &ObjectKey, object: &Value) -> bool {
    &*key.resource == PODS && object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|grace| grace > 0)
}

/// Asked again, a deletion comes sooner, and never later.
pub(super) fn shorten(metadata: &mut Value, grace: i64, now: &str) {
    let before = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if grace < before {
        metadata["deletionGracePeriodSeconds"] = grace.into();
        metadata["deletionTimestamp"] = seconds_after(now, grace).into();
    }
}

pub(super) fn seconds_after(now: &str, seconds: i64) -> String {
    let at = now.parse::<Timestamp>().ok().and_then(|now| now.checked_add(SignedDuration::from_secs(seconds)).ok());
    at.filter(|_| seconds > 0).map_or_else(|| now.to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Some node runs it.
fn is_bound(object: &Value) -> bool {
    object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
}

/// It shows an instance of a Revision, which ends on its own.
fn is_derived(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["kind"] == "Revision" && owner["controller"] == true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(resource: &str) -> ObjectKey {
        ObjectKey { resource: resource.into(), namespace: "ns".into(), name: "p".into() }
    }

    #[test]
    fn running_pod_is_held_for_its_grace_period() {
        let pod = json!({ "spec": { "nodeName": "localhost", "terminationGracePeriodSeconds": 7 } });
        assert_eq!(grace_seconds(&key(PODS), &pod, None), 7);
        assert_eq!(grace_seconds(&key(PODS), &pod, Some(0)), 0);
        assert_eq!(grace_seconds(&key("/configmaps"), &pod, None), 0);
        let ended = json!({ "spec": { "nodeName": "localhost" }, "status": { "phase": "Failed" } });
        assert_eq!(grace_seconds(&key(PODS), &ended, None), 0);
        assert_eq!(grace_seconds(&key(PODS), &json!({ "spec": {} }), None), 0, "nothing runs it");
        let owner = json!([{ "kind": "Revision", "controller": true }]);
        let derived = json!({ "metadata": { "ownerReferences": owner }, "spec": { "nodeName": "localhost" } });
        assert_eq!(grace_seconds(&key(PODS), &derived, None), 0);
    }

    #[test]
    fn second_deletion_only_shortens_the_grace_period() {
        let now = "2026-01-31T12:00:00Z";
        let mut metadata = json!({ "deletionGracePeriodSeconds": 30, "deletionTimestamp": seconds_after(now, 30) });
        assert_eq!(metadata["deletionTimestamp"], "2026-01-31T12:00:30Z");
        shorten(&mut metadata, 60, now);
        assert_eq!(metadata["deletionGracePeriodSeconds"], 30);
        shorten(&mut metadata, 0, now);
        assert_eq!((&metadata["deletionGracePeriodSeconds"], &metadata["deletionTimestamp"]), (&json!(0), &json!(now)));
        assert!(!is_held(&key(PODS), &json!({ "metadata": metadata })));
    }
}
