//! Annotations of ours and keys of the operator's ConfigMaps that mean something. Others are stored as they are, since they are
//! their author's business; but a misspelt one would change nothing without a word, so its author is warned.

use serde_json::Value;
use support::nearest::nearest;

use crate::eventing::stream_options::{
    DEDUPLICATION_WINDOW, DURABILITY, EVENT_BYTES, HISTORY_TIME, ON_DELETE, RETENTION_BYTES, RETENTION_TIME,
};
use crate::eventing::trigger::{ORDER, START_POSITION};
use crate::serving::annotations::{
    RELOAD_VOLUME, RUNTIME_CLASS, RUNTIME_HOST_USERS, RUNTIME_READINESS, RUNTIME_VOLUMES, STATE_DIRECTORY,
};
use crate::serving::durable_requests::DURABLE_REQUESTS;
use crate::serving::spare_instances::{SPARE_INSTANCES, SPARE_MODE};
use crate::serving::stream_timeouts::{REQUEST_BODY_TIMEOUT, STREAM_IDLE_TIMEOUT};
use crate::serving::traffic_policy::{HEADER_ROUTES, MIRROR, STICKY};
use crate::settings;

/// How the prefixes of our annotations end.
const OWN_DOMAIN: &str = "sluicegate.dev";

/// What authors may write.
const ANNOTATIONS: [&str; 23] = [
    DURABLE_REQUESTS,
    DEDUPLICATION_WINDOW,
    DURABILITY,
    EVENT_BYTES,
    HISTORY_TIME,
    ON_DELETE,
    RETENTION_BYTES,
    RETENTION_TIME,
    ORDER,
    START_POSITION,
    RELOAD_VOLUME,
    RUNTIME_CLASS,
    RUNTIME_HOST_USERS,
    RUNTIME_READINESS,
    RUNTIME_VOLUMES,
    STATE_DIRECTORY,
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

/// Unknown keys of one map that are compared with the known ones: a body has room for a hundred thousand.
const KEYS_COMPARED_MAX: usize = 1000;

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
    let warning = |key: &str| {
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let is_own = prefix == OWN_DOMAIN || prefix.strip_suffix(OWN_DOMAIN).is_some_and(|rest| rest.ends_with('.'));
        match nearest(key, ANNOTATIONS) {
            Some(near) => Some(format!("{at}[{key}] is unknown and changes nothing; did you mean {near}?")),
            None if is_own => Some(format!("{at}[{key}] is unknown and changes nothing")),
            None => None,
        }
    };
    keys.filter(|key| !is_known(key)).take(KEYS_COMPARED_MAX).filter_map(warning).collect()
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
    unknown.take(KEYS_COMPARED_MAX).map(told).collect()
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

    #[test]
    fn keys_beyond_the_limit_are_not_compared() {
        let keys: serde_json::Map<_, _> =
            (0..2 * KEYS_COMPARED_MAX).map(|number| (format!("sluicegate.dev/{number}"), json!("x"))).collect();
        let object = json!({ "metadata": { "annotations": keys } });
        assert_eq!(warnings(&object).len(), KEYS_COMPARED_MAX);
    }

    /// The constants of this crate with our domain are annotations that are read, but for the name of a controller. One that is
    /// missing in the list above would be reported as unknown.
    #[test]
    fn every_annotation_that_is_read_is_known() {
        let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        let mut keys = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(path).unwrap();
                let constants =
                    text.lines().filter(|line| line.starts_with("pub const ") || line.starts_with("const "));
                let values = constants.filter_map(|line| line.split_once(": &str = \"")?.1.split('"').next());
                let is_key = |value: &&str| value.contains(&format!("{OWN_DOMAIN}/")) && !value.ends_with('/');
                keys.extend(values.filter(is_key).map(str::to_owned));
            }
        }
        assert!(keys.len() >= ANNOTATIONS.len(), "{keys:?}");
        for key in keys.into_iter().filter(|key| key != crate::gateway_api::CONTROLLER_NAME) {
            let object = json!({ "metadata": { "annotations": { key: "x" } } });
            assert_eq!(warnings(&object), [""; 0]);
        }
    }
}
