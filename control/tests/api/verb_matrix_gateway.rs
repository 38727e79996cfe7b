//! The rows of the kinds of Gateway API.

use serde_json::{Value, json};

use super::{INVALID, KindRow, row};

pub(super) fn gateway_rows() -> Vec<KindRow> {
    let listener = |port: i32| json!([{ "name": "a", "port": port, "protocol": "HTTP" }]);
    let gateway = |port: i32| json!({ "spec": { "gatewayClassName": "a", "listeners": listener(port) } });
    let hosts = |host: &str| json!({ "spec": { "hostnames": [host] } });
    let condition = json!({ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let parent = json!({ "parentRef": { "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g" },
        "controllerName": "example.com/a", "conditions": [condition] });
    let grant = |kind: &str| {
        json!({ "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "a" }],
            "to": [{ "group": "", "kind": kind }] } })
    };
    let stream_route = |port: i32| {
        let backends = json!([{ "name": "a", "port": port }]);
        json!({ "spec": { "rules": [{ "backendRefs": backends }] } })
    };
    let tls_route = |host: &str| {
        let mut route = stream_route(1);
        route["spec"]["hostnames"] = json!([host]);
        route
    };
    let tls_policy = |hostname: &str| {
        let authorities = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
        json!({ "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": "a" }],
            "validation": { "caCertificateRefs": authorities, "hostname": hostname } } })
    };
    let policy = |fields: Value| {
        let mut spec = json!({ "targetRefs": [
            { "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "a" } ] });
        spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        json!({ "spec": spec })
    };
    let ancestor = json!({ "ancestorRef": { "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g" },
        "controllerName": "example.com/a", "conditions": [condition] });
    vec![
        row(
            "GatewayClass",
            &["Name", "Controller", "Accepted", "Age", "*Description"],
            json!({ "spec": { "controllerName": "example.com/a" } }),
            json!({ "spec": { "description": "x" } }),
        )
        .wrong(json!({ "spec": { "controllerName": "example.com/b" } }), "spec.controllerName", INVALID)
        .status(json!({ "conditions": [condition] })),
        row("Gateway", &["Name", "Class", "Address", "Programmed", "Age"], gateway(80), gateway(81))
            .wrong(json!({ "spec": { "gatewayClassName": "" } }), "spec.gatewayClassName", INVALID)
            .status(json!({ "conditions": [condition] })),
        row("HTTPRoute", &["Name", "Hostnames", "Age"], hosts("a.test"), hosts("b.test"))
            .wrong(hosts("a b"), "spec.hostnames[0]", INVALID)
            .status(json!({ "parents": [parent] })),
        row("GRPCRoute", &["Name", "Hostnames", "Age"], hosts("a.test"), hosts("b.test"))
            .wrong(hosts("a b"), "spec.hostnames[0]", INVALID)
            .status(json!({ "parents": [parent] })),
        row("TLSRoute", &["Name", "Age"], tls_route("a.test"), tls_route("b.test"))
            .wrong(tls_route("127.0.0.1"), "spec.hostnames", INVALID)
            .status(json!({ "parents": [parent] })),
        row("TCPRoute", &["Name", "Age"], stream_route(1), stream_route(2))
            .wrong(stream_route(0), "spec.rules[0].backendRefs[0].port", INVALID)
            .status(json!({ "parents": [parent] })),
        row("UDPRoute", &["Name", "Age"], stream_route(1), stream_route(2))
            .wrong(stream_route(0), "spec.rules[0].backendRefs[0].port", INVALID)
            .status(json!({ "parents": [parent] })),
        row("BackendTLSPolicy", &["Name", "Age"], tls_policy("a.test"), tls_policy("b.test"))
            .wrong(tls_policy("a b"), "spec.validation.hostname", INVALID)
            .status(json!({ "ancestors": [ancestor] })),
        row(
            "SecurityPolicy",
            &["Name", "Age"],
            policy(json!({ "deny": ["10.0.0.0/8"] })),
            policy(json!({ "deny": ["::1"] })),
        )
        .wrong(policy(json!({ "deny": ["x"] })), "spec.deny[0]", INVALID)
        .status(json!({ "ancestors": [ancestor] })),
        row(
            "TrafficPolicy",
            &["Name", "Age"],
            policy(json!({ "requestBody": { "maxBytes": 1 } })),
            policy(json!({ "requestBody": { "maxBytes": 2 } })),
        )
        .wrong(policy(json!({ "timeouts": { "request": "5" } })), "spec.timeouts", INVALID)
        .status(json!({ "ancestors": [ancestor] })),
        row("ReferenceGrant", &["Name", "Age"], grant("Service"), grant("Secret")).wrong(
            grant("a b"),
            "spec.to[0].kind",
            INVALID,
        ),
    ]
}
