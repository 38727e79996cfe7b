//! Roles and bindings: the required fields of a rule, and the immutable role of a binding.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, CREATED_AT, PAIR, PrinterColumn, column};
use crate::role_rules::ADMINISTER;

const GROUP: &str = "rbac.authorization.k8s.io";
const RBAC: KindMeta = KindMeta { group: GROUP, ..CORE };

/// The columns of bindings.
const BINDING_COLUMNS: [PrinterColumn; 5] = [
    PrinterColumn { format: PAIR, ..column("Role", ".roleRef.kind+.roleRef.name") },
    AGE,
    PrinterColumn { priority: 1, ..column("Users", r#".subjects[?(@.kind=="User")].name"#) },
    PrinterColumn { priority: 1, ..column("Groups", r#".subjects[?(@.kind=="Group")].name"#) },
    PrinterColumn {
        format: PAIR,
        priority: 1,
        ..column(
            "ServiceAccounts",
            r#".subjects[?(@.kind=="ServiceAccount")].namespace+.subjects[?(@.kind=="ServiceAccount")].name"#,
        )
    },
];

/// The part of the four kinds that is the same.
macro_rules! role_kind {
    ($kind:ty, $meta:expr, $defaults:expr, $validate:expr) => {
        impl ResourceStrategy for $kind {
            const META: KindMeta = $meta;

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
                let defaults: fn(&mut Self) = $defaults;
                defaults(self);
            }

            fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
                let validate: fn(&Self, Option<&Self>, &mut FieldErrors) = $validate;
                validate(self, before, problems);
            }
        }
    };
}

role_kind!(
    Role,
    KindMeta {
        kind: "Role",
        plural: "roles",
        singular: "role",
        columns: &[CREATED_AT],
        role_rules: &[ADMINISTER],
        ..RBAC
    },
    |_| {},
    |role, _, problems| validate_rules(role.rules.as_deref().unwrap_or_default(), true, problems)
);
role_kind!(
    ClusterRole,
    KindMeta {
        kind: "ClusterRole",
        plural: "clusterroles",
        singular: "clusterrole",
        namespaced: false,
        columns: &[CREATED_AT],
        ..RBAC
    },
    |_| {},
    |role, _, problems| {
        validate_rules(role.rules.as_deref().unwrap_or_default(), false, problems);
        let selectors = role.aggregation_rule.as_ref().map(|rule| rule.cluster_role_selectors.as_deref());
        if selectors.is_some_and(|selectors| selectors.unwrap_or_default().is_empty()) {
            let why = "Required value: at least one clusterRoleSelector required if aggregationRule is non-nil";
            problems.add("aggregationRule.clusterRoleSelectors", why);
        }
    }
);
role_kind!(
    RoleBinding,
    KindMeta {
        kind: "RoleBinding",
        plural: "rolebindings",
        singular: "rolebinding",
        columns: &BINDING_COLUMNS,
        role_rules: &[ADMINISTER],
        ..RBAC
    },
    |binding| default_api_groups(&mut binding.role_ref, &mut binding.subjects),
    |binding, before, problems| {
        let before = before.map(|before| &before.role_ref);
        validate_role(&binding.role_ref, before, &["ClusterRole", "Role"], problems);
        validate_subjects(binding.subjects.as_deref().unwrap_or_default(), true, problems);
    }
);
role_kind!(
    ClusterRoleBinding,
    KindMeta {
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        namespaced: false,
        columns: &BINDING_COLUMNS,
        ..RBAC
    },
    |binding| default_api_groups(&mut binding.role_ref, &mut binding.subjects),
    |binding, before, problems| {
        validate_role(&binding.role_ref, before.map(|before| &before.role_ref), &["ClusterRole"], problems);
        validate_subjects(binding.subjects.as_deref().unwrap_or_default(), false, problems);
    }
);

fn default_api_groups(role: &mut RoleRef, subjects: &mut Option<Vec<Subject>>) {
    if role.api_group.is_empty() {
        role.api_group = GROUP.into();
    }
    for subject in subjects.iter_mut().flatten() {
        if matches!(subject.kind.as_str(), "User" | "Group") && subject.api_group.as_deref().unwrap_or("").is_empty() {
            subject.api_group = Some(GROUP.into());
        }
    }
}

fn validate_rules(rules: &[PolicyRule], in_namespace: bool, problems: &mut FieldErrors) {
    let some = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("rules[{index}]");
        if rule.verbs.is_empty() {
            problems.add(format!("{at}.verbs"), "Required value: verbs must contain at least one value");
        }
        if some(&rule.non_resource_urls) {
            let at = format!("{at}.nonResourceURLs");
            let quoted = serde_json::json!(rule.non_resource_urls);
            if in_namespace {
                let why = "namespaced rules cannot apply to non-resource URLs";
                problems.add(at.clone(), format!("Invalid value: {quoted}: {why}"));
            }
            if some(&rule.api_groups) || some(&rule.resources) || some(&rule.resource_names) {
                let why = "rules cannot apply to both regular resources and non-resource URLs";
                problems.add(at, format!("Invalid value: {quoted}: {why}"));
            }
            continue;
        }
        if !some(&rule.api_groups) {
            let why = "Required value: resource rules must supply at least one api group";
            problems.add(format!("{at}.apiGroups"), why);
        }
        if !some(&rule.resources) {
            let why = "Required value: resource rules must supply at least one resource";
            problems.add(format!("{at}.resources"), why);
        }
    }
}

fn validate_role(role: &RoleRef, before: Option<&RoleRef>, kinds: &[&str], problems: &mut FieldErrors) {
    unless_one_of("roleRef.apiGroup", &role.api_group, &[GROUP], problems);
    unless_one_of("roleRef.kind", &role.kind, kinds, problems);
    if role.name.is_empty() {
        problems.add("roleRef.name", "Required value");
    }
    if before.is_some_and(|before| before != role) {
        let quoted = serde_json::json!(role);
        problems.add("roleRef", format!("Invalid value: {quoted}: cannot change roleRef"));
    }
}

fn validate_subjects(subjects: &[Subject], in_namespace: bool, problems: &mut FieldErrors) {
    for (index, subject) in subjects.iter().enumerate() {
        let at = format!("subjects[{index}]");
        let group = subject.api_group.as_deref().unwrap_or("");
        if subject.name.is_empty() {
            problems.add(format!("{at}.name"), "Required value");
        }
        match subject.kind.as_str() {
            "ServiceAccount" => {
                unless_one_of(&format!("{at}.apiGroup"), group, &[""], problems);
                if !in_namespace && subject.namespace.as_deref().unwrap_or("").is_empty() {
                    problems.add(format!("{at}.namespace"), "Required value");
                }
            }
            "User" | "Group" => unless_one_of(&format!("{at}.apiGroup"), group, &[GROUP], problems),
            kind => {
                unless_one_of(&format!("{at}.kind"), kind, &["Group", "ServiceAccount", "User"], problems);
            }
        }
    }
}

fn unless_one_of(field: &str, value: &str, all: &[&str], problems: &mut FieldErrors) {
    if !all.contains(&value) {
        let all: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
        problems.add(field, format!("Unsupported value: {value:?}: supported values: {}", all.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn wrong<R: ResourceStrategy + DeserializeOwned>(object: Value, before: Option<Value>) -> Vec<String> {
        let read = |mut object: Value| -> R {
            object["metadata"] = json!({ "name": "x" });
            let mut read: R = serde_json::from_value(object).unwrap();
            read.set_defaults(None, &RequestContext::default());
            read
        };
        let mut problems = FieldErrors::default();
        read(object).validate(before.map(read).as_ref(), &mut problems);
        problems.list.into_iter().map(|problem| problem.field).collect()
    }

    /// APP-32: a rule that grants nothing is refused where it is written.
    #[test]
    fn a_rule_has_verbs_and_what_they_are_about() {
        let rules = |rule: Value| json!({ "rules": [rule] });
        let good = rules(json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }));
        assert!(wrong::<Role>(good, None).is_empty() && wrong::<Role>(json!({}), None).is_empty());
        let bare = rules(json!({ "verbs": [] }));
        assert_eq!(wrong::<Role>(bare, None), ["rules[0].verbs", "rules[0].apiGroups", "rules[0].resources"]);
        let paths = rules(json!({ "nonResourceURLs": ["/x"], "verbs": ["get"] }));
        assert_eq!(wrong::<Role>(paths.clone(), None), ["rules[0].nonResourceURLs"]);
        assert!(wrong::<ClusterRole>(paths, None).is_empty());
        let both = rules(json!({ "nonResourceURLs": ["/x"], "resources": ["pods"], "verbs": ["get"] }));
        assert_eq!(wrong::<ClusterRole>(both, None), ["rules[0].nonResourceURLs"]);
        let none = json!({ "aggregationRule": { "clusterRoleSelectors": [] } });
        assert_eq!(wrong::<ClusterRole>(none, None), ["aggregationRule.clusterRoleSelectors"]);
    }

    #[test]
    fn binding_has_immutable_role_and_subjects() {
        let bound = |kind: &str, subject: Value| json!({ "roleRef": { "apiGroup": "", "kind": kind, "name": "r" }, "subjects": [subject] });
        let user = json!({ "kind": "User", "name": "u" });
        let role = bound("Role", user.clone());
        assert!(wrong::<RoleBinding>(role.clone(), None).is_empty());
        assert_eq!(wrong::<ClusterRoleBinding>(role.clone(), None), ["roleRef.kind"]);
        assert_eq!(wrong::<RoleBinding>(bound("ClusterRole", user), Some(role)), ["roleRef"]);
        let nobody = json!({ "kind": "Foo", "name": "" });
        assert_eq!(wrong::<RoleBinding>(bound("Role", nobody), None), ["subjects[0].name", "subjects[0].kind"]);
        let account = json!({ "kind": "ServiceAccount", "name": "a" });
        assert_eq!(wrong::<ClusterRoleBinding>(bound("ClusterRole", account), None), ["subjects[0].namespace"]);
    }
}
