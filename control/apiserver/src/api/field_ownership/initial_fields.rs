//! The fields that a new object of a core kind has before any write: those that its Go type holds by value.
//!
//! They exist from the start, so a writer that fills them does not own them: of a new Pod `spec.containers` has no owner,
//! and `spec.volumes`, which is left out when it is empty, has one. Custom kinds have no such fields.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

use types::kind_registry::KindMeta;

static INITIAL_FIELDS: LazyLock<HashMap<&'static str, Value>> = LazyLock::new(|| {
    let named = json!({ "plural": "", "kind": "" });
    let pods = json!({ "metadata": {}, "spec": { "containers": null } });
    HashMap::from([
        ("Namespace", json!({ "spec": {}, "status": {} })),
        ("Pod", json!({ "spec": { "containers": null }, "status": {} })),
        ("Service", json!({ "spec": {}, "status": { "loadBalancer": {} } })),
        ("Lease", json!({ "spec": {} })),
        ("Deployment", json!({ "spec": { "selector": null, "template": pods, "strategy": {} }, "status": {} })),
        (
            "CustomResourceDefinition",
            json!({ "spec": { "group": "", "names": named, "scope": "", "versions": null },
                "status": { "conditions": null, "acceptedNames": named, "storedVersions": null } }),
        ),
        ("Event", json!({ "source": {}, "eventTime": null, "reportingComponent": "", "reportingInstance": "" })),
    ])
});

pub(in super::super) fn of(meta: &KindMeta) -> Option<&'static Value> {
    // No client can define a kind in a group without a dot, or in one of these.
    let own = !meta.group.contains('.') || meta.group.ends_with(".k8s.io");
    own.then(|| INITIAL_FIELDS.get(meta.kind)).flatten()
}
