//! The conditions of a terminating namespace: those of Kubernetes' namespace controller, with its texts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::StoredObject;

/// What is still in a namespace after all of it was marked for deletion.
#[derive(Debug, Default)]
pub(super) struct RemainingObjects {
    /// How many of each kind.
    kinds: BTreeMap<Arc<str>, usize>,
    /// How many wait for each finalizer.
    finalizers: BTreeMap<String, usize>,
    /// Kinds of which an object could not even be marked, with their version.
    not_deletable: BTreeSet<String>,
}

/// Type, then reason and message when all is well, then the reason when it is not.
const CONDITIONS: [(&str, &str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
        "DiscoveryFailed",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
        "GroupVersionParsingFailed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
        "ContentDeletionFailed",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed", "SomeResourcesRemain"),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
        "SomeFinalizersRemain",
    ),
];

impl RemainingObjects {
    pub(super) fn of(objects: impl Iterator<Item = Arc<StoredObject>>) -> Self {
        let mut left = Self::default();
        for object in objects {
            let resource = &object.key.resource;
            *left.kinds.entry(Arc::clone(resource)).or_default() += 1;
            for finalizer in object.head.finalizers() {
                *left.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
            if !object.head.deleting {
                let (group, plural) = resource.split_once('/').unwrap_or_default();
                let value = object.value();
                let version = value["apiVersion"].as_str().and_then(|version| version.rsplit('/').next());
                left.not_deletable.insert(format!("{group}/{}, Resource={plural}", version.unwrap_or_default()));
            }
        }
        left
    }

    /// The failures, by the condition's type; `None` if there are none.
    fn condition_message(&self, condition: &str, namespace: &str) -> Option<String> {
        let joined = |mut parts: Vec<String>| {
            parts.sort();
            (!parts.is_empty()).then(|| parts.join(", "))
        };
        match condition {
            "NamespaceDeletionContentFailure" => {
                let one =
                    |kind: &String| format!("unexpected items still remain in namespace: {namespace} for gvr: {kind}");
                let all = joined(self.not_deletable.iter().map(one).collect())?;
                Some(format!("Failed to delete all resource types, {} remaining: {all}", self.not_deletable.len()))
            }
            "NamespaceContentRemaining" => {
                let one = |(resource, count): (&Arc<str>, &usize)| {
                    let (group, plural) = resource.split_once('/').unwrap_or_default();
                    format!("{plural}.{group} has {count} resource instances")
                };
                Some(format!("Some resources are remaining: {}", joined(self.kinds.iter().map(one).collect())?))
            }
            "NamespaceFinalizersRemaining" => {
                let one = |(name, count): (&String, &usize)| format!("{name} in {count} resource instances");
                let all = joined(self.finalizers.iter().map(one).collect())?;
                Some(format!("Some content in the namespace has finalizers remaining: {all}"))
            }
            // We know all kinds, and read no version that we did not write.
            _ => None,
        }
    }
}

/// Notes in the namespace's status what is left of it.
pub(super) fn set_conditions(namespace: &mut Value, left: &RemainingObjects, now: &str) {
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for (kind, good, fine, bad) in CONDITIONS {
        let (status, reason, message) = match left.condition_message(kind, &name) {
            Some(message) => ("True", bad, message),
            None => ("False", good, fine.to_owned()),
        };
        let known = conditions.iter_mut().find(|condition| condition["type"] == kind);
        let since = known.as_ref().filter(|known| known["status"] == status);
        let since = since.map_or_else(|| now.into(), |known| known["lastTransitionTime"].clone());
        let fresh = json!({ "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since });
        match known {
            Some(known) => *known = fresh,
            None => conditions.push(fresh),
        }
    }
    namespace["status"]["conditions"] = conditions.into();
}

#[cfg(test)]
mod tests {
    use super::super::ObjectKey;
    use super::*;

    fn stored(resource: &str, name: &str, mut metadata: Value) -> Arc<StoredObject> {
        metadata["name"] = name.into();
        let key = ObjectKey { resource: resource.into(), namespace: "team".into(), name: name.into() };
        Arc::new(StoredObject::new(key, 1, &json!({ "apiVersion": "example.com/v1", "metadata": metadata })))
    }

    fn text(value: &Value) -> &str {
        value.as_str().unwrap()
    }

    fn condition_rows(namespace: &Value) -> Vec<(&str, &str, &str)> {
        let list = namespace["status"]["conditions"].as_array().unwrap();
        list.iter().map(|one| (text(&one["status"]), text(&one["reason"]), text(&one["message"]))).collect()
    }

    /// The words are Kubernetes'.
    #[test]
    fn terminating_namespace_reports_content_and_finalizers() {
        let going = |finalizers: Value| json!({ "deletionTimestamp": "x", "finalizers": finalizers });
        let objects = [
            stored("/configmaps", "a", going(json!(["x.dev/b", "x.dev/a"]))),
            stored("/configmaps", "b", going(json!(["x.dev/a"]))),
            stored("apps.example.com/apps", "c", going(json!(["x.dev/a"]))),
            stored("apps.example.com/tabs", "d", json!({})),
        ];
        let mut namespace = json!({ "metadata": { "name": "team" }, "status": { "phase": "Terminating" } });
        set_conditions(&mut namespace, &RemainingObjects::of(objects.iter().cloned()), "one");
        let wanted = [
            ("False", "ResourcesDiscovered", "All resources successfully discovered"),
            ("False", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
            (
                "True",
                "ContentDeletionFailed",
                "Failed to delete all resource types, 1 remaining: unexpected items still remain in namespace: team \
                 for gvr: apps.example.com/v1, Resource=tabs",
            ),
            (
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: apps.apps.example.com has 1 resource instances, configmaps. has 2 \
                 resource instances, tabs.apps.example.com has 1 resource instances",
            ),
            (
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: x.dev/a in 3 resource instances, x.dev/b in 1 resource instances",
            ),
        ];
        assert_eq!(condition_rows(&namespace), wanted);

        let before = namespace.clone();
        set_conditions(&mut namespace, &RemainingObjects::of(objects.iter().cloned()), "two");
        assert_eq!(namespace, before, "what stays as it was is no change");
        set_conditions(&mut namespace, &RemainingObjects::of(objects[..1].iter().cloned()), "three");
        set_conditions(&mut namespace, &RemainingObjects::default(), "four");
        let none = ("False", "ContentHasNoFinalizers", "All content-preserving finalizers finished");
        assert_eq!(condition_rows(&namespace)[4], none);
        let since = |at: usize| namespace["status"]["conditions"][at]["lastTransitionTime"].as_str().unwrap();
        assert_eq!([0, 2, 3].map(since), ["one", "three", "four"]);
    }
}
