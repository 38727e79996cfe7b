//! The default roles: those of Kubernetes, and Knative's that extend them. No kind is named here: the rules come from
//! the rows of the registry.

use serde_json::{Value, json};

use crate::access::CONTROLLER_ACCOUNT;
use types::duck_types::DuckType;
use types::kind_registry::{KindMeta, KindRegistry};
use types::role_rules::{self, DefaultRole, Verbs};
use types::settings::SERVING;

const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
const ADDRESSABLE: &str = "duck.knative.dev/addressable";
const CHANNELABLE: &str = "duck.knative.dev/channelable";
const SOURCE: &str = "duck.knative.dev/source";
const SUBSCRIBABLE: &str = "duck.knative.dev/crossnamespace-subscribable";
const SERVING_GROUPS: [&str; 2] = ["serving.knative.dev", "networking.internal.knative.dev"];
/// Knative's; those of source kinds are added.
const EVENTING_GROUPS: [&str; 5] =
    ["eventing.knative.dev", "messaging.knative.dev", "flows.knative.dev", "sources.knative.dev", "sinks.knative.dev"];
/// Spelled out as upstream does: `deletecollection` is not among them.
const MANAGE_CHANNELS: Verbs = &["create", "get", "list", "watch", "update", "patch", "delete"];
/// Knative's verb for a subscription from another namespace.
const SUBSCRIBE: Verbs = &["knsubscribe"];

/// ClusterRoles.
pub(super) fn roles(registry: &KindRegistry) -> Vec<Value> {
    let mut roles = system_roles(registry);
    roles.push(role(DefaultRole::Controller.name(), &[], rules_of(registry, DefaultRole::Controller)));
    roles.extend(
        [(DefaultRole::View, "view"), (DefaultRole::Edit, "edit"), (DefaultRole::Admin, "admin")]
            .map(|(default, level)| role(default.name(), &[level], rules_of(registry, default))),
    );
    // Instance policies, which grant a service account more than its namespace's user has: the host's owner binds
    // them.
    roles.extend(["process", "host-user", "root"].map(|policy| {
        let rules = json!([{ "apiGroups": ["sluicegate.dev"], "resources": ["instancepolicies"],
            "resourceNames": [policy], "verbs": ["use"] }]);
        role(&format!("sluicegate-instances-{policy}"), &[], rules)
    }));
    roles.extend([
        aggregated("view", &format!("{AGGREGATE}view")),
        aggregated("addressable-resolver", ADDRESSABLE),
        aggregated("channelable-manipulator", CHANNELABLE),
        aggregated("source-observer", SOURCE),
        aggregated("crossnamespace-subscriber", SUBSCRIBABLE),
    ]);
    roles.extend([("edit", &["view"][..]), ("admin", &["view", "edit"][..])].map(|(name, below)| {
        let mut one = aggregated(name, &format!("{AGGREGATE}{name}"));
        if let Some(selectors) = one["aggregationRule"]["clusterRoleSelectors"].as_array_mut() {
            selectors.extend(below.iter().map(|b| json!({ "matchLabels": { format!("{AGGREGATE}{b}"): "true" } })));
        }
        one
    }));
    roles.extend(component_roles(registry));
    roles.extend(duck_type_roles(registry));
    roles
}

/// Rights on all kinds of a component's groups.
fn component_roles(registry: &KindRegistry) -> Vec<Value> {
    let mut eventing = EVENTING_GROUPS.to_vec();
    for meta in registry.entries.iter().map(|entry| entry.meta) {
        if meta.duck_types.contains(&DuckType::Source) && !eventing.contains(&meta.group) {
            eventing.push(meta.group);
        }
    }
    let mut roles = Vec::new();
    for (component, groups) in [("serving", &SERVING_GROUPS[..]), ("eventing", &eventing)] {
        for (level, verbs) in [("view", role_rules::READ), ("edit", role_rules::WRITE), ("admin", &["*"])] {
            let rules = json!([{ "verbs": verbs, "apiGroups": groups, "resources": ["*"] }]);
            roles.push(role(&format!("knative-{component}-namespaced-{level}"), &[level], rules));
        }
    }
    roles
}

/// Rights that kinds give by their duck types: a role per group, per kind or for all, as upstream has it.
fn duck_type_roles(registry: &KindRegistry) -> Vec<Value> {
    let mut roles: Vec<(String, &str, RuleList)> = Vec::new();
    for meta in registry.entries.iter().map(|entry| entry.meta) {
        let component = meta.group.split('.').next().unwrap_or(meta.group);
        for duck in meta.duck_types {
            let (name, label, verbs, parts) = match *duck {
                DuckType::Addressable => {
                    (format!("{component}-addressable-resolver"), ADDRESSABLE, role_rules::READ, &["", "status"][..])
                }
                DuckType::Channelable { role } => (role.to_owned(), CHANNELABLE, MANAGE_CHANNELS, &["", "status"][..]),
                DuckType::CrossNamespaceSubscribable { role } => (role.to_owned(), SUBSCRIBABLE, SUBSCRIBE, &[""][..]),
                DuckType::Source => {
                    ("eventing-sources-source-observer".to_owned(), SOURCE, role_rules::READ, &[""][..])
                }
                DuckType::Podspecable | DuckType::Binding => continue,
            };
            match roles.iter_mut().find(|(other, ..)| *other == name) {
                Some((_, _, rules)) => rules.add(meta, verbs, parts),
                None => {
                    let mut rules = RuleList::default();
                    rules.add(meta, verbs, parts);
                    roles.push((name, label, rules));
                }
            }
        }
    }
    roles.into_iter().map(|(name, label, rules)| labelled(&name, label, rules)).collect()
}

/// What the rows of all kinds grant to a role.
fn rules_of(registry: &KindRegistry, role: DefaultRole) -> Value {
    let mut rules = RuleList::default();
    for meta in registry.entries.iter().map(|entry| entry.meta) {
        for rule in meta.role_rules.iter().filter(|rule| rule.role == role) {
            rules.add(meta, rule.verbs, rule.subresources);
        }
    }
    rules.into_value()
}

/// Rules in the making: one for each group and list of verbs.
#[derive(Default)]
struct RuleList(Vec<(&'static str, Verbs, Vec<String>)>);

impl RuleList {
    /// Rights on parts of a kind's objects. The versions of a kind have the same rights, and name it once.
    fn add(&mut self, meta: &KindMeta, verbs: Verbs, subresources: &[&str]) {
        for subresource in subresources {
            let name =
                if subresource.is_empty() { meta.plural.to_owned() } else { format!("{}/{subresource}", meta.plural) };
            match self.0.iter_mut().find(|(group, same, _)| *group == meta.group && *same == verbs) {
                Some((_, _, resources)) if resources.contains(&name) => {}
                Some((_, _, resources)) => resources.push(name),
                None => self.0.push((meta.group, verbs, vec![name])),
            }
        }
    }

    /// Resources in order, so that a role stays the same when rows move.
    fn into_value(self) -> Value {
        let rules = self.0.into_iter().map(|(group, verbs, mut resources)| {
            resources.sort_unstable();
            json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
        });
        rules.collect()
    }
}

/// Roles with an initial binding.
fn system_roles(registry: &KindRegistry) -> Vec<Value> {
    vec![
        role(
            "cluster-admin",
            &[],
            json!([
                { "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] },
                { "verbs": ["*"], "nonResourceURLs": ["*"] },
            ]),
        ),
        role(
            "system:discovery",
            &[],
            json!([{ "verbs": ["get"], "nonResourceURLs": [
            "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
            "/version", "/version/",
        ] }]),
        ),
        role(
            "system:service-account-issuer-discovery",
            &[],
            json!([{ "verbs": ["get"], "nonResourceURLs": [
            "/.well-known/openid-configuration", "/.well-known/openid-configuration/",
            "/openid/v1/jwks", "/openid/v1/jwks/",
        ] }]),
        ),
        role(DefaultRole::BasicUser.name(), &[], rules_of(registry, DefaultRole::BasicUser)),
        // What the console shows besides objects.
        role("sluicegate-console", &[], json!([{ "verbs": ["get"], "nonResourceURLs": ["/metrics", "/debug/*"] }])),
    ]
}

/// ClusterRoleBindings.
pub(super) fn bindings() -> Vec<Value> {
    let bound = |role: &str, group: &str| {
        json!({
            "metadata": { "name": role },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group }],
        })
    };
    let follower = |name: &str, role: &str| {
        json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": CONTROLLER_ACCOUNT, "namespace": SERVING }],
        })
    };
    vec![
        bound("cluster-admin", "system:masters"),
        bound("system:discovery", "system:authenticated"),
        bound("system:basic-user", "system:authenticated"),
        bound("system:service-account-issuer-discovery", "system:serviceaccounts"),
        follower(DefaultRole::Controller.name(), DefaultRole::Controller.name()),
        // Whatever has an address can be a destination.
        follower("sluicegate-addressable-resolver", "addressable-resolver"),
    ]
}

fn role(name: &str, adds_to: &[&str], rules: Value) -> Value {
    let labels: serde_json::Map<String, Value> =
        adds_to.iter().map(|level| (format!("{AGGREGATE}{level}"), "true".into())).collect();
    json!({ "metadata": { "name": name, "labels": labels }, "rules": rules })
}

/// A role whose rules another role with the same label has too.
fn labelled(name: &str, label: &str, rules: RuleList) -> Value {
    let mut one = role(name, &[], rules.into_value());
    one["metadata"]["labels"] = json!({ label: "true" });
    one
}

/// All roles with the label, as one.
fn aggregated(name: &str, label: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] },
        "rules": [],
    })
}

#[cfg(test)]
mod tests {
    use types::kind_registry::{CORE, KindEntry};
    use types::role_rules::{RECONCILED, RoleRule, VIEW};
    use types::serving::service::Service;

    use super::*;

    /// What a role grants on the kind of the test.
    fn granted(roles: &[Value], role: &str) -> Vec<String> {
        let role = roles.iter().find(|one| one["metadata"]["name"] == role).unwrap();
        let rules = role["rules"].as_array().unwrap().iter().filter(|rule| rule["apiGroups"] == json!(["gold.test"]));
        rules.map(|rule| format!("{} {}", rule["resources"], rule["verbs"])).collect()
    }

    #[test]
    fn row_of_a_kind_is_all_its_roles_need() {
        const GOLD: KindMeta = KindMeta {
            group: "gold.test",
            kind: "Gold",
            plural: "golds",
            duck_types: &[DuckType::Addressable, DuckType::Source, DuckType::Channelable { role: "gold-manipulator" }],
            role_rules: &[VIEW, RoleRule::new(DefaultRole::Edit, &["create"]).on(&["melt"])],
            ..CORE
        };
        const NEWER: KindMeta = KindMeta { version: "v2", role_rules: RECONCILED, ..GOLD };
        let row = |meta| KindEntry { meta, ..KindEntry::of::<Service>() };
        let roles = roles(&KindRegistry { entries: vec![row(&GOLD), row(&NEWER)] });
        let read = r#"["get","list","watch"]"#;
        for (role, rights) in [
            ("gold-addressable-resolver", vec![format!(r#"["golds","golds/status"] {read}"#)]),
            ("eventing-sources-source-observer", vec![format!(r#"["golds"] {read}"#)]),
            ("system:aggregate-to-view", vec![format!(r#"["golds"] {read}"#)]),
            ("system:aggregate-to-edit", vec![r#"["golds/melt"] ["create"]"#.to_owned()]),
            ("system:aggregate-to-admin", vec![]),
        ] {
            assert_eq!(granted(&roles, role), rights, "{role}");
        }
        assert!(granted(&roles, "gold-manipulator")[0].starts_with(r#"["golds","golds/status"] ["create","#));
        assert_eq!(granted(&roles, "sluicegate-controller").len(), 2, "objects and statuses");
        let of_component =
            roles.iter().find(|one| one["metadata"]["name"] == "knative-eventing-namespaced-view").unwrap();
        assert!(of_component["rules"][0]["apiGroups"].as_array().unwrap().contains(&json!("gold.test")));
    }
}
