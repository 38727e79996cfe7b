//! Addresses for Gateways that name none.

use super::run_time_listeners::{answers_at, free_address, http, serve_all};
use super::*;

fn address(gateway: &Value) -> &Value {
    &gateway["status"]["addresses"][0]["value"]
}

/// HTTPRouteMultipleGateways, GatewayStaticAddresses: Gateways on one port serve the same hosts at addresses of their own.
#[test]
fn gateways_of_one_port_are_isolated_by_addresses_of_a_pool() {
    let mut appliance = ApplianceSetup::new(BIN).flag("gateway-addresses", "127.0.0.61-127.0.0.63").start();
    let _upstreams = backends(&appliance, ["one", "two"]);
    let at = free_address();
    for (name, wanted) in [("a", "127.0.0.61"), ("b", "127.0.0.62")] {
        let gateway = gateway(&appliance, name, json!([http("http", at)]));
        assert_eq!(condition(&gateway["status"]["conditions"], "Programmed"), "True Programmed");
        assert_eq!(address(&gateway), wanted);
    }
    serve_all(&appliance, "a", "one");
    serve_all(&appliance, "b", "two");
    let on = |ip: &str| SocketAddr::new(ip.parse().unwrap(), at.port());
    let both = || ["127.0.0.61", "127.0.0.62"].map(|ip| answers_at(on(ip), "any.test"));
    assert_eq!(both(), ["one", "two"]);

    // One names its address, which the pool leaves to it, so the next has none until another is gone.
    let api = appliance.api();
    let named = json!({ "gatewayClassName": "sluicegate", "listeners": [http("http", at)],
        "addresses": [{ "type": "IPAddress", "value": "127.0.0.63" }] });
    let metadata = json!({ "name": "named", "namespace": NAMESPACE });
    api.create(&json!({ "apiVersion": GROUP, "kind": "Gateway", "metadata": metadata, "spec": named }));
    api.wait_for("Gateway", NAMESPACE, "named", TIMEOUT, |one| address(one) == "127.0.0.63");
    let waiting = gateway(&appliance, "waiting", json!([http("http", at)]));
    let conditions = &waiting["status"]["conditions"];
    assert_eq!(condition(conditions, "Programmed"), "False AddressNotUsable");
    assert!(conditions.to_string().contains("--gateway-addresses"), "{waiting:#}");
    api.delete("Gateway", NAMESPACE, "a");
    api.wait_for("Gateway", NAMESPACE, "waiting", TIMEOUT, |one| address(one) == "127.0.0.61");

    appliance.restart_on_same_ports();
    assert_eq!(answers_at(on("127.0.0.62"), "any.test"), "two");
    let gateway = appliance.api().get("Gateway", NAMESPACE, "waiting").unwrap();
    assert_eq!(address(&gateway), "127.0.0.61");
}
