use std::net::SocketAddr;
use std::time::Duration;

use contract::table::{FilterDestination, MirrorFraction, RequestMatch, RouteReply, RouteRequest};
use contract::tls::TlsIdentity;

use super::*;

type PublishedTables = Arc<Mutex<Vec<RoutingTable>>>;

fn publisher() -> (Publisher, PublishedTables) {
    let tables = PublishedTables::default();
    let seen = Arc::clone(&tables);
    (Publisher::new(Arc::new(move |table| seen.lock().unwrap().push(table))), tables)
}

fn spec() -> BackendSpec {
    BackendSpec {
        concurrency_max: 1,
        when_empty: NoEndpointPolicy::Refuse,
        protocol: Protocol::Http1,
        timeouts: RequestTimeouts::NONE,
    }
}

fn rule(host: &str, key: &str) -> Vec<HostRule> {
    vec![HostRule::new([host], vec![WeightedBackend::new(key, 100)])]
}

/// APP-16: nothing leaves before everything stored is in.
#[tokio::test]
async fn no_table_leaves_before_the_first_complete_one() {
    let (publisher, tables) = publisher();
    publisher.set_backend("ns/r", spec());
    publisher.set_route("ns/a", rule("a.ns.test", "ns/r")).unwrap();
    publisher.flush().await;
    publisher.set_endpoints("ns/r", Vec::new());
    assert!(tables.lock().unwrap().is_empty());

    publisher.start();
    assert_eq!(tables.lock().unwrap().len(), 1);
    assert!(tables.lock().unwrap()[0].route("a.ns.test").is_some());
}

#[tokio::test]
async fn a_burst_of_changes_costs_one_table_and_no_change_costs_none() {
    let (publisher, tables) = publisher();
    publisher.start();
    let change = |n: usize| {
        let publisher = &publisher;
        async move {
            publisher.set_backend(&format!("ns/r{n}"), spec());
            publisher.flush().await;
        }
    };
    futures_util::future::join_all((0..100).map(change)).await;
    assert_eq!(tables.lock().unwrap().len(), 2);

    publisher.set_backend("ns/r1", spec());
    publisher.flush().await;
    assert_eq!(tables.lock().unwrap().len(), 2);
}

/// SRV-REQ-04: the first owner keeps its host, and loses it only by letting go.
#[test]
fn a_host_has_one_owner_at_a_time() {
    let (publisher, _) = publisher();
    publisher.set_route("ns/a", rule("x", "ns/r")).unwrap();
    let taken = publisher.set_route("ns/b", rule("x", "ns/r")).unwrap_err();
    assert_eq!(taken, HostConflict { host: "x".into(), owner: "ns/a".into() });
    assert!(publisher.set_route("ns/a", rule("y", "ns/r")).unwrap(), "x is free");
    assert!(!publisher.set_route("ns/b", rule("x", "ns/r")).unwrap(), "it had none before");
    assert!(!publisher.set_route("ns/b", rule("x", "ns/s")).unwrap(), "it keeps its host");
}

#[test]
fn certificates_stay_in_every_later_table() {
    let (publisher, tables) = publisher();
    publisher.set_certificates(CertificateStore::default());
    publisher.set_backend("ns/r", spec());
    publisher.start();
    publisher.set_certificates(CertificateStore::default());
    publisher.set_endpoints("ns/r", Vec::new());
    let tables = tables.lock().unwrap();
    let same = |a: usize, b: usize| Arc::ptr_eq(&tables[a].certificates, &tables[b].certificates);
    assert_eq!((tables.len(), same(0, 1), same(1, 2)), (3, false, true));
}

/// A Gateway's certificate takes no host from the operator, nor from the object that owns it.
#[test]
fn certificates_of_gateways_come_last() {
    let [operator, gateway, ingress] = ["operator", "gateway", "ingress"].map(|name| {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        TlsIdentity::from_pem(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()).unwrap()
    });
    let (publisher, tables) = publisher();
    let mut files = CertificateStore::default();
    ["a.test", "*"].iter().for_each(|host| files.insert(host, operator.clone()));
    publisher.set_certificates(files);
    let of = |hosts: &[&str], identity: &TlsIdentity, yields: bool| {
        let public = hosts.iter().map(|host| ((*host).to_owned(), identity.clone())).collect();
        ObjectCertificates { public, yields, ..ObjectCertificates::default() }
    };
    publisher.set_object_certificates("Gateway ns/g", of(&["a.test", "b.test", "c.test", "*"], &gateway, true));
    publisher.set_object_certificates("Ingress ns/i", of(&["b.test"], &ingress, false));
    publisher.start();
    let tables = tables.lock().unwrap();
    let table = tables.last().unwrap();
    for (host, wanted) in [("a.test", &operator), ("b.test", &ingress), ("c.test", &gateway), ("d.test", &operator)] {
        assert!(table.identity(Some(host), false).unwrap().has_same_chain(wanted), "{host}");
    }
}

#[test]
fn counters_outlive_tables() {
    let (publisher, tables) = publisher();
    publisher.set_backend("ns/r", spec());
    publisher.set_route("ns/a", rule("a", "ns/r")).unwrap();
    publisher.start();
    publisher.set_endpoints("ns/r", Vec::new());
    let tables = tables.lock().unwrap();
    let load = |table: &RoutingTable| Arc::clone(&table.route("a").unwrap().splits[0].backend.load);
    assert!(Arc::ptr_eq(&load(&tables[0]), &load(&tables[1])));
    assert!(Arc::ptr_eq(&load(&tables[0]), &publisher.load("ns/r")));
}

/// A Revision that is deleted and made again while its instances drain.
#[test]
fn a_backend_that_comes_back_counts_on() {
    let (publisher, tables) = publisher();
    publisher.start();
    let fleets = publisher.load("ns/r");
    publisher.remove_backend("ns/r");
    let before = tables.lock().unwrap().len();
    publisher.set_endpoints("ns/r", Vec::new());
    assert_eq!(tables.lock().unwrap().len(), before, "a good-bye is no news");

    publisher.set_backend("ns/r", spec());
    assert!(Arc::ptr_eq(&fleets, &publisher.load("ns/r")));
}

/// X-KI-05, X-KI-06: a Revision that is deleted while a path, a header, a share or a whole host leads to it. What was its
/// own has no backend, and no other rule answers it: neither by what is left of the route nor by a wildcard's.
#[test]
fn what_led_to_a_backend_that_is_gone_leads_to_nobody_else() {
    let (publisher, tables) = publisher();
    publisher.set_backend("ns/r", spec());
    publisher.set_backend("ns/s", spec());
    let whole = |key: &str| vec![WeightedBackend::new(key, 100)];
    let admin = PathRule { matches: RequestMatch::prefix("/admin"), splits: whole("ns/r"), ..PathRule::default() };
    let shared = vec![WeightedBackend::new("ns/r", 90), WeightedBackend::new("ns/s", 10)];
    let divided = HostRule { paths: vec![admin], ..HostRule::new(["a"], shared) };
    publisher.set_route("ns/a", vec![divided]).unwrap();
    publisher.set_route("ns/b", rule("b.x", "ns/r")).unwrap();
    publisher.set_route("ns/c", rule("*.x", "ns/s")).unwrap();
    publisher.start();
    let before = publisher.load("ns/r");
    let led = || -> Vec<(String, u32, NoEndpointPolicy)> {
        publisher.start();
        let tables = tables.lock().unwrap();
        let routes = [("a", "/admin"), ("a", "/"), ("b.x", "/")];
        let splits = routes.iter().flat_map(|(host, path)| {
            tables.last().unwrap().route(host).unwrap().select(&RouteRequest::internal(host, path))
        });
        splits.map(|split| (split.backend.key.to_string(), split.weight, split.backend.when_empty.clone())).collect()
    };
    let each = |gone: NoEndpointPolicy| {
        let split = |key: &str, weight, when| (key.to_owned(), weight, when);
        let (own, other) = (split("ns/r", 100, gone.clone()), split("ns/s", 10, spec().when_empty));
        [own.clone(), split("ns/r", 90, gone), other, own]
    };

    publisher.remove_backend("ns/r");
    assert_eq!(led(), each(NoEndpointPolicy::Refuse));
    assert!(!publisher.has_endpoints("ns/r"), "it is not taken for a backend");
    let wakes = NoEndpointPolicy::Wait { timeout: Duration::from_secs(1) };
    publisher.set_backend("ns/r", BackendSpec { when_empty: wakes.clone(), ..spec() });
    assert_eq!(led(), each(wakes));
    assert!(Arc::ptr_eq(&before, &publisher.load("ns/r")), "it counts on");

    publisher.remove_backend("ns/r");
    publisher.remove_route("ns/b");
    publisher.start();
    let tables = tables.lock().unwrap();
    assert_eq!(&*tables.last().unwrap().route("b.x").unwrap().splits[0].backend.key, "ns/s");
}

#[test]
fn a_static_route_names_its_addresses_and_a_star_is_any_host() {
    let (publisher, tables) = publisher();
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    publisher.set_static_route("App.Example", AddressBackend::PLAIN, &[address(1).into(), address(2).into()]);
    publisher.set_static_route("*", AddressBackend::PLAIN, &[address(3).into()]);
    publisher.start();
    let tables = tables.lock().unwrap();
    let endpoints = |host: &str| tables[0].route(host).unwrap().splits[0].backend.endpoints.clone();
    assert_eq!(endpoints("app.example").len(), 2);
    assert_eq!(endpoints("else")[0].address, address(3));
    let mut ids: Vec<_> = endpoints("app.example").iter().chain(&endpoints("x")).map(|e| e.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

/// APP-08: a change rebuilds what it affects, and nothing else.
#[test]
fn a_change_leaves_other_routes_as_they_are() {
    let (publisher, tables) = publisher();
    publisher.set_backend("ns/r", spec());
    publisher.set_backend("ns/s", spec());
    publisher.set_route("ns/a", rule("a", "ns/r")).unwrap();
    publisher.set_route("ns/b", rule("b", "ns/s")).unwrap();
    let stream = StreamSpec {
        name: "b".into(),
        event_bytes_max: 1,
        retention: RetentionPolicy::default(),
        is_closed: false,
        admission: None,
        reports_event_types: false,
        external: None,
        quota: Arc::new(ByteQuota::new("all", 0, None)),
    };
    publisher.set_stream("/brokers/ns/b", stream);
    publisher.start();
    publisher.set_endpoints("ns/r", Vec::new());
    publisher.remove_route("ns/b");
    publisher.start();

    let tables = tables.lock().unwrap();
    let same = |host: &str, of: usize, and: usize| {
        Arc::ptr_eq(tables[of].route(host).unwrap(), tables[and].route(host).unwrap())
    };
    assert!(same("b", 0, 1), "not touched");
    assert!(!same("a", 0, 1), "its backend is another one");
    assert!(same("a", 1, 2) && tables[2].route("b").is_none());
    assert!(Arc::ptr_eq(&tables[0].streams["/brokers/ns/b"], &tables[2].streams["/brokers/ns/b"]));
}

/// APP-12: addresses stay the same endpoints while they are listed, and go with the last rule.
#[test]
fn given_addresses_live_as_long_as_a_rule_names_them() {
    let (publisher, tables) = publisher();
    let [one, two] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    publisher.set_addresses("service/x", (Protocol::H2c, RequestTimeouts::EXTERNAL), None, &[one]);
    publisher.set_route("ns/a", rule("a", "service/x")).unwrap();
    publisher.start();
    publisher.set_addresses("service/x", (Protocol::H2c, RequestTimeouts::EXTERNAL), None, &[one, two]);
    publisher.start();
    let endpoints = |at: usize| {
        let tables = tables.lock().unwrap();
        tables[at].route("a").unwrap().splits[0].backend.endpoints.clone()
    };
    assert!(Arc::ptr_eq(&endpoints(0)[0], &endpoints(1)[0]));
    assert_eq!((endpoints(1).len(), publisher.has_endpoints("service/x")), (2, true));
    publisher.remove_route("ns/a");
    assert!(!publisher.has_endpoints("service/x"));
}

/// A host moves from one owner to another in one table; hosts of the command line cannot be taken.
#[test]
fn a_host_moves_and_a_fixed_one_stays() {
    let (publisher, tables) = publisher();
    publisher.set_static_route("fixed", AddressBackend::PLAIN, &[SocketAddr::from(([127, 0, 0, 1], 1)).into()]);
    publisher.set_backend("ns/r", spec());
    publisher.set_route("ns/a", rule("*.x", "ns/r")).unwrap();
    publisher.set_route("ns/c", rule("fixed", "ns/r")).unwrap();
    publisher.start();
    publisher.remove_route("ns/a");
    publisher.remove_route("ns/c");
    publisher.set_route("ns/b", rule("*.x", "ns/r")).unwrap();
    publisher.start();
    let tables = tables.lock().unwrap();
    assert!(tables.iter().all(|table| table.route("y.x").is_some()));
    assert!(tables.iter().all(|table| &*table.route("fixed").unwrap().splits[0].backend.key == "static/fixed"));
}

/// A host that the command line gives up goes back to its object, in one table.
#[test]
fn removed_static_route_gives_its_host_back() {
    let (publisher, tables) = publisher();
    let address = SocketAddr::from(([127, 0, 0, 1], 1)).into();
    publisher.set_static_route("fixed", AddressBackend::PLAIN, &[address]);
    publisher.set_static_route("only", AddressBackend::PLAIN, &[address]);
    publisher.set_backend("ns/r", spec());
    publisher.set_route("ns/a", rule("fixed", "ns/r")).unwrap();
    publisher.start();
    publisher.remove_static_route("fixed");
    publisher.remove_static_route("only");
    let tables = tables.lock().unwrap();
    let last = tables.last().unwrap();
    assert_eq!(&*last.route("fixed").unwrap().splits[0].backend.key, "ns/r");
    assert!(last.route("only").is_none());
}

/// Clients are told of an object that is not ready, until its route is set or the object goes; the public is not told of hosts
/// for callers inside.
#[test]
fn host_of_unready_object_is_told_until_it_is_served() {
    let (publisher, tables) = publisher();
    let unserved = UnservedHosts {
        hosts: vec![("a".to_owned(), false), ("a.ns".to_owned(), true)],
        sentence: "Service ns/a".into(),
    };
    publisher.set_not_ready("ns/a", unserved.clone());
    publisher.set_not_ready("ns/b", UnservedHosts { hosts: vec![("b".to_owned(), false)], ..unserved });
    publisher.start();
    publisher.set_backend("ns/r", spec());
    publisher.set_route("ns/a", rule("a", "ns/r")).unwrap();
    publisher.remove_route("ns/b");
    publisher.start();
    let tables = tables.lock().unwrap();
    let told = |at: usize, host: &str, cluster_local: bool| {
        let request = RouteRequest { cluster_local, ..RouteRequest::internal(host, "/") };
        tables[at].not_ready(&request).map(|host| host.sentence.to_string())
    };
    assert_eq!(told(0, "A:80", false).as_deref(), Some("Service ns/a"));
    assert_eq!((told(0, "a.ns", false), told(0, "a.ns", true).is_some()), (None, true));
    for host in ["a", "a.ns", "b"] {
        assert_eq!(told(1, host, true), None, "{host}");
    }
}

/// The filters of a share come after those of its rule, and a mirror's backend is followed like any other.
#[test]
fn filters_of_a_rule_and_its_shares_are_compiled_together() {
    let (publisher, tables) = publisher();
    publisher.start();
    publisher.set_backend("ns/r", spec());
    publisher.set_backend("ns/m", spec());
    let filters = |value: &str, request: Option<u64>| {
        let mut filters = RouteFilterRule::default();
        filters.request.set("X-A", value).unwrap();
        filters.response.add("X-B", value).unwrap();
        filters.timeouts.request = request.map(Duration::from_secs);
        filters
    };
    let destination = FilterRuleDestination::Backend("ns/m".to_owned());
    let mirrors = vec![MirrorRule { destination, fraction: MirrorFraction::ALL }];
    let of_rule = RouteFilterRule { mirrors, ..filters("rule", Some(7)) };
    let mut share = WeightedBackend::new("ns/r", 1);
    share.filters = Some(Arc::new(filters("share", None)));
    let gone = RouteFilterRule { reply: Some(RouteReply::Status(500)), ..RouteFilterRule::default() };
    let paths = vec![
        PathRule { splits: vec![share], filters: Some(Arc::new(of_rule)), ..PathRule::default() },
        PathRule { matches: RequestMatch::prefix("/gone"), filters: Some(Arc::new(gone)), ..PathRule::default() },
    ];
    publisher.set_route("ns/a", vec![HostRule { paths, ..HostRule::new(["a"], Vec::new()) }]).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    publisher.set_endpoints("ns/m", vec![Arc::new(Endpoint::new(address))]);
    publisher.start();

    let tables = tables.lock().unwrap();
    let route = tables.last().unwrap().route("a").unwrap();
    let share = |path: &str| &route.select(&RouteRequest::internal("a", path))[0];
    assert_eq!(share("/gone/x").reply(), Some(&RouteReply::Status(500)));
    let filters = share("/").filters.as_ref().unwrap();
    assert_eq!(filters.request.headers().collect::<Vec<_>>(), [("X-A", "share")]);
    assert_eq!(filters.response.written().collect::<Vec<_>>(), [("X-B", "rule"), ("X-B", "share")]);
    assert_eq!(filters.timeouts.as_ref().unwrap().total, Duration::from_secs(7));
    let FilterDestination::Backend(mirror) = &filters.mirrors[0].destination else { panic!("{filters:?}") };
    assert_eq!((&*mirror.key, mirror.endpoints.len()), ("ns/m", 1));
}

/// A private Route is served under its private host alone, from the first table on, and under its own hosts again later.
#[test]
fn private_route_has_no_host_for_clients() {
    let (publisher, tables) = publisher();
    publisher.set_backend("ns/r", spec());
    publisher.set_private("ns/a", true);
    publisher.set_route("ns/a", rule("a.ns.test", "ns/r")).unwrap();
    publisher.start();
    let private = publisher.private_host("ns/a");
    let key = Arc::clone(&tables.lock().unwrap().last().unwrap().internal_key);
    assert!(!private.contains(&*key), "backends and access logs see the host, and the key opens the events listener");
    let hosts = |wanted: &str| tables.lock().unwrap().last().unwrap().hosts.find(wanted).is_some();
    assert_eq!((hosts("a.ns.test"), hosts(&private)), (false, true));
    publisher.set_private("ns/a", false);
    publisher.start();
    assert_eq!((hosts("a.ns.test"), hosts(&private)), (true, false));
    publisher.set_private("ns/a", true);
    publisher.remove_route("ns/a");
    publisher.start();
    assert_eq!((hosts("a.ns.test"), hosts(&private)), (false, false));
}
