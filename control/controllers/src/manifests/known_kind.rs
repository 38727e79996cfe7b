//! Kinds by what a document says of itself, and what to tell its author.

use serde_json::Value;

use support::nearest::nearest;
use types::kind_registry::{KindEntry, KindRegistry};
use types::known_keys;

/// The kind of a document, if it is served.
pub(super) fn find<'a>(registry: &'a KindRegistry, version: &str, kind: &str) -> Option<&'a KindEntry> {
    registry.entries.iter().find(|entry| entry.meta.kind == kind && entry.meta.api_version() == version)
}

/// What the API would warn of, with the document's own fields only.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let registry = types::registry();
    let of_kind = find(&registry, text("apiVersion"), text("kind")).map(|entry| (entry.warnings)(object));
    of_kind.unwrap_or_default().into_iter().chain(known_keys::warnings(object)).collect()
}

/// Kinds of others that users bring along, and what does their work here.
const SUBSTITUTES: [(&str, &str, &str); 3] = [
    (
        "networking.k8s.io/",
        "Ingress",
        "this appliance serves --route, Knative Services with DomainMappings, and Ingress of \
         networking.internal.knative.dev/v1alpha1 (docs/guides/gateway.md)",
    ),
    ("apps/", "StatefulSet", "a Knative Service runs a program (serving.knative.dev/v1)"),
    ("batch/", "CronJob", "a PingSource sends an event on a schedule (sources.knative.dev/v1)"),
];

/// Why a kind is not known, with what was probably meant.
pub(super) fn unknown(version: &str, kind: &str) -> String {
    let registry = types::registry();
    let same: Vec<_> = registry
        .entries
        .iter()
        .map(|entry| entry.meta)
        .filter(|meta| meta.kind == kind)
        .map(|meta| meta.api_version())
        .collect();
    let substitute = SUBSTITUTES.iter().find(|(group, of, _)| version.starts_with(group) && *of == kind);
    let hint = match (substitute, same.as_slice()) {
        (Some((.., hint)), _) => (*hint).to_owned(),
        (None, [_, ..]) => format!("{kind} is served in {}", same.join(", ")),
        (None, []) => {
            // Of the same group first: its kinds are what the author has in mind.
            let in_group = registry.entries.iter().filter(|entry| entry.meta.api_version() == version);
            let near = nearest(kind, in_group.map(|entry| entry.meta.kind))
                .or_else(|| nearest(kind, registry.entries.iter().map(|entry| entry.meta.kind)));
            match near {
                Some(near) => format!("did you mean {near}?"),
                None => "`kubectl api-resources` lists those that are served".to_owned(),
            }
        }
    };
    format!("no kind {kind} in {version}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kind_is_told_with_what_was_meant() {
        for (version, kind, hint) in [
            ("networking.k8s.io/v1", "Ingress", "networking.internal.knative.dev/v1alpha1"),
            ("serving.knative.dev/v1beta1", "Service", "serving.knative.dev/v1"),
            ("eventing.knative.dev/v1", "Triger", "did you mean Trigger?"),
            ("example.com/v1", "Widget", "kubectl api-resources"),
        ] {
            let told = unknown(version, kind);
            assert!(told.starts_with(&format!("no kind {kind} in {version}; ")) && told.contains(hint), "{told}");
        }
    }
}
