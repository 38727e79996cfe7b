//! The default roles: Kubernetes' own, and Knative's that extend them.

use serde_json::{Value, json};

use crate::access::CONTROLLER_ACCOUNT;
use types::settings::SERVING;

use super::pod_streams;

const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
/// What an appliance that follows another API may do.
const CONTROLLER_ROLE: &str = "sluicegate-controller";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];
const SERVING_GROUPS: [&str; 2] = ["serving.knative.dev", "networking.internal.knative.dev"];
const EVENTING_GROUPS: [&str; 6] = [
    "eventing.knative.dev",
    "messaging.knative.dev",
    "flows.knative.dev",
    "sources.knative.dev",
    "sinks.knative.dev",
    "adapters.sluicegate.dev",
];
/// Resources of addressable kinds.
const ADDRESSABLE: [(&str, &[&str]); 6] = [
    ("serving.knative.dev", &["routes", "routes/status", "services", "services/status"]),
    ("eventing.knative.dev", &["brokers", "brokers/status", "kafkasinks", "kafkasinks/status"]),
    ("messaging.knative.dev", &["channels", "channels/status", "inmemorychannels", "inmemorychannels/status"]),
    ("flows.knative.dev", &["sequences", "sequences/status", "parallels", "parallels/status"]),
    (
        "sinks.knative.dev",
        &["integrationsinks", "integrationsinks/status", "redisstreamsinks", "redisstreamsinks/status"],
    ),
    ("adapters.sluicegate.dev", &["adaptersinks", "adaptersinks/status"]),
];

/// Kinds that bring events in.
const SOURCES: [&str; 8] = [
    "apiserversources",
    "containersources",
    "integrationsources",
    "kafkasources",
    "pingsources",
    "rabbitmqsources",
    "redisstreamsources",
    "sinkbindings",
];

/// Channels, for subscribers to them: by upstream's names.
const CHANNELABLE: [(&str, [&str; 2]); 2] = [
    ("meta-channelable-manipulator", ["channels", "channels/status"]),
    ("imc-channelable-manipulator", ["inmemorychannels", "inmemorychannels/status"]),
];

/// What may be subscribed to from other namespaces: by upstream's names.
const SUBSCRIBABLE: [(&str, &str, &str); 3] = [
    ("broker-subscriber", "eventing.knative.dev", "brokers"),
    ("channel-subscriber", "messaging.knative.dev", "channels"),
    ("imc-subscriber", "messaging.knative.dev", "inmemorychannels"),
];

/// ClusterRoles.
pub(super) fn roles() -> Vec<Value> {
    let mut roles = system_roles();
    roles.push(role(CONTROLLER_ROLE, &[], follower_role()));
    roles.extend(aggregated_core_roles());
    // Instance policies, which grant a service account more than its namespace's user has: the host's owner binds
    // them.
    roles.extend(["process", "host-user", "root"].map(|policy| {
        let rules = json!([{ "apiGroups": ["sluicegate.dev"], "resources": ["instancepolicies"],
            "resourceNames": [policy], "verbs": ["use"] }]);
        role(&format!("sluicegate-instances-{policy}"), &[], rules)
    }));
    roles.extend([
        aggregated("view", &format!("{AGGREGATE}view")),
        aggregated("addressable-resolver", "duck.knative.dev/addressable"),
        aggregated("channelable-manipulator", "duck.knative.dev/channelable"),
        aggregated("source-observer", "duck.knative.dev/source"),
        aggregated("crossnamespace-subscriber", "duck.knative.dev/crossnamespace-subscribable"),
    ]);
    roles.extend([("edit", &["view"][..]), ("admin", &["view", "edit"][..])].map(|(name, below)| {
        let mut one = aggregated(name, &format!("{AGGREGATE}{name}"));
        if let Some(selectors) = one["aggregationRule"]["clusterRoleSelectors"].as_array_mut() {
            selectors.extend(below.iter().map(|b| json!({ "matchLabels": { format!("{AGGREGATE}{b}"): "true" } })));
        }
        one
    }));
    for (component, groups) in [("serving", &SERVING_GROUPS[..]), ("eventing", &EVENTING_GROUPS[..])] {
        for (level, verbs) in [("view", &READ[..]), ("edit", &WRITE[..]), ("admin", &["*"][..])] {
            let rules = json!([{ "verbs": verbs, "apiGroups": groups, "resources": ["*"] }]);
            roles.push(role(&format!("knative-{component}-namespaced-{level}"), &[level], rules));
        }
    }
    roles.extend(CHANNELABLE.map(|(name, resources)| {
        // Spelled out as upstream does: `deletecollection` is not among them.
        let verbs = ["create", "get", "list", "watch", "update", "patch", "delete"];
        let rules = json!([{ "verbs": verbs, "apiGroups": ["messaging.knative.dev"], "resources": resources }]);
        let mut one = role(name, &[], rules);
        one["metadata"]["labels"] = json!({ "duck.knative.dev/channelable": "true" });
        one
    }));
    roles.extend(SUBSCRIBABLE.map(|(name, group, resources)| {
        let rules = json!([{ "apiGroups": [group], "resources": [resources], "verbs": ["knsubscribe"] }]);
        let mut one = role(name, &[], rules);
        one["metadata"]["labels"] = json!({ "duck.knative.dev/crossnamespace-subscribable": "true" });
        one
    }));
    let rules = json!([
        { "apiGroups": ["sources.knative.dev"], "resources": SOURCES, "verbs": READ },
        { "apiGroups": ["adapters.sluicegate.dev"], "resources": ["adaptersources"], "verbs": READ },
    ]);
    let mut observer = role("eventing-sources-source-observer", &[], rules);
    observer["metadata"]["labels"] = json!({ "duck.knative.dev/source": "true" });
    roles.push(observer);
    roles.extend(ADDRESSABLE.map(|(group, resources)| {
        let component = group.split('.').next().unwrap_or(group);
        let rules = json!([{ "verbs": READ, "apiGroups": [group], "resources": resources }]);
        let mut one = role(&format!("{component}-addressable-resolver"), &[], rules);
        one["metadata"]["labels"] = json!({ "duck.knative.dev/addressable": "true" });
        one
    }));
    roles
}

/// What the controllers of an appliance need that follows this API, or a cluster's: `deploy/follow.yaml` says
/// the same.
fn follower_role() -> Value {
    let own = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let status = ["get", "patch", "update"];
    let all = |group: &str, plurals: &[&str]| {
        let statuses: Vec<String> = plurals.iter().map(|plural| format!("{plural}/status")).collect();
        [
            json!({ "apiGroups": [group], "resources": plurals, "verbs": own }),
            json!({ "apiGroups": [group], "resources": statuses, "verbs": status }),
        ]
    };
    let mut rules = vec![
        json!({ "apiGroups": [""], "resources": ["configmaps", "secrets", "services", "endpoints", "namespaces"], "verbs": READ }),
        json!({ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ }),
        json!({ "apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "patch"] }),
        json!({ "apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["create", "delete", "get", "list", "watch"] }),
        json!({ "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"] }),
        json!({ "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": READ }),
        json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"] }),
        json!({ "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"] }),
        json!({ "apiGroups": ["networking.internal.knative.dev"], "resources": ["clusterdomainclaims"], "verbs": own }),
    ];
    for (group, plurals) in [
        ("serving.knative.dev", &["services", "configurations", "revisions", "routes", "domainmappings"][..]),
        ("networking.internal.knative.dev", &["ingresses", "certificates"]),
        ("autoscaling.internal.knative.dev", &["podautoscalers", "metrics"]),
        ("eventing.knative.dev", &["brokers", "triggers", "eventtypes", "eventpolicies"]),
        ("messaging.knative.dev", &["channels", "inmemorychannels", "subscriptions"]),
        ("flows.knative.dev", &["sequences", "parallels"]),
    ] {
        rules.extend(all(group, plurals));
    }
    rules.into()
}

/// Those that are bound from the start.
fn system_roles() -> Vec<Value> {
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
        role(
            "system:basic-user",
            &[],
            json!([
                { "verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                  "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"] },
                { "verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"] },
            ]),
        ),
    ]
}

/// What core kinds add to `view`, `edit` and `admin`.
fn aggregated_core_roles() -> Vec<Value> {
    let all = [&READ[..], &WRITE[..]].concat();
    vec![
        role(
            "system:aggregate-to-view",
            &["view"],
            json!([
                { "verbs": READ, "apiGroups": [""], "resources": ["configmaps", "endpoints", "events", "pods",
                  "pods/log", "pods/status", "serviceaccounts", "services", "services/status", "namespaces"] },
                { "verbs": READ, "apiGroups": ["apps"], "resources": ["deployments"] },
                { "verbs": READ, "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"] },
                { "verbs": READ, "apiGroups": ["events.k8s.io"], "resources": ["events"] },
            ]),
        ),
        role(
            "system:aggregate-to-edit",
            &["edit"],
            json!([
                { "verbs": WRITE, "apiGroups": [""], "resources": ["configmaps", "endpoints", "events", "secrets",
                  "serviceaccounts", "services"] },
                { "verbs": READ, "apiGroups": [""], "resources": ["secrets"] },
                { "verbs": WRITE, "apiGroups": ["events.k8s.io"], "resources": ["events"] },
                { "verbs": ["delete", "deletecollection"], "apiGroups": [""], "resources": ["pods"] },
                { "verbs": pod_streams::VERBS, "apiGroups": [""], "resources": ["pods/attach", "pods/exec", "pods/portforward"] },
                { "verbs": ["create"], "apiGroups": [""], "resources": ["serviceaccounts/token"] },
                { "verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"] },
            ]),
        ),
        role(
            "system:aggregate-to-admin",
            &["admin"],
            json!([
                // Not all verbs: `bind` and `escalate` would let a namespace's admin become any user.
                { "verbs": all, "apiGroups": ["rbac.authorization.k8s.io"],
                  "resources": ["roles", "rolebindings"] },
                { "verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                  "resources": ["localsubjectaccessreviews"] },
            ]),
        ),
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
        follower(CONTROLLER_ROLE, CONTROLLER_ROLE),
        // Whatever has an address can be a destination.
        follower("sluicegate-addressable-resolver", "addressable-resolver"),
    ]
}

fn role(name: &str, adds_to: &[&str], rules: Value) -> Value {
    let labels: serde_json::Map<String, Value> =
        adds_to.iter().map(|level| (format!("{AGGREGATE}{level}"), "true".into())).collect();
    json!({ "metadata": { "name": name, "labels": labels }, "rules": rules })
}

/// All roles with the label, as one.
fn aggregated(name: &str, label: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] },
        "rules": [],
    })
}
