//! GRPCRoutes: calls of gRPC as requests of HTTP/2.

use http::Request;
use kit::http2::{H2Client, H2Server, run};

use super::*;

/// GRPCExactMethodMatching, GRPCRouteHeaderMatching: by service, method and metadata, to backends that speak HTTP/2 whatever
/// their Services say.
#[test]
fn grpc_calls_are_routed_by_service_method_and_metadata() {
    let appliance = with_gateway();
    let servers = ["service", "method", "metadata"].map(|name| {
        let server = H2Server::start();
        backend(appliance.api(), NAMESPACE, name, server.address(), None);
        server
    });
    let rule = |wanted: Value, name: &str| json!({ "matches": [wanted], "backendRefs": [to(name)] });
    let metadata = json!([{ "name": "version", "value": "two" }]);
    let rules = json!([
        rule(json!({ "method": { "service": "chat.Chat" } }), "service"),
        rule(json!({ "method": { "service": "chat.Chat", "method": "Say" } }), "method"),
        rule(json!({ "method": { "service": "chat.Chat" }, "headers": metadata }), "metadata"),
    ]);
    let object = json!({
        "apiVersion": GROUP, "kind": "GRPCRoute", "metadata": { "name": "chat", "namespace": NAMESPACE },
        "spec": { "parentRefs": [{ "name": "web" }], "hostnames": [HOST], "rules": rules },
    });
    let route = serve(appliance.api(), &object);
    assert_eq!(condition(conditions(&route), "Accepted"), "True Accepted");
    let http = appliance.http();
    let call = |path: &str, version: &str| {
        let uri = format!("http://{HOST}{path}");
        let request = Request::post(uri).header("content-type", "application/grpc").header("version", version);
        let request = request.body(()).unwrap();
        run(async move {
            let (client, _ended) = H2Client::open(http).await;
            client.call(request).await.unwrap().status
        })
    };
    assert_eq!(call("/chat.Chat/Listen", "one"), 200);
    assert_eq!(call("/chat.Chat/Say", "one"), 200);
    assert_eq!(call("/chat.Chat/Listen", "two"), 200);
    call("/other.Service/Say", "one");
    assert_eq!(servers.each_ref().map(H2Server::requests), [1, 1, 1]);
}
