//! The versions of a custom kind: which are served, their order, and the conversion of objects between them.
//! another.
//!
//! An object is stored in the storage version of its definition. In any other version it is the same object with that
//! version's `apiVersion`, without the fields that its schema lacks, which is Kubernetes' conversion strategy `None`.
//! Conversion webhooks are not supported: of a definition that has one, only the stored version is served.

use std::cmp::Reverse;

use serde_json::{Value, json};

use crate::custom_kinds::{COLUMNS_MAX, CustomKind};
use crate::kind_registry::{CORE, KindEntry, KindMeta, UnknownFieldPolicy, VersionConversion};
use crate::printer_column::{AGE, CustomColumn, PrinterColumn};

/// The rows of the kind that a definition describes, the preferred version first; none if it says too little.
///
/// A row lives as long as the process, as those of our own kinds do: requests in progress refer to it. The caller
/// bounds how many are created.
#[must_use]
pub fn entries(definition: &Value) -> Vec<KindEntry> {
    let spec = &definition["spec"];
    let all = || spec["versions"].as_array().into_iter().flatten();
    let Some((version, stored)) = all()
        .find(|version| version["storage"] == true)
        .and_then(|version| Some((version, &*Box::leak(Box::new(meta(spec, version)?)))))
    else {
        return Vec::new();
    };
    let translation =
        Box::leak(Box::new(VersionConversion { stored, to_stored: |_| {}, complete: |_| {}, from_stored: |_| {} }));
    // A definition that never changed has its objects in the store as they are shown.
    let is_alone = definition["status"]["storedVersions"] == json!([stored.version]) && is_original(definition);
    let converts = spec["conversion"]["strategy"] != "Webhook";
    let mut found: Vec<KindEntry> = all()
        .filter(|other| other["served"] == true && (converts || other["name"] == version["name"]))
        .filter_map(|other| {
            let is_stored = other["name"] == version["name"];
            let meta = if is_stored { stored } else { Box::leak(Box::new(meta(spec, other)?)) };
            let entry =
                KindEntry::custom(meta, Box::leak(Box::new(CustomKind::of(other, deprecation_warning(meta, other)))));
            Some(if is_stored && is_alone { entry } else { KindEntry { translation: Some(translation), ..entry } })
        })
        .collect();
    found.sort_by_key(|entry| version_order(entry.meta.version));
    found
}

/// Whether the definition says what it said when it was made.
pub fn is_original(definition: &Value) -> bool {
    definition["metadata"]["generation"] == 1
}

/// In the order of their rank: releases before betas before alphas, later before earlier, then all other names.
pub fn version_order(version: &str) -> impl Ord + use<> {
    let rank = rank(version);
    (rank.is_none(), Reverse(rank), if rank.is_none() { version.to_owned() } else { String::new() })
}

/// `v2`, `v1beta3`: how ripe, and which.
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let number = |text: &str| {
        let plain = !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        if plain { text.parse().ok() } else { None }
    };
    let rest = version.strip_prefix('v')?;
    for (word, stability) in [("beta", 1), ("alpha", 0)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

/// The versions that objects may be stored in: those of `before`, and the one that `spec` names.
pub fn stored_versions(spec: &Value, before: &Value) -> Vec<Value> {
    let mut stored: Vec<Value> = before.as_array().cloned().unwrap_or_default();
    let versions = spec["versions"].as_array().into_iter().flatten();
    let now = versions.filter(|version| version["storage"] == true).map(|version| version["name"].clone());
    for version in now {
        if !stored.contains(&version) {
            stored.push(version);
        }
    }
    stored
}

/// The warning for users of a deprecated version.
fn deprecation_warning(meta: &KindMeta, version: &Value) -> Option<String> {
    let plain = || format!("{} {} is deprecated", meta.api_version(), meta.kind);
    let warning = || version["deprecationWarning"].as_str().map_or_else(plain, str::to_owned);
    (version["deprecated"] == true).then(warning)
}

fn leak(text: &str) -> &'static str {
    Box::leak(Box::<str>::from(text))
}

/// Names and shape of the kind in one of its versions.
fn meta(spec: &Value, version: &Value) -> Option<KindMeta> {
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().map(leak);
    let words = |value: &Value| -> &'static [&'static str] {
        value.as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>().leak()
    };
    let columns: Vec<PrinterColumn> = match version["additionalPrinterColumns"].as_array() {
        Some(columns) if !columns.is_empty() => columns.iter().filter_map(column).take(COLUMNS_MAX).collect(),
        _ => vec![AGE],
    };
    let kind = text(&names["kind"])?;
    Some(KindMeta {
        group: text(&spec["group"])?,
        version: text(&version["name"])?,
        kind,
        plural: text(&names["plural"])?,
        singular: text(&names["singular"]).unwrap_or_else(|| leak(&kind.to_lowercase())),
        short_names: words(&names["shortNames"]),
        categories: words(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        has_status: version["subresources"]["status"].is_object(),
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: columns.leak(),
        ..CORE
    })
}

fn column(said: &Value) -> Option<PrinterColumn> {
    let text = |name: &str| said[name].as_str().map(leak);
    let path = text("jsonPath")?;
    let plain = || leak(&format!("Custom resource definition column (in JSONPath format): {path}"));
    let description = text("description").filter(|text| !text.is_empty()).unwrap_or_else(plain);
    Some(PrinterColumn {
        name: text("name")?,
        path,
        format: text("type")?,
        priority: said["priority"].as_i64().and_then(|priority| i32::try_from(priority).ok()).unwrap_or(0),
        custom: Some(CustomColumn { description, format: text("format").unwrap_or("") }),
    })
}

#[cfg(test)]
mod tests {
    use crate::crd::versions::*;

    /// As Kubernetes ranks them.
    #[test]
    fn releases_come_first_and_the_latest_of_them() {
        let ranked =
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10", "v01"];
        let mut mixed = ranked;
        mixed.reverse();
        mixed.sort_by_key(|version| version_order(version));
        assert_eq!(mixed, ranked);
    }

    fn definition(stored: &Value, strategy: &str) -> Value {
        let version = |name: &str, served: bool, storage: bool| {
            json!({ "name": name, "served": served, "storage": storage, "schema": { "openAPIV3Schema": { "type": "object",
                "properties": { "spec": { "type": "object", "properties": { name: { "type": "string" } } } } } } })
        };
        json!({ "metadata": { "generation": 1 }, "spec": { "group": "e.com", "scope": "Namespaced", "names": { "plural": "ups", "kind": "Up" },
                "conversion": { "strategy": strategy },
                "versions": [version("v1alpha1", true, false), version("v1", true, true), version("v2", false, false)] },
            "status": { "storedVersions": stored } })
    }

    /// APP-36: all served versions, and an object is each of them without what that does not know.
    #[test]
    fn an_object_is_shown_in_every_served_version() {
        let found = entries(&definition(&json!(["v1"]), "None"));
        let versions: Vec<_> = found.iter().map(|entry| entry.meta.version).collect();
        assert_eq!(versions, ["v1", "v1alpha1"]);
        assert!(found[0].translation.is_none(), "what is stored is what is shown");
        let object = json!({ "apiVersion": "e.com/v1", "kind": "Up", "spec": { "v1": "a", "v1alpha1": "b" } });
        let shown = found[1].from_stored(object.clone());
        assert_eq!((&shown["apiVersion"], &shown["spec"]), (&json!("e.com/v1alpha1"), &json!({ "v1alpha1": "b" })));

        let moved = entries(&definition(&json!(["v1alpha1", "v1"]), "None"));
        let old = json!({ "apiVersion": "e.com/v1alpha1", "spec": { "v1": "a" } });
        assert_eq!(moved[0].from_stored(old)["apiVersion"], "e.com/v1", "stored before the definition moved on");
        assert_eq!(entries(&definition(&json!(["v1"]), "Webhook")).len(), 1, "nobody here converts");

        let mut changed = definition(&json!(["v1"]), "None");
        changed["metadata"]["generation"] = 2.into();
        let size = json!({ "type": "integer", "default": 3 });
        changed["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] = size;
        let old = json!({ "apiVersion": "e.com/v1", "spec": { "v1": "a", "gone": 1 } });
        assert_eq!(
            entries(&changed)[0].from_stored(old)["spec"],
            json!({ "v1": "a", "size": 3 }),
            "a default that came later"
        );
    }

    #[test]
    fn versions_that_objects_were_stored_in_are_remembered() {
        let spec = definition(&Value::Null, "None")["spec"].take();
        assert_eq!(stored_versions(&spec, &Value::Null), [json!("v1")]);
        assert_eq!(stored_versions(&spec, &json!(["v1alpha1"])), [json!("v1alpha1"), json!("v1")]);
    }
}
