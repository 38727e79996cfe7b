//! Annotations of ours and keys of the operator's ConfigMaps that mean something. Others are stored as they are, since they are
//! their author's business; but a misspelt one would change nothing without a word, so its author is warned.

use serde_json::Value;
use support::nearest::nearest;

use crate::eventing::stream_options::{
    DURABILITY, EVENT_BYTES, HISTORY_TIME, ON_DELETE, RETENTION_BYTES, RETENTION_TIME,
};
use crate::eventing::trigger::{ORDER, START_POSITION};
use crate::serving::annotations::{RUNTIME_CLASS, RUNTIME_VOLUMES};
use crate::serving::spare_instances::{SPARE_INSTANCES, SPARE_MODE};
use crate::serving::stream_timeouts::{REQUEST_BODY_TIMEOUT, STREAM_IDLE_TIMEOUT};
use crate::serving::traffic_policy::{HEADER_ROUTES, MIRROR, STICKY};
use crate::settings;

/// How the prefixes of our annotations end.
const OWN_DOMAIN: &str = "sluicegate.dev";

/// What authors may write.
const ANNOTATIONS: [&str; 17] = [
    DURABILITY,
    EVENT_BYTES,
    HISTORY_TIME,
    ON_DELETE,
    RETENTION_BYTES,
    RETENTION_TIME,
    ORDER,
    START_POSITION,
    RUNTIME_CLASS,
    RUNTIME_VOLUMES,
    SPARE_INSTANCES,
    SPARE_MODE,
    REQUEST_BODY_TIMEOUT,
    STREAM_IDLE_TIMEOUT,
    HEADER_ROUTES,
    MIRROR,
    STICKY,
];

/// What controllers write.
const WRITTEN_BY_CONTROLLERS: [&str; 3] =
    ["sluicegate.dev/self-made", "adapters.sluicegate.dev/config-hash", "batch.sluicegate.dev/counted"];

/// Where annotations are, besides the object's own: of what it creates.
const TEMPLATE: &str = "/spec/template/metadata/annotations";

/// What the author of an object is told about keys that mean nothing.
#[must_use]
pub fn warnings(object: &Value) -> Vec<String> {
    let own = unknown_annotations(object.pointer("/metadata/annotations"), "metadata.annotations");
    let template = unknown_annotations(object.pointer(TEMPLATE), "spec.template.metadata.annotations");
    own.into_iter().chain(template).chain(unknown_settings(object)).collect()
}

fn unknown_annotations(annotations: Option<&Value>, at: &str) -> Vec<String> {
    let keys = annotations.and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str());
    let is_known = |key: &str| ANNOTATIONS.contains(&key) || WRITTEN_BY_CONTROLLERS.contains(&key);
    let unknown = |key: &str| {
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let is_own = prefix == OWN_DOMAIN || prefix.strip_suffix(OWN_DOMAIN).is_some_and(|rest| rest.ends_with('.'));
        match nearest(key, ANNOTATIONS) {
            _ if is_known(key) => None,
            Some(near) => Some(format!("{at}[{key}] is unknown and changes nothing; did you mean {near}?")),
            None if is_own => Some(format!("{at}[{key}] is unknown and changes nothing")),
            None => None,
        }
    };
    keys.filter_map(unknown).collect()
}

/// Of a ConfigMap that the appliance reads.
fn unknown_settings(object: &Value) -> Vec<String> {
    if object["kind"] != "ConfigMap" || object["apiVersion"] != "v1" {
        return Vec::new();
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let Some(known) = settings::known_keys(namespace, name) else { return Vec::new() };
    let keys = object["data"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let unknown = keys.filter(|key| !key.starts_with('_') && !known.iter().any(|known| known == key));
    let told = |key: &str| match nearest(key, known.iter().map(String::as_str)) {
        Some(near) => format!("data[{key}] is not a key of {name} and changes nothing; did you mean {near}?"),
        None => format!("data[{key}] is not a key of {name} that is read here"),
    };
    unknown.map(told).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn misspelt_annotation_is_told_with_the_nearest() {
        let object = json!({
            "metadata": { "annotations": {
                "sluicegate.dev/stiky": "cookie", "sluicegate.dev/sticky": "cookie", "slucegate.dev/mirror": "a=1",
                "example.com/sticky": "x", "sluicegate.dev/colour": "x", "runtime.sluicegate.dev/klass": "process",
            }},
            "spec": { "template": { "metadata": { "annotations": { "sluicegate.dev/steam-idle-timeout": "5m" }}}},
        });
        let told = warnings(&object);
        let near = |word: &str| told.iter().filter(|told| told.contains(word)).count();
        assert_eq!(told.len(), 5, "{told:#?}");
        for word in ["mean sluicegate.dev/sticky?", "mean sluicegate.dev/mirror?", "[sluicegate.dev/colour]"] {
            assert_eq!(near(word), 1, "{word} in {told:#?}");
        }
        assert_eq!(near("mean runtime.sluicegate.dev/class?"), 1, "{told:#?}");
        assert_eq!(near("spec.template.metadata.annotations[sluicegate.dev/steam-idle-timeout]"), 1);
    }

    #[test]
    fn misspelt_setting_is_told_in_maps_that_are_read() {
        let map = |namespace: &str, name: &str, key: &str| {
            warnings(&json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "namespace": namespace, "name": name }, "data": { key: "x", "_example": "y" },
            }))
        };
        let told = map("knative-serving", "config-network", "domain-templat");
        assert!(told[0].contains("did you mean domain-template?"), "{told:?}");
        for (namespace, name, key) in [
            ("knative-serving", "config-network", "domain-template"),
            ("knative-serving", "config-domain", "example.org"),
            ("knative-serving", "config-defaults", "revision-memory-limit"),
            ("knative-serving", "config-features", "kubernetes.podspec-nodeselector"),
            ("knative-serving", "config-logging", "zap-logger-config"),
            ("default", "config-network", "domain-templat"),
        ] {
            assert_eq!(map(namespace, name, key), [""; 0], "{namespace}/{name} {key}");
        }
    }

    /// An annotation that is read and missing here would be told as unknown.
    #[test]
    fn annotations_of_the_examples_are_known() {
        for key in ANNOTATIONS {
            let object = json!({ "metadata": { "annotations": { key: "x" } } });
            assert_eq!(warnings(&object), [""; 0]);
        }
    }
}
