//! One row for each served kind: an object of it, a change, an invalid field, its columns.

use serde_json::{Value, json};

use verb_matrix_gateway::gateway_rows;

#[path = "verb_matrix_gateway.rs"]
mod verb_matrix_gateway;

pub(crate) struct KindRow {
    pub(crate) kind: &'static str,
    /// What `kubectl get -o wide` shows after, or with, the name; a `*` marks what only `-o wide` shows.
    pub(crate) columns: &'static [&'static str],
    /// What an object has besides its name.
    pub(crate) object: Value,
    /// A merge patch that changes it.
    pub(crate) change: Value,
    /// A merge patch that makes it invalid; the field and the reason of the cause.
    pub(crate) wrong: Option<(Value, &'static str, &'static str)>,
    pub(crate) status: Value,
}

impl KindRow {
    fn wrong(mut self, patch: Value, field: &'static str, reason: &'static str) -> Self {
        self.wrong = Some((patch, field, reason));
        self
    }

    fn status(mut self, status: Value) -> Self {
        self.status = status;
        self
    }
}

fn row(kind: &'static str, columns: &'static [&'static str], object: Value, change: Value) -> KindRow {
    KindRow { kind, columns, object, change, wrong: None, status: json!({ "observedGeneration": 1 }) }
}

const READY: &[&str] = &["Name", "Ready", "Reason"];
const URL: &[&str] = &["Name", "URL", "Ready", "Reason"];
const AGED_URL: &[&str] = &["Name", "URL", "Age", "Ready", "Reason"];
const INVALID: &str = "FieldValueInvalid";
const REQUIRED: &str = "FieldValueRequired";

/// Kinds whose objects clients make, change and delete.
pub(crate) fn rows() -> Vec<KindRow> {
    let mut rows = core_rows();
    rows.extend(workload_rows());
    rows.extend(rights_rows());
    rows.extend(serving_rows());
    rows.extend(gateway_rows());
    rows.extend(eventing_rows());
    rows.extend(source_rows());
    rows.extend(sink_rows());
    rows
}

fn source_rows() -> Vec<KindRow> {
    let source = |mut spec: Value| {
        spec["sink"] = json!({ "uri": "http://sink.test" });
        json!({ "spec": spec })
    };
    let nowhere = || json!({ "spec": { "sink": null } });
    let moved = || json!({ "spec": { "sink": { "uri": "http://other.test" } } });
    let columns = &["Name", "Sink", "Age", "Ready", "Reason"];
    let subject = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p" });
    let template = json!({ "spec": { "containers": [{ "image": "a/b" }] } });
    let rabbitmq = json!({
        "rabbitmqClusterReference": { "name": "r" },
        "rabbitmqResourcesConfig": { "queueName": "q", "exchangeName": "e" },
    });
    let github = json!({
        "ownerAndRepository": "o/r", "eventTypes": ["push"],
        "secretToken": { "secretKeyRef": { "name": "s", "key": "k" } },
    });
    vec![
        row("PingSource", &["Name", "Sink", "Schedule", "Age", "Ready", "Reason"], source(json!({})), moved()).wrong(
            json!({ "spec": { "schedule": "soon" } }),
            "spec.schedule",
            INVALID,
        ),
        row(
            "ApiServerSource",
            columns,
            source(json!({ "resources": [{ "apiVersion": "v1", "kind": "Event" }] })),
            moved(),
        )
        .wrong(json!({ "spec": { "resources": [] } }), "spec.resources", REQUIRED),
        row("ContainerSource", columns, source(json!({ "template": template })), moved()).wrong(
            nowhere(),
            "spec.sink",
            INVALID,
        ),
        row(
            "AdapterSource",
            columns,
            source(json!({ "adapter": { "transport": "timer" }, "source": { "message": "m" } })),
            moved(),
        )
        .wrong(json!({ "spec": { "qos": 3 } }), "spec.qos", INVALID),
        row("IntegrationSource", columns, source(json!({ "timer": { "message": "m" } })), moved()).wrong(
            json!({ "spec": { "timer": null } }),
            "spec",
            INVALID,
        ),
        row("RedisStreamSource", columns, source(json!({ "address": "a:1", "stream": "s" })), moved()).wrong(
            json!({ "spec": { "stream": "" } }),
            "spec.stream",
            REQUIRED,
        ),
        row(
            "KafkaSource",
            &["Name", "Topics", "BootstrapServers", "Ready", "Reason", "Age"],
            source(json!({ "bootstrapServers": ["k:9092"], "topics": ["t"] })),
            moved(),
        )
        .wrong(json!({ "spec": { "topics": [] } }), "spec.topics", REQUIRED),
        row("GitHubSource", &["Name", "Ready", "Reason", "Sink", "Age"], source(github), moved()).wrong(
            json!({ "spec": { "eventTypes": [] } }),
            "spec.eventTypes",
            REQUIRED,
        ),
        row("RabbitmqSource", columns, source(rabbitmq), note()).wrong(
            json!({ "spec": { "rabbitmqResourcesConfig": null } }),
            "spec.rabbitmqResourcesConfig",
            REQUIRED,
        ),
        row("SinkBinding", columns, source(json!({ "subject": subject })), moved()).wrong(
            nowhere(),
            "spec.sink",
            INVALID,
        ),
    ]
}

fn sink_rows() -> Vec<KindRow> {
    let sink = |spec: Value| json!({ "spec": spec });
    let redis = json!({ "address": "r:6379", "stream": "s" });
    let kafka = json!({ "bootstrapServers": ["k:9092"], "topic": "t" });
    vec![
        row(
            "AdapterSink",
            AGED_URL,
            sink(json!({ "adapter": { "transport": "file" } })),
            json!({ "spec": { "sink": { "path": "/tmp/a" } } }),
        )
        .wrong(json!({ "spec": { "adapter": null } }), "spec.adapter", REQUIRED),
        row("KafkaSink", AGED_URL, sink(kafka), json!({ "spec": { "contentMode": "structured" } })).wrong(
            json!({ "spec": { "bootstrapServers": [] } }),
            "spec.bootstrapServers",
            REQUIRED,
        ),
        row("RedisStreamSink", AGED_URL, sink(redis), json!({ "spec": { "stream": "t" } })).wrong(
            json!({ "spec": { "stream": "" } }),
            "spec.stream",
            REQUIRED,
        ),
        row(
            "IntegrationSink",
            AGED_URL,
            sink(json!({ "log": {} })),
            json!({ "spec": { "log": { "level": "DEBUG" } } }),
        )
        .wrong(json!({ "spec": { "log": null } }), "spec", INVALID),
        row(
            "JobSink",
            AGED_URL,
            sink(json!({ "job": { "spec": { "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "c", "image": "a/b:1" }],
            } } } } })),
            json!({ "spec": { "job": { "spec": { "parallelism": 2 } } } }),
        )
        .wrong(json!({ "spec": { "job": null } }), "spec.job", REQUIRED),
        row(
            "AdapterType",
            &["Name", "Image", "Transport", "Age"],
            sink(json!({ "adapter": { "image": "example.com/a" } })),
            json!({ "spec": { "eventTypes": [{ "type": "a" }] } }),
        )
        .wrong(json!({ "spec": { "adapter": null } }), "spec.adapter", REQUIRED),
    ]
}

fn note() -> Value {
    json!({ "metadata": { "annotations": { "note": "changed" } } })
}

fn workload_rows() -> Vec<KindRow> {
    let pod = |policy: &str| {
        json!({ "restartPolicy": policy, "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "a/b:1" }] })
    };
    let template = |policy: &str| json!({ "metadata": { "labels": { "a": "b" } }, "spec": pod(policy) });
    let replicated =
        || json!({ "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": template("Always") } });
    let replicas = |number: i64| json!({ "spec": { "replicas": number } });
    let job = || json!({ "template": template("Never") });
    let ends = ["Age", "*Containers", "*Images", "*Selector"];
    let columns = |own: &[&'static str]| -> &'static [&'static str] {
        Box::leak([&["Name"], own, &ends].concat().into_boxed_slice())
    };
    let pod_columns: &[&str] =
        &["Name", "Ready", "Status", "Restarts", "Age", "*IP", "*Node", "*Nominated Node", "*Readiness Gates"];
    let status = || json!({ "replicas": 1 });
    vec![
        row("Pod", pod_columns, json!({ "spec": pod("Always") }), note())
            .wrong(json!({ "spec": { "dnsPolicy": "Default" } }), "spec", "FieldValueForbidden")
            .status(json!({ "phase": "Running" })),
        row("Deployment", columns(&["Ready", "Up-to-date", "Available"]), replicated(), replicas(2))
            .wrong(replicas(-1), "spec.replicas", INVALID)
            .status(status()),
        row("ReplicaSet", columns(&["Desired", "Current", "Ready"]), replicated(), replicas(2))
            .wrong(replicas(-1), "spec.replicas", INVALID)
            .status(status()),
        row(
            "Job",
            columns(&["Status", "Completions"]),
            json!({ "spec": job() }),
            json!({ "spec": { "parallelism": 2 } }),
        )
        .wrong(json!({ "spec": { "parallelism": -1 } }), "spec.parallelism", INVALID)
        .status(json!({ "active": 1 })),
        row(
            "CronJob",
            columns(&["Schedule", "Timezone", "Suspend", "Active", "Last Schedule"]),
            json!({ "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": job() } } }),
            json!({ "spec": { "suspend": true } }),
        )
        .wrong(json!({ "spec": { "schedule": "never" } }), "spec.schedule", INVALID)
        .status(json!({ "lastScheduleTime": "2026-01-31T12:00:00Z" })),
    ]
}

fn core_rows() -> Vec<KindRow> {
    let port = |port: u16| json!({ "spec": { "ports": [{ "port": port }] } });
    vec![
        row("Namespace", &["Name", "Status", "Age"], json!({}), note()).status(json!({ "phase": "Active" })),
        row("ConfigMap", &["Name", "Data", "Age"], json!({ "data": { "a": "1" } }), json!({ "data": { "a": "2" } })),
        row(
            "Secret",
            &["Name", "Type", "Data", "Age"],
            json!({ "stringData": { "a": "1" } }),
            json!({ "stringData": { "a": "2" } }),
        )
        .wrong(json!({ "type": "other" }), "type", INVALID),
        row(
            "Service",
            &["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "*Selector"],
            port(80),
            port(81),
        )
        .wrong(port(0), "spec.ports[0].port", INVALID)
        .status(json!({ "loadBalancer": {} })),
        row("ServiceAccount", &["Name", "Secrets", "Age"], json!({}), note()),
        row(
            "Event",
            &[
                "Last Seen",
                "Type",
                "Reason",
                "Object",
                "*Subobject",
                "*Source",
                "Message",
                "*First Seen",
                "*Count",
                "*Name",
            ],
            json!({ "involvedObject": { "kind": "Pod", "name": "p", "namespace": "default" },
                "reason": "Ready", "message": "is ready", "type": "Normal" }),
            json!({ "count": 2 }),
        ),
        row(
            "Endpoints",
            &["Name", "Endpoints", "Age"],
            json!({ "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }], "ports": [{ "port": 80 }] }] }),
            json!({ "subsets": [{ "addresses": [{ "ip": "10.0.0.2" }], "ports": [{ "port": 80 }] }] }),
        ),
        row(
            "EndpointSlice",
            &["Name", "AddressType", "Ports", "Endpoints", "Age"],
            json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["10.0.0.1"] }], "ports": [{ "port": 80 }] }),
            json!({ "endpoints": [{ "addresses": ["10.0.0.2"] }] }),
        ),
        row(
            "Lease",
            &["Name", "Holder", "Age"],
            json!({ "spec": { "holderIdentity": "a" } }),
            json!({ "spec": { "holderIdentity": "b" } }),
        ),
        row(
            "CustomResourceDefinition",
            &["Name", "Created At"],
            json!({ "spec": {
                "group": "example.com", "scope": "Namespaced", "names": { "kind": "Gold", "plural": "golds" },
                "versions": [{ "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object" } } }],
            } }),
            json!({ "spec": { "names": { "shortNames": ["gd"] } } }),
        )
        .status(json!({ "storedVersions": ["v1"] })),
    ]
}

fn rights_rows() -> Vec<KindRow> {
    let rules = |verb: &str| json!({ "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] }] });
    let binding = |kind: &str| {
        json!({ "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "view" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "a" }] })
    };
    let other = json!({ "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "b" }] });
    let bound = &["Name", "Role", "Age", "*Users", "*Groups", "*ServiceAccounts"];
    vec![
        row("Role", &["Name", "Created At"], rules("get"), rules("list")),
        row("RoleBinding", bound, binding("ClusterRole"), other.clone()),
        row("ClusterRole", &["Name", "Created At"], rules("get"), rules("list")),
        row("ClusterRoleBinding", bound, binding("ClusterRole"), other),
    ]
}

fn serving_rows() -> Vec<KindRow> {
    let template = |image: &str| json!({ "spec": { "template": { "spec": { "containers": [{ "image": image }] } } } });
    let negative = || json!({ "spec": { "template": { "spec": { "containerConcurrency": -1 } } } });
    let sends = |revision: &str| json!({ "spec": { "traffic": [{ "revisionName": revision, "percent": 100 }] } });
    let concurrency = "spec.template.spec.containerConcurrency";
    let splits = |port: u16| {
        json!({ "spec": { "rules": [{ "hosts": ["g.test"], "http": { "paths": [{ "splits": [
            { "serviceName": "s", "serviceNamespace": "default", "servicePort": port, "percent": 100 }] }] } }] } })
    };
    let asks = |host: &str| json!({ "spec": { "dnsNames": [host], "secretName": "s" } });
    vec![
        row(
            "Service",
            &["Name", "URL", "LatestCreated", "LatestReady", "Ready", "Reason"],
            template("a/b"),
            template("a/c"),
        )
        .wrong(negative(), concurrency, INVALID),
        row(
            "Configuration",
            &["Name", "LatestCreated", "LatestReady", "Ready", "Reason"],
            template("a/b"),
            template("a/c"),
        )
        .wrong(negative(), concurrency, INVALID),
        row(
            "Revision",
            &["Name", "Config Name", "Generation", "Ready", "Reason", "Actual Replicas", "Desired Replicas"],
            json!({ "spec": { "containers": [{ "image": "a/b" }] } }),
            note(),
        )
        .wrong(json!({ "spec": { "containers": [{ "image": "a/c" }] } }), "spec", INVALID),
        row("Route", URL, sends("r-00001"), sends("r-00002")).wrong(
            json!({ "spec": { "traffic": [{ "revisionName": "r-00001", "percent": 50 }] } }),
            "spec.traffic",
            INVALID,
        ),
        row(
            "DomainMapping",
            URL,
            json!({ "spec": { "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "s" } } }),
            json!({ "spec": { "ref": { "name": "t" } } }),
        )
        .wrong(json!({ "spec": { "ref": { "name": "" } } }), "spec.ref.name", REQUIRED),
        row("ClusterDomainClaim", &["Name", "Age"], json!({ "spec": { "namespace": "default" } }), note()).wrong(
            json!({ "spec": { "namespace": "" } }),
            "spec.namespace",
            REQUIRED,
        ),
        row("Ingress", READY, splits(80), splits(81)).wrong(json!({ "spec": { "rules": [] } }), "spec", REQUIRED),
        row("Certificate", READY, asks("a.test"), asks("b.test")).wrong(
            json!({ "spec": { "secretName": "" } }),
            "spec.secretName",
            REQUIRED,
        ),
        row(
            "PodAutoscaler",
            &["Name", "DesiredScale", "ActualScale", "Ready", "Reason"],
            json!({ "spec": { "protocolType": "http1",
                "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" } } }),
            json!({ "spec": { "protocolType": "h2c" } }),
        )
        .wrong(json!({ "spec": { "scaleTargetRef": { "name": "" } } }), "spec.scaleTargetRef.name", REQUIRED),
        row(
            "ServerlessService",
            &["Name", "Mode", "Activators", "ServiceName", "PrivateServiceName", "Ready", "Reason"],
            json!({ "spec": { "mode": "Proxy", "protocolType": "http1", "numActivators": 1,
                "objectRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" } } }),
            json!({ "spec": { "mode": "Serve" } }),
        )
        .wrong(json!({ "spec": { "objectRef": { "name": "" } } }), "spec.objectRef.name", REQUIRED),
        row("Metric", READY, json!({ "spec": { "scrapeTarget": "a" } }), json!({ "spec": { "scrapeTarget": "b" } })),
    ]
}

fn eventing_rows() -> Vec<KindRow> {
    let retry = |times: i64| json!({ "spec": { "delivery": { "retry": times } } });
    let sink = |uri: &str| json!({ "uri": uri });
    let from = |sub: &str| json!({ "spec": { "from": [{ "sub": sub }] } });
    let (one, other) = (sink("http://one.test"), sink("http://other.test"));
    vec![
        row("Broker", &["Name", "URL", "Age", "Ready", "Reason", "*Class"], json!({}), retry(3)).wrong(
            retry(-1),
            "spec.delivery.retry",
            INVALID,
        ),
        row(
            "Trigger",
            &["Name", "Broker", "Subscriber_URI", "Age", "Ready", "Reason"],
            json!({ "spec": { "broker": "b", "subscriber": one } }),
            json!({ "spec": { "subscriber": other } }),
        )
        .wrong(json!({ "spec": { "broker": "c" } }), "spec.broker", INVALID),
        row(
            "EventType",
            &["Name", "Type", "Source", "Schema", "Reference Name", "Reference Kind", "Description", "Ready", "Reason"],
            json!({ "spec": { "type": "t" } }),
            note(),
        )
        .wrong(json!({ "spec": { "type": "" } }), "spec.type", REQUIRED),
        row("EventPolicy", READY, from("a"), from("b")).wrong(from("a*b"), "spec.from[0].sub", INVALID),
        row(
            "EventTransform",
            &["Name", "URL", "Sink", "Ready", "Reason"],
            json!({ "spec": { "jsonata": { "expression": "$" } } }),
            json!({ "spec": { "jsonata": { "expression": "data" } } }),
        )
        .wrong(json!({ "spec": { "jsonata": null } }), "spec", INVALID),
        row("Channel", AGED_URL, json!({}), retry(3)).wrong(retry(-1), "spec.delivery.retry", INVALID),
        row("InMemoryChannel", AGED_URL, json!({}), retry(3)).wrong(retry(-1), "spec.delivery.retry", INVALID),
        row(
            "Subscription",
            &["Name", "Age", "Ready", "Reason"],
            json!({ "spec": { "channel": { "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c" },
                "subscriber": one } }),
            json!({ "spec": { "subscriber": other } }),
        )
        .wrong(json!({ "spec": { "channel": { "name": "d" } } }), "spec.channel", INVALID),
        row("Sequence", AGED_URL, json!({ "spec": { "steps": [one] } }), json!({ "spec": { "steps": [other] } }))
            .wrong(json!({ "spec": { "steps": [] } }), "spec.steps", REQUIRED),
        row(
            "Parallel",
            AGED_URL,
            json!({ "spec": { "branches": [{ "subscriber": one }] } }),
            json!({ "spec": { "branches": [{ "subscriber": other }] } }),
        )
        .wrong(json!({ "spec": { "branches": [] } }), "spec.branches", REQUIRED),
    ]
}
