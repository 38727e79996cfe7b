//! Listeners of Gateways on ports that no socket of the appliance has: opened, isolated and closed at run time.

use std::net::TcpListener;
use std::time::Duration;

use kit::HttpConnection;
use kit::background_clients::{BackgroundClients, keep_alive, one_by_one};

use super::listeners::{listener, tls_secret};
use super::*;
use crate::tls::client::{BOTH, TlsAuthority};

/// An address on which nothing listens.
pub(super) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn http(name: &str, at: SocketAddr) -> Value {
    json!({ "name": name, "port": at.port(), "protocol": "HTTP" })
}

fn https(name: &str, at: SocketAddr, hostname: &str, secret: &str) -> Value {
    json!({ "name": name, "port": at.port(), "protocol": "HTTPS", "hostname": hostname,
        "tls": { "certificateRefs": [{ "name": secret }] } })
}

/// A route of this Gateway for all hosts of its listeners.
fn serve_all(appliance: &Appliance, gateway: &str, upstream: &str) -> Value {
    let mut object = route(upstream, json!([{ "backendRefs": [to(upstream)] }]));
    object["spec"]["parentRefs"] = json!([{ "name": gateway }]);
    object["spec"].as_object_mut().unwrap().remove("hostnames");
    serve(appliance.api(), &object)
}

fn answers_at(at: SocketAddr, host: &str) -> String {
    let response = HttpCall::get("/").host(host).send(at);
    response.header("x-upstream").map_or_else(|| response.status.to_string(), ToOwned::to_owned)
}

fn is_closed(at: SocketAddr) -> bool {
    HttpConnection::try_open(at).is_err()
}

fn wait_closed(at: SocketAddr) {
    kit::wait::until(TIMEOUT, "the listener is closed", || is_closed(at).then_some(()));
}

/// Programmed says that all cores accept; with the Gateway its listener goes, and what is idle there is closed.
#[test]
fn listener_opens_and_closes_with_its_gateway() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "2").start();
    let _upstreams = backends(&appliance, ["app"]);
    let (first, second) = (free_address(), free_address());
    let status = gateway(&appliance, "web", json!([http("a", first), http("b", second)]));
    assert_eq!(condition(&status["status"]["conditions"], "Programmed"), "True Programmed");
    assert_eq!(status["status"]["addresses"], json!([{ "type": "IPAddress", "value": "127.0.0.1" }]));
    assert_eq!(condition(conditions(&serve_all(&appliance, "web", "app")), "Accepted"), "True Accepted");
    assert_eq!([first, second].map(|at| answers_at(at, "any.test")), ["app", "app"]);
    assert_eq!(get(&appliance, "any.test", "/").status, 404, "hosts of a listener are its own");

    let mut idle = HttpConnection::open(second);
    assert_eq!(idle.call(&HttpCall::get("/").host("any.test")).status, 200);
    let api = appliance.api();
    api.patch("Gateway", NAMESPACE, "web", &json!({ "spec": { "listeners": [http("a", first)] } }));
    wait_closed(second);
    assert_eq!(idle.rest(), Some(Vec::new()), "the connection ends in order");
    assert_eq!(answers_at(first, "any.test"), "app");
    api.delete("Gateway", NAMESPACE, "web");
    wait_closed(first);

    gateway(&appliance, "web", json!([http("a", first)]));
    assert_eq!(answers_at(first, "any.test"), "app", "it is opened again with its routes");
}

/// GatewayModifyListeners: a listener that cannot be opened says why, others go on, and it is tried again.
#[test]
fn port_in_use_is_reported_and_opened_once_it_is_free() {
    let appliance = ApplianceSetup::new(BIN).start();
    let _upstreams = backends(&appliance, ["app"]);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, free) = (other.local_addr().unwrap(), free_address());
    let status = gateway(&appliance, "web", json!([http("taken", taken), http("free", free)]));
    let conditions = &listener(&status, "taken")["conditions"];
    assert_eq!(condition(conditions, "Accepted"), "False PortUnavailable");
    assert_eq!(condition(conditions, "Programmed"), "False Invalid");
    assert!(conditions.to_string().contains(&format!("{taken} is in use by another program")), "{conditions}");
    assert_eq!(condition(&listener(&status, "free")["conditions"], "Programmed"), "True Programmed");
    assert_eq!(condition(&status["status"]["conditions"], "Programmed"), "True Programmed");
    serve_all(&appliance, "web", "app");
    assert_eq!(answers_at(free, "any.test"), "app");
    drop(other);
    appliance.api().wait_for("Gateway", NAMESPACE, "web", TIMEOUT, |gateway| {
        condition(&listener(gateway, "taken")["conditions"], "Programmed") == "True Programmed"
    });
    assert_eq!(answers_at(taken, "any.test"), "app");
}

/// GatewayStaticAddresses: a Gateway listens on its own addresses; one that the host does not have is told.
#[test]
fn gateway_listens_on_its_addresses() {
    let appliance = ApplianceSetup::new(BIN).start();
    let _upstreams = backends(&appliance, ["app"]);
    let (api, port) = (appliance.api(), free_address().port());
    let with_address = |name: &str, address: &str| {
        let listener = json!({ "name": "http", "port": port, "protocol": "HTTP" });
        api.create(&json!({
            "apiVersion": GROUP, "kind": "Gateway", "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": { "gatewayClassName": "sluicegate", "listeners": [listener],
                "addresses": [{ "type": "IPAddress", "value": address }] },
        }));
        api.wait_for("Gateway", NAMESPACE, name, TIMEOUT, |gateway| gateway["status"]["listeners"].is_array())
    };
    let own = with_address("own", "127.0.0.77");
    assert_eq!(condition(&own["status"]["conditions"], "Programmed"), "True Programmed");
    assert_eq!(own["status"]["addresses"], json!([{ "type": "IPAddress", "value": "127.0.0.77" }]));
    serve_all(&appliance, "own", "app");
    assert_eq!(answers_at(SocketAddr::from(([127, 0, 0, 77], port)), "any.test"), "app");
    assert!(is_closed(SocketAddr::from(([127, 0, 0, 1], port))));

    let foreign = with_address("foreign", "192.0.2.7");
    assert_eq!(condition(&foreign["status"]["conditions"], "Programmed"), "False AddressNotUsable");
    assert!(foreign["status"]["conditions"].to_string().contains("192.0.2.7"), "{foreign:#}");
    assert!(foreign["status"]["addresses"].is_null());
}

/// GatewayHTTPListenerIsolation: a listener has the routes of its own hostname, even where it has none for a path.
#[test]
fn listeners_of_one_port_have_their_own_routes() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (at, _upstreams) = (free_address(), backends(&appliance, ["any", "wild", "one"]));
    let named = |name: &str, hostname: Option<&str>| json!({ "name": name, "port": at.port(), "protocol": "HTTP", "hostname": hostname });
    let listeners = [named("any", None), named("wild", Some("*.example.com")), named("one", Some("one.example.com"))];
    gateway(&appliance, "web", json!(listeners));
    for name in ["any", "wild", "one"] {
        let path = json!({ "path": { "type": "PathPrefix", "value": format!("/{name}") } });
        let mut object = route(name, json!([{ "matches": [path], "backendRefs": [to(name)] }]));
        object["spec"]["parentRefs"] = json!([{ "name": "web", "sectionName": name }]);
        object["spec"]["hostnames"] = json!(["one.example.com", "two.example.com", "other.test"]);
        serve(appliance.api(), &object);
    }
    for (host, path, answer) in [
        ("one.example.com", "/one", "one"),
        ("one.example.com", "/wild", "404"),
        ("one.example.com", "/any", "404"),
        ("two.example.com", "/wild", "wild"),
        ("two.example.com", "/any", "404"),
        ("other.test", "/any", "any"),
    ] {
        let response = HttpCall::get(path).host(host).send(at);
        let found = response.header("x-upstream").map_or_else(|| response.status.to_string(), ToOwned::to_owned);
        assert_eq!(found, answer, "{host}{path}");
    }
}

/// Two Gateways with one hostname show their own certificates and serve their own routes.
#[test]
fn gateways_on_different_ports_are_isolated() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, authorities) = (appliance.api(), [TlsAuthority::new(), TlsAuthority::new()]);
    let (ports, _upstreams) = ([free_address(), free_address()], backends(&appliance, ["one", "two"]));
    for ((name, authority), at) in ["one", "two"].into_iter().zip(&authorities).zip(ports) {
        api.create(&tls_secret(authority, "secure.test", NAMESPACE, name));
        gateway(&appliance, name, json!([https("https", at, "secure.test", name)]));
        serve_all(&appliance, name, name);
    }
    let call = HttpCall::get("/");
    for ((name, authority), at) in ["one", "two"].into_iter().zip(&authorities).zip(ports) {
        let response = authority.client(BOTH).call(at, "secure.test", &call).unwrap();
        assert_eq!(response.header("x-upstream"), Some(name), "{response}");
    }
    assert!(authorities[0].client(BOTH).call(ports[1], "secure.test", &call).is_err(), "another certificate");
    assert!(authorities[0].client(BOTH).call(ports[0], "other.test", &call).is_err(), "no listener has this name");
}

/// HTTPRouteHTTPSListenerDetectMisdirectedRequests: RFC 9110 15.5.20 for hosts of other listeners, 404 for unknown ones.
#[test]
fn request_for_another_listener_of_the_connection_is_misdirected() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, authority, at) = (appliance.api(), TlsAuthority::new(), free_address());
    let _upstreams = backends(&appliance, ["app"]);
    api.create(&tls_secret(&authority, "a.test", NAMESPACE, "a"));
    api.create(&tls_secret(&authority, "*.b.test", NAMESPACE, "b"));
    gateway(&appliance, "web", json!([https("a", at, "a.test", "a"), https("b", at, "*.b.test", "b")]));
    serve_all(&appliance, "web", "app");
    for (server_name, host, status) in [
        ("a.test", "a.test", 200),
        ("a.test", "x.b.test", 421),
        ("a.test", "unknown.test", 404),
        ("x.b.test", "y.b.test", 200),
        ("x.b.test", "a.test", 421),
    ] {
        let mut connection = authority.client(BOTH).connect(at, server_name).unwrap();
        let response = connection.call(&HttpCall::get("/").host(host)).unwrap();
        assert_eq!(response.status, status, "{host} by {server_name}: {response}");
    }
}

/// Ports of the appliance and of the system are not for Gateways; the reason names the flag.
#[test]
fn ports_that_gateways_may_not_open_are_refused() {
    let allowed = free_address();
    let ports = format!("80,{}", allowed.port());
    let appliance = ApplianceSetup::new(BIN).flag("gateway-ports", &ports).start();
    let listeners = json!([http("admin", appliance.admin()), http("other", free_address()), http("allowed", allowed)]);
    let status = gateway(&appliance, "web", listeners);
    let conditions = |name: &str| &listener(&status, name)["conditions"];
    for (name, flag) in [("admin", "--admin"), ("other", "--gateway-ports")] {
        assert_eq!(condition(conditions(name), "Accepted"), "False PortUnavailable");
        assert!(conditions(name).to_string().contains(flag), "{status:#}");
    }
    assert_eq!(condition(conditions("allowed"), "Programmed"), "True Programmed");
}

/// An address has one protocol. The older Gateway has it, and the younger one gets it afterwards.
#[test]
fn older_gateway_keeps_an_address_with_another_protocol() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, authority, at) = (appliance.api(), TlsAuthority::new(), free_address());
    let _upstreams = backends(&appliance, ["app"]);
    api.create(&tls_secret(&authority, "a.test", NAMESPACE, "a"));
    gateway(&appliance, "older", json!([http("http", at)]));
    kit::wait::rest(Duration::from_millis(1100)); // times of creation have whole seconds
    let younger = gateway(&appliance, "younger", json!([https("https", at, "a.test", "a")]));
    let conditions = &listener(&younger, "https")["conditions"];
    assert_eq!(condition(conditions, "Conflicted"), "True ProtocolConflict");
    assert!(conditions.to_string().contains("default/older"), "{conditions}");
    assert_eq!(condition(&younger["status"]["conditions"], "Programmed"), "False Invalid");
    api.delete("Gateway", NAMESPACE, "older");
    api.wait_for("Gateway", NAMESPACE, "younger", TIMEOUT, |gateway| {
        condition(&gateway["status"]["conditions"], "Programmed") == "True Programmed"
    });
    serve_all(&appliance, "younger", "app");
    assert_eq!(authority.client(BOTH).call(at, "a.test", &HttpCall::get("/")).unwrap().status, 200);
}

/// Listeners of Gateways are handed over too: no connection is refused. A start opens them before it is ready (APP-16).
#[test]
fn listeners_outlive_hot_restarts_and_starts() {
    let mut current = ApplianceSetup::new(BIN).flag("workers", "2").start();
    let (at, _upstreams) = (free_address(), backends(&current, ["app"]));
    gateway(&current, "web", json!([http("http", at)]));
    serve_all(&current, "web", "app");
    let mut clients = BackgroundClients::new();
    clients.add(keep_alive(at, |_| HttpCall::get("/").host(HOST), 200, Duration::ZERO));
    clients.add(one_by_one(at, HOST));
    for _ in 0..2 {
        clients.goes_on(100);
        let next = current.successor();
        clients.goes_on(100);
        assert_eq!(current.wait().code(), Some(0), "{}", current.stderr());
        clients.goes_on(100);
        current = next;
    }
    clients.end();
    current.kill();
    wait_closed(at);
    current.restart();
    assert_eq!(answers_at(at, HOST), "app", "served from the ready line on");
    assert_eq!(current.terminate().code(), Some(0));
    assert!(is_closed(at), "no process accepts connections any more");
}
