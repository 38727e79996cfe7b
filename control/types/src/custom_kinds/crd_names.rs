//! The names and versions of a definition, and its conversion strategy.

use std::collections::HashSet;

use serde_json::Value;

use crate::field_errors::FieldErrors;
use support::names::{NOT_A_SUBDOMAIN, is_dns_subdomain, is_dns1035_label, label_1035_error as wrong_with_label};

/// Characters of a version's deprecation warning; Kubernetes' figure.
const WARNING_BYTES_MAX: usize = 256;

/// Validates them, with the messages of Kubernetes.
pub(super) fn validate(name: &str, spec: &Value, problems: &mut FieldErrors) {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    if name != format!("{plural}.{group}") {
        let why = format!("Invalid value: {name:?}: must be spec.names.plural+\".\"+spec.group");
        problems.add("metadata.name", why);
    }
    if group.is_empty() {
        problems.add("spec.group", "Required value");
    } else if !is_dns_subdomain(&group) {
        problems.add("spec.group", format!("Invalid value: {group:?}: {NOT_A_SUBDOMAIN}"));
    } else if !group.contains('.') {
        problems.add("spec.group", format!("Invalid value: {group:?}: should be a domain with at least one dot"));
    }
    match text(&spec["scope"]).as_str() {
        "Cluster" | "Namespaced" => {}
        "" => problems.add("spec.scope", "Required value"),
        other => {
            let why = format!("Unsupported value: {other:?}: supported values: \"Cluster\", \"Namespaced\"");
            problems.add("spec.scope", why);
        }
    }
    check_names(&spec["names"], problems);
    check_versions(spec, problems);
    check_conversion(&spec["conversion"], problems);
}

fn check_names(names: &Value, problems: &mut FieldErrors) {
    let text = |name: &str| names[name].as_str().unwrap_or("");
    for field in ["plural", "kind"] {
        if text(field).is_empty() {
            problems.add(format!("spec.names.{field}"), "Required value");
        }
    }
    for (field, mixed) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let name = text(field);
        let plain = if mixed { name.to_lowercase() } else { name.to_owned() };
        if !name.is_empty() && !is_dns1035_label(&plain) {
            let may = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            let why = format!("Invalid value: {name:?}: {may}{}", wrong_with_label(&plain));
            problems.add(format!("spec.names.{field}"), why);
        }
    }
    for field in ["shortNames", "categories"] {
        let all = names[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        for (index, name) in all.enumerate().filter(|(_, name)| !is_dns1035_label(name)) {
            let why = format!("Invalid value: {name:?}: {}", wrong_with_label(name));
            problems.add(format!("spec.names.{field}[{index}]"), why);
        }
    }
    let list = text("listKind");
    if !list.is_empty() && list == text("kind") {
        let why = format!("Invalid value: {list:?}: kind and listKind may not be the same");
        problems.add("spec.names.listKind", why);
    }
}

fn check_versions(spec: &Value, problems: &mut FieldErrors) {
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let names: Vec<&str> = versions.iter().map(|version| version["name"].as_str().unwrap_or("")).collect();
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !is_dns1035_label(name)) {
        let why = format!("Invalid value: {name:?}: {}", wrong_with_label(name));
        problems.add(format!("spec.versions[{index}].name"), why);
    }
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        problems.add("spec.versions", "Invalid value: must contain unique version names");
    }
    for (index, version) in versions.into_iter().enumerate() {
        let Some(warning) = version["deprecationWarning"].as_str() else { continue };
        let why = if version["deprecated"] != true {
            "can only be set for deprecated versions"
        } else if warning.is_empty() {
            "must not be an empty string"
        } else if warning.len() > WARNING_BYTES_MAX {
            "must be <= 256 characters long"
        } else if warning.chars().any(char::is_control) {
            "must only contain printable UTF-8 characters"
        } else {
            continue;
        };
        let at = format!("spec.versions[{index}].deprecationWarning");
        problems.add(at, format!("Invalid value: {warning:?}: {why}"));
    }
}

fn check_conversion(conversion: &Value, problems: &mut FieldErrors) {
    let at = "spec.conversion.webhookClientConfig";
    let has_webhook = conversion["webhook"].is_object();
    match conversion["strategy"].as_str() {
        None => {}
        Some("Webhook") if !has_webhook => {
            problems.add(at, "Required value: required when strategy is set to Webhook");
        }
        Some("None") if has_webhook => {
            problems.add(at, "Forbidden: should not be set when strategy is not set to Webhook");
        }
        Some("Webhook" | "None") => {}
        Some(other) => {
            let why = format!("Unsupported value: {other:?}: supported values: \"None\", \"Webhook\"");
            problems.add("spec.conversion.strategy", why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// APP-20: a definition is refused where its names or versions mean nothing.
    #[test]
    fn names_and_versions_mean_something() {
        let good = json!({ "group": "e.com", "scope": "Cluster", "names": { "plural": "ups", "kind": "Up", "shortNames": ["u"] },
            "versions": [{ "name": "v1" }, { "name": "v2", "deprecated": true, "deprecationWarning": "gone" }],
            "conversion": { "strategy": "None" } });
        let found = |spec: &Value| -> Vec<String> {
            let mut problems = FieldErrors::default();
            validate("ups.e.com", spec, &mut problems);
            problems.list.into_iter().map(|problem| problem.field).collect()
        };
        assert!(found(&good).is_empty());
        for (at, value, field) in [
            ("/scope", json!("Galaxy"), "spec.scope"),
            ("/scope", Value::Null, "spec.scope"),
            ("/names/kind", json!(""), "spec.names.kind"),
            ("/names/kind", json!("U p"), "spec.names.kind"),
            ("/names/listKind", json!("Up"), "spec.names.listKind"),
            ("/names/shortNames/0", json!("A_b"), "spec.names.shortNames[0]"),
            ("/names/categories", json!(["all", "A b"]), "spec.names.categories[1]"),
            ("/versions/0/name", json!("V1"), "spec.versions[0].name"),
            ("/versions/0/name", json!("v2"), "spec.versions"),
            ("/versions/0/deprecationWarning", json!("x"), "spec.versions[0].deprecationWarning"),
            ("/versions/1/deprecationWarning", json!(""), "spec.versions[1].deprecationWarning"),
            ("/conversion/strategy", json!("Webhook"), "spec.conversion.webhookClientConfig"),
            ("/conversion/strategy", json!("Magic"), "spec.conversion.strategy"),
            ("/conversion/webhook", json!({}), "spec.conversion.webhookClientConfig"),
        ] {
            let mut spec = good.clone();
            let (parent, last) = at.rsplit_once('/').unwrap();
            match spec.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[last.parse::<usize>().unwrap()] = value,
                fields => fields[last] = value,
            }
            assert_eq!(found(&spec), [field], "{at}");
        }
        let mut plain = good;
        plain["group"] = "e".into();
        assert_eq!(found(&plain), ["metadata.name", "spec.group"]);
    }
}
