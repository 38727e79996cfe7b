//! The objects that are generated for Gateways.

use super::*;

const SERVICE: &str = "/api/v1/namespaces/default/services/web-sluicegate";

/// The generated Service of the Gateway `web`.
fn generated(api: KitApi) -> Option<Value> {
    let response = api.send(HttpCall::get(SERVICE));
    (response.status == 200).then(|| response.json())
}

fn wait_for_generated(api: KitApi, is_so: impl Fn(&Value) -> bool) -> Value {
    kit::wait::until(TIMEOUT, "the generated Service", || generated(api).filter(&is_so))
}

/// GatewayInfrastructure: the generated Service has the metadata of `infrastructure`, and follows it.
#[test]
fn infrastructure_metadata_is_on_the_generated_service() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, port) = (appliance.api(), appliance.http().port());
    let infrastructure = |labels: Value| json!({ "labels": labels, "annotations": { "key1": "value1" } });
    api.create(&json!({
        "apiVersion": GROUP, "kind": "Gateway", "metadata": { "name": "web", "namespace": NAMESPACE },
        "spec": { "gatewayClassName": "sluicegate", "infrastructure": infrastructure(json!({ "key2": "value2", "old": "1" })),
            "listeners": [{ "name": "http", "port": port, "protocol": "HTTP" }] },
    }));
    let has_address = |service: &Value| service["status"]["loadBalancer"]["ingress"][0]["ip"] == "127.0.0.1";
    let service = wait_for_generated(api, has_address);
    let labels = json!({ "key2": "value2", "old": "1", "gateway.networking.k8s.io/gateway-name": "web",
        "gateway.networking.k8s.io/gateway-class-name": "sluicegate" });
    let metadata = &service["metadata"];
    assert_eq!((&metadata["labels"], &metadata["annotations"]["key1"]), (&labels, &json!("value1")));
    assert_eq!(service["spec"]["ports"][0]["port"], port);

    // A label that is gone from the Gateway is gone from the Service, and a Service that a client deletes comes back.
    let merge = json!({ "spec": { "infrastructure": infrastructure(json!({ "key2": "new", "old": null })) } });
    api.patch("Gateway", NAMESPACE, "web", &merge);
    let follows = |service: &Value| {
        let labels = &service["metadata"]["labels"];
        labels["key2"] == "new" && labels["old"].is_null() && has_address(service)
    };
    let before = wait_for_generated(api, follows);
    assert_eq!(api.send(HttpCall::new("DELETE", SERVICE)).status, 200);
    wait_for_generated(api, |service| follows(service) && service["metadata"]["uid"] != before["metadata"]["uid"]);

    let gone = || generated(api).is_none().then_some(());
    api.patch("Gateway", NAMESPACE, "web", &json!({ "spec": { "infrastructure": null } }));
    kit::wait::until(TIMEOUT, "the end of the Service", gone);
    api.patch("Gateway", NAMESPACE, "web", &json!({ "spec": { "infrastructure": infrastructure(json!({})) } }));
    wait_for_generated(api, has_address);
    api.delete("Gateway", NAMESPACE, "web");
    kit::wait::until(TIMEOUT, "the end of the Service", gone);
}

/// GatewayInvalidParametersRef, and the same of a GatewayClass.
#[test]
fn parameters_reference_is_refused_by_gateway_and_class() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, port) = (appliance.api(), appliance.http().port());
    let reference = json!({ "group": "invalid.io", "kind": "InvalidParameters", "name": "invalid" });
    api.create(&json!({
        "apiVersion": GROUP, "kind": "Gateway", "metadata": { "name": "web", "namespace": NAMESPACE },
        "spec": { "gatewayClassName": "sluicegate", "infrastructure": { "parametersRef": reference },
            "listeners": [{ "name": "http", "port": port, "protocol": "HTTP" }] },
    }));
    let gateway = api.wait_for("Gateway", NAMESPACE, "web", TIMEOUT, |one| one["status"]["listeners"].is_array());
    assert_eq!(condition(&gateway["status"]["conditions"], "Accepted"), "False InvalidParameters");
    assert_eq!(condition(&gateway["status"]["conditions"], "Programmed"), "False InvalidParameters");
    api.create(&json!({
        "apiVersion": GROUP, "kind": "GatewayClass", "metadata": { "name": "other" },
        "spec": { "controllerName": "sluicegate.dev/gateway-controller", "parametersRef": reference },
    }));
    let class = api.wait_for("GatewayClass", "", "other", TIMEOUT, |class| {
        class["status"]["conditions"][0]["reason"] == "InvalidParameters"
    });
    assert_eq!(condition(&class["status"]["conditions"], "Accepted"), "False InvalidParameters");
}
