use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct ServiceFixture {
    service: Value,
    endpoints: Value,
    slices: Vec<Value>,
    revision: Value,
    route: Value,
}

fn some<T: DeserializeOwned>(object: &Value) -> Option<Arc<T>> {
    (!object.is_null()).then(|| Arc::new(serde_json::from_value(object.clone()).unwrap()))
}

impl ServiceLookup for ServiceFixture {
    fn service(&self, _: &str, _: &str) -> Option<Arc<Service>> {
        some(&self.service)
    }
    fn endpoints(&self, _: &str, _: &str) -> Option<Arc<Endpoints>> {
        some(&self.endpoints)
    }
    fn slices(&self, _: &str, _: &str) -> Vec<Arc<EndpointSlice>> {
        self.slices.iter().filter_map(some).collect()
    }
    fn revision(&self, _: &str, _: &str) -> Option<Arc<Revision>> {
        some(&self.revision)
    }
    fn route(&self, _: &str, _: &str) -> Option<Arc<Route>> {
        some(&self.route)
    }
}

fn split(port: Value) -> IngressBackendSplit {
    let split = json!({"serviceNamespace": "ns", "serviceName": "s", "servicePort": port});
    serde_json::from_value(split).unwrap()
}

fn service(ports: Value) -> Value {
    json!({"spec": {"type": "ClusterIP", "ports": ports}})
}

fn addresses(objects: &ServiceFixture, port: Value) -> Vec<String> {
    match resolve_backend(&split(port), false, objects).unwrap() {
        SplitBackend::Addresses { addresses, .. } => addresses.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

/// APP-12: Endpoints without a selector; ports by number and by name.
#[test]
fn a_service_leads_to_its_ready_endpoints() {
    let objects = ServiceFixture {
        service: service(json!([{"name": "http", "port": 80}, {"name": "h2c", "port": 81}])),
        endpoints: json!({"subsets": [{
            "addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}],
            "notReadyAddresses": [{"ip": "10.0.0.9"}],
            "ports": [{"name": "http", "port": 8080}, {"name": "h2c", "port": 8081}]
        }]}),
        ..ServiceFixture::default()
    };
    assert_eq!(addresses(&objects, json!(80)), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    assert_eq!(addresses(&objects, json!("h2c")), ["10.0.0.1:8081", "10.0.0.2:8081"]);
    let protocol = |port: Value| match resolve_backend(&split(port), false, &objects) {
        Ok(SplitBackend::Addresses { protocol, .. }) => protocol,
        other => panic!("{other:?}"),
    };
    assert_eq!((protocol(json!(80)), protocol(json!(81))), (Protocol::Http1, Protocol::H2c));
    let by_tls = resolve_backend(&split(json!(80)), true, &objects).unwrap();
    assert!(matches!(by_tls, SplitBackend::Addresses { protocol: Protocol::H2c, .. }), "{by_tls:?}");
    let why = resolve_backend(&split(json!(82)), false, &objects).unwrap_err();
    assert_eq!((why.reason, why.message.as_str()), ("PortNotFound", "Service \"ns/s\" has no port 82."));
}

#[test]
fn slices_come_before_endpoints_and_leave_out_what_is_not_ready() {
    let slice = |ip: &str, ready: Value| {
        json!({"addressType": "IPv4", "ports": [{"name": "", "port": 9}],
               "endpoints": [{"addresses": [ip], "conditions": {"ready": ready}}]})
    };
    let objects = ServiceFixture {
        service: service(json!([{"port": 80}])),
        endpoints: json!({"subsets": [{"addresses": [{"ip": "10.0.0.7"}], "ports": [{"port": 7}]}]}),
        slices: vec![
            slice("10.0.0.2", json!(true)),
            slice("10.0.0.3", json!(false)),
            slice("10.0.0.1", json!(null)),
            slice("10.0.0.2", json!(true)),
        ],
        ..ServiceFixture::default()
    };
    assert_eq!(addresses(&objects, json!(80)), ["10.0.0.1:9", "10.0.0.2:9"]);
}

#[test]
fn an_external_name_is_an_address_a_name_or_a_route_of_ours() {
    let mut objects = ServiceFixture::default();
    let mut named = |name: &str, route: Value| {
        objects.service = json!({"spec": {"type": "ExternalName", "externalName": name}});
        objects.route = route;
        resolve_backend(&split(json!(81)), false, &objects).unwrap()
    };
    let http1 = Protocol::Http1;
    let address = |text: &str| vec![text.parse().unwrap()];
    assert_eq!(
        named("127.0.0.1", json!(null)),
        SplitBackend::Addresses { protocol: http1, addresses: address("127.0.0.1:81") }
    );
    let outside = SplitBackend::Name { protocol: http1, host: "up.example.com".to_owned(), port: 81 };
    assert_eq!(named("Up.example.com", json!(null)), outside);
    let route = json!({"metadata": {"name": "app"}, "status": {"traffic": [
        {"revisionName": "app-1", "percent": 30}, {"revisionName": "app-2", "percent": 70},
        {"revisionName": "app-3", "tag": "t", "percent": 0}
    ]}});
    let revisions = vec![("other/app-1".to_owned(), 30), ("other/app-2".to_owned(), 70)];
    assert_eq!(named("app.other.svc.cluster.local", route), SplitBackend::Revisions(revisions));
}

#[test]
fn without_a_service_a_revision_or_route_of_that_name_stands_in() {
    let mut objects = ServiceFixture { revision: json!({"metadata": {"name": "s"}}), ..ServiceFixture::default() };
    let one = SplitBackend::Revisions(vec![("ns/s".to_owned(), 1)]);
    assert_eq!(resolve_backend(&split(json!(80)), false, &objects), Ok(one));
    objects.revision = Value::Null;
    let why = resolve_backend(&split(json!(80)), false, &objects).unwrap_err();
    assert_eq!((why.reason, why.message.as_str()), ("ServiceNotFound", "Service \"ns/s\" not found."));
    objects.route = json!({"metadata": {"name": "s"}, "status": {"traffic": []}});
    assert_eq!(resolve_backend(&split(json!(80)), false, &objects).unwrap_err().reason, "RouteNotReady");
}
