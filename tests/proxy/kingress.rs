//! Another control plane's Ingress objects, served by the built binary: the requirements of upstream's conformance suite
//! for ingresses.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use http::Request;
use kit::api::{condition, is_ready};
use kit::http2::{H2Client, H2Server, run};
use kit::kingress::{backend, core_service, ingress, path, rule, split};
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestUpstream};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "registry.example.com/hello:v1";
const HOST: &str = "app.example.com";

fn appliance() -> Appliance {
    ApplianceSetup::new(BIN).flag("cluster-local", "127.0.0.1:0").flag("trusted-proxies", "127.0.0.0/8").start()
}

fn serve(api: KitApi, object: &Value) -> Value {
    api.create(object);
    api.wait_ready("Ingress", NAMESPACE, object["metadata"]["name"].as_str().unwrap(), TIMEOUT)
}

/// What the upstream saw of a call.
fn seen(appliance: &Appliance, call: HttpCall) -> Value {
    let response = call.host(HOST).send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
    response.json()
}

/// APP-12, X-KI-04, X-KI-05: by whole segments of the path, the longest first, and by headers.
#[test]
fn path_and_headers_choose_the_backend() {
    let appliance = appliance();
    let names = ["root", "foo", "deep", "beta"];
    let upstreams = names.map(TestUpstream::start);
    for (name, upstream) in names.iter().zip(&upstreams) {
        backend(appliance.api(), name, "http", &[upstream.address()]);
    }
    let beta = with(path("", "beta"), "/headers", json!({ "X-Ring": { "exact": "beta" } }));
    let paths = [path("", "root"), path("/foo", "foo"), path("/foo/deep", "deep"), beta];
    serve(appliance.api(), &ingress("paths", json!([rule(HOST, &paths)])));

    for (target, name) in [
        ("/", "root"),
        ("/foo", "foo"),
        ("/foo/", "foo"),
        ("/foo?x=/deep", "foo"),
        ("/foobar", "root"),
        ("/foo/deep/er", "deep"),
        ("/foo/deeper", "foo"),
    ] {
        assert_eq!(seen(&appliance, HttpCall::get(target))["name"], name, "{target}");
    }
    let ring = |value| seen(&appliance, HttpCall::get("/").header("x-ring", value))["name"].clone();
    assert_eq!((ring("beta"), ring("Beta")), (json!("beta"), json!("root")));

    let only = ingress("only", json!([rule("only.example.com", &[path("/foo", "foo")])]));
    serve(appliance.api(), &only);
    let other = HttpCall::get("/bar").host("only.example.com").send(appliance.http());
    assert_eq!(other.status, 404, "{other}");
    assert!(other.text() == "not found\n" && other.reason().contains("matches this path"), "{other}");
}

/// X-KI-06, X-KI-07, X-KI-08: shares of the requests, headers set by path and by split, another Host.
#[test]
fn splits_divide_requests_and_change_them() {
    let appliance = appliance();
    let [one, two] = ["one", "two"].map(TestUpstream::start);
    backend(appliance.api(), "one", "http", &[one.address()]);
    backend(appliance.api(), "two", "http", &[two.address()]);
    let second = with(split("two", 30), "/appendHeaders", json!({ "X-Who": "split", "X-Two": "2" }));
    let whole = json!({
        "splits": [split("one", 70), second],
        "appendHeaders": { "X-Who": "path" }, "rewriteHost": "inner.ns.svc",
    });
    serve(appliance.api(), &ingress("splits", json!([rule(HOST, &[whole])])));

    let mut counts = BTreeMap::<String, u32>::new();
    for _ in 0..1_000 {
        let seen = seen(&appliance, HttpCall::get("/").header("x-who", "client"));
        let name = seen["name"].as_str().unwrap().to_owned();
        let headers = &seen["headers"];
        let expected = if name == "one" { ("path", None) } else { ("split", Some("2")) };
        assert_eq!((headers["x-who"].as_str().unwrap(), headers["x-two"].as_str()), expected);
        assert_eq!(headers["host"], "inner.ns.svc");
        assert_eq!(headers["x-forwarded-host"], HOST);
        *counts.entry(name).or_default() += 1;
    }
    // Within ten points, as upstream's suite has it.
    assert!((600..=800).contains(&counts["one"]), "{counts:?}");
}

/// X-KI-03, X-KI-02: what is for callers inside is a 404 on the public listener, under all of its names.
#[test]
fn a_cluster_local_rule_is_for_the_private_listener() {
    let appliance = appliance();
    let upstream = TestUpstream::start("inside");
    backend(appliance.api(), "inside", "http", &[upstream.address()]);
    let local = with(rule("in.ns.svc.cluster.local", &[path("", "inside")]), "/visibility", json!("ClusterLocal"));
    serve(appliance.api(), &ingress("both", json!([local, rule(HOST, &[path("", "inside")])])));

    let status = |host: &str, to| HttpCall::get("/").host(host).send(to).status;
    for host in ["in.ns.svc.cluster.local", "in.ns.svc", "in.ns"] {
        assert_eq!((status(host, appliance.http()), status(host, appliance.private())), (404, 200), "{host}");
    }
    assert_eq!((status(HOST, appliance.http()), status(HOST, appliance.private())), (200, 200));
}

/// X-KI-03: the internal paths of a host are not public, though the host is, in whatever order
/// the rules come.
#[test]
fn cluster_local_rule_stays_internal_next_to_public_one() {
    let appliance = appliance();
    let [inside, public] = ["inside", "public"].map(TestUpstream::start);
    for (name, upstream) in [("inside", &inside), ("public", &public)] {
        backend(appliance.api(), name, "http", &[upstream.address()]);
    }
    let local = |host: &str, path: Value| with(rule(host, &[path]), "/visibility", json!("ClusterLocal"));
    let tagged = with(path("", "inside"), "/headers", json!({ "X-Ring": { "exact": "beta" } }));
    let rules = json!([
        local("admin.example.com", path("/admin", "inside")),
        rule("admin.example.com", &[path("", "public")]),
        rule("pub.example.com", &[path("/pub", "public")]),
        local("pub.example.com", path("", "inside")),
        rule("beta.example.com", &[path("", "public")]),
        local("beta.example.com", tagged),
        rule("short.ns", &[path("/pub", "public")]),
        local("short.ns.svc.cluster.local", path("", "inside")),
    ]);
    serve(appliance.api(), &ingress("mixed", rules));

    for (host, target, outside, within) in [
        ("admin.example.com", "/admin", "public", "inside"),
        ("admin.example.com", "/", "public", "public"),
        ("pub.example.com", "/pub", "public", "public"),
        ("pub.example.com", "/secret", "404", "inside"),
        ("beta.example.com", "/", "public", "inside"),
        ("short.ns", "/pub", "public", "public"),
        ("short.ns", "/secret", "404", "inside"),
    ] {
        let met = |to| {
            let answer = HttpCall::get(target).host(host).header("X-Ring", "beta").send(to);
            match answer.status {
                200 => answer.json()["name"].as_str().unwrap().to_owned(),
                status => status.to_string(),
            }
        };
        let met = (met(appliance.http()), met(appliance.private()));
        assert_eq!((met.0.as_str(), met.1.as_str()), (outside, within), "{host}{target}");
    }
    let shown = HttpCall::get("/debug/routes?host=admin.example.com").send(appliance.admin()).json();
    let ways = shown["routes"][0]["rules"].as_array().unwrap();
    let shown: Vec<_> = ways.iter().map(|way| (&way["path"], &way["cluster_local"])).collect();
    assert_eq!(shown, [(&json!("/admin"), &json!(true)), (&json!(""), &json!(false))]);
}

/// X-KI-05, X-KI-06: requests of a deleted Revision were answered by another owner of the host.
#[test]
fn requests_of_a_deleted_revision_are_nobody_elses() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("app", IMAGE, "first"));
    api.wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    // The newest one would be made again.
    api.patch("Service", NAMESPACE, "app", &greets(IMAGE, "second"));
    api.wait_ready("Revision", NAMESPACE, "app-00002", TIMEOUT);
    let other = TestUpstream::start("other");
    backend(api, "other", "http", &[other.address()]);
    let shared = json!({ "path": "/shared", "splits": [split("app-00001", 90), split("other", 10)] });
    let tagged = with(path("", "app-00001"), "/headers", json!({ "X-Ring": { "exact": "beta" } }));
    let paths = [path("/admin", "app-00001"), shared, tagged, path("", "other")];
    serve(api, &ingress("of-one", json!([rule(HOST, &paths)])));
    let call =
        |target: &str, ring: &str| HttpCall::get(target).host(HOST).header("X-Ring", ring).send(appliance.http());
    assert_eq!((call("/admin", "").status, call("/", "beta").status), (200, 200));
    assert_eq!(other.requests(), 0);

    api.delete("Revision", NAMESPACE, "app-00001");
    let refused = kit::wait::until(TIMEOUT, "the Revision to be gone", || {
        Some(call("/admin", "")).filter(|answer| answer.status != 200)
    });
    assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("1")), "{refused}");
    assert!(refused.text().contains("default/app-00001"), "{refused}");
    assert_eq!((call("/", "beta").status, other.requests()), (503, 0));
    let shared: Vec<_> = (0..200).map(|_| call("/shared", "").status).collect();
    let theirs = shared.iter().filter(|status| **status == 200).count() as u64;
    assert!((1..=60).contains(&theirs) && theirs == other.requests(), "{theirs} of 200 at 10 %");
    assert!(shared.iter().all(|status| [200, 503].contains(status)));
}

/// X-KI-15, X-KI-16: probes are answered with the hash of what is routed, and never reach a backend.
#[test]
fn probe_gets_hash_of_routes() {
    let appliance = appliance();
    let upstream = TestUpstream::start("one");
    backend(appliance.api(), "one", "http", &[upstream.address()]);
    serve(appliance.api(), &ingress("probed", json!([rule(HOST, &[path("/x", "one")])])));
    let probe = |target: &str, hash: Option<&str>| {
        let call = HttpCall::get(target).host(HOST).header("K-Network-Probe", "probe");
        let call = hash.into_iter().fold(call, |call, hash| call.header("K-Network-Hash", hash));
        let response = call.send(appliance.http());
        (response.status, response.header("K-Network-Hash").map(str::to_owned))
    };

    let (status, first) = probe("/x", Some("override"));
    let first = first.unwrap();
    assert!(status == 200 && first.len() == 64 && first.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
    assert_eq!(probe("/x", Some("mine")), (200, Some("mine".to_owned())));
    assert_eq!(probe("/x", None).0, 400);
    assert_eq!(probe("/y", Some("override")).0, 404);
    assert_eq!(upstream.requests(), 0);

    let rules = json!([rule(HOST, &[path("/x", "one"), path("/y", "one")])]);
    appliance.api().patch("Ingress", NAMESPACE, "probed", &json!({ "spec": { "rules": rules } }));
    appliance.api().wait_ready("Ingress", NAMESPACE, "probed", TIMEOUT);
    let (status, second) = probe("/y", Some("override"));
    assert!(status == 200 && second != Some(first), "another spec has another hash");
    let plain = seen(&appliance, HttpCall::get("/x").header("K-Network-Hash", "from outside"));
    assert_eq!(plain["headers"]["k-network-hash"], Value::Null);
}

/// X-KI-14, APP-09: while an Ingress goes from one backend to another and back, no request fails.
#[test]
fn a_change_of_backend_fails_no_request() {
    let appliance = appliance();
    let [one, two] = ["one", "two"].map(TestUpstream::start);
    backend(appliance.api(), "one", "http", &[one.address()]);
    backend(appliance.api(), "two", "http", &[two.address()]);
    serve(appliance.api(), &ingress("turns", json!([rule(HOST, &[path("", "one")])])));

    let (stop, http) = (Arc::new(AtomicBool::new(false)), appliance.http());
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut answers = 0;
                while !stop.load(SeqCst) {
                    let response = HttpCall::get("/").host(HOST).send(http);
                    assert_eq!(response.status, 200, "{response}");
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for turn in 0..20 {
        let (name, other) = if turn % 2 == 0 { ("two", "one") } else { ("one", "two") };
        let rules = json!([rule(HOST, &[path("", name)])]);
        appliance.api().patch("Ingress", NAMESPACE, "turns", &json!({ "spec": { "rules": rules } }));
        appliance.api().wait_ready("Ingress", NAMESPACE, "turns", TIMEOUT);
        // APP-10, X-KI-17: ready means that every core has it.
        for _ in 0..5 {
            assert_ne!(seen(&appliance, HttpCall::get("/"))["name"], other, "turn {turn}");
        }
    }
    stop.store(true, SeqCst);
    assert!(callers.into_iter().all(|caller| caller.join().unwrap() > 0));
}

/// X-KI-01, X-KI-18, X-KI-17: another class is left alone; ours says where it is served, and why not yet.
#[test]
fn the_status_tells_how_far_it_is_and_a_foreign_class_has_none() {
    let appliance = appliance();
    let api = appliance.api();
    let foreign = with(
        ingress("foreign", json!([rule("foreign.example.com", &[path("", "late")])])),
        "/metadata/annotations",
        json!({ "networking.knative.dev/ingress-class": "kourier.ingress.networking.knative.dev" }),
    );
    api.create(&foreign);
    let rules = json!([rule(HOST, &[path("", "late")])]);
    api.create(&ingress("late", rules.clone()));
    let says = |reason: &'static str| {
        api.wait_for("Ingress", NAMESPACE, "late", TIMEOUT, move |object| {
            condition(object, "Ready").is_some_and(|ready| ready["reason"] == reason)
        })
    };
    says("ServiceNotFound");
    let upstream = TestUpstream::start("late");
    let port = json!([{ "name": "http", "port": 80 }]);
    core_service(
        api,
        &json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "late", "namespace": NAMESPACE },
                 "spec": { "ports": port } }),
    );
    says("NoEndpoints");
    let address = upstream.address();
    api.create(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "late-x", "namespace": NAMESPACE,
                      "labels": { "kubernetes.io/service-name": "late" } },
        "ports": [{ "name": "http", "port": address.port() }],
        "endpoints": [{ "addresses": [address.ip()] }],
    }));
    let ready = api.wait_ready("Ingress", NAMESPACE, "late", TIMEOUT);
    assert_eq!(ready["status"]["publicLoadBalancer"]["ingress"][0]["ip"], "127.0.0.1");
    assert!(ready["status"]["privateLoadBalancer"]["ingress"][0]["domainInternal"].is_string());
    assert_eq!(seen(&appliance, HttpCall::get("/"))["name"], "late");

    // A second one for the same host waits until the first lets go.
    api.create(&ingress("second", rules));
    api.wait_for("Ingress", NAMESPACE, "second", TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "NotOwned")
    });
    api.delete("Ingress", NAMESPACE, "late");
    api.wait_ready("Ingress", NAMESPACE, "second", TIMEOUT);
    assert_eq!(seen(&appliance, HttpCall::get("/"))["name"], "late");

    let left = api.get("Ingress", NAMESPACE, "foreign").unwrap();
    assert_eq!(left["status"], Value::Null);
    assert_eq!(HttpCall::get("/").host("foreign.example.com").send(appliance.http()).status, 404);
}

/// X-KI-11, RT-PORT-08: a port called `h2c` is spoken to in HTTP/2, stream by stream.
#[test]
fn a_port_named_h2c_is_spoken_to_in_http2() {
    let appliance = appliance();
    let instance = H2Server::start();
    backend(appliance.api(), "grpc", "h2c", &[instance.address()]);
    serve(appliance.api(), &ingress("h2c", json!([rule(HOST, &[path("", "grpc")])])));
    let answer = run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        client.call(Request::get(format!("http://{HOST}/")).body(()).unwrap()).await.unwrap()
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(instance.requests(), 1);
}

/// RT-PORT-07: a port called `http1` is spoken to in HTTP/1.1, with no word of an upgrade, whatever the client speaks.
#[test]
fn a_port_named_http1_is_spoken_to_in_http1_only() {
    let appliance = appliance();
    let upstream = TestUpstream::start("one");
    backend(appliance.api(), "plain", "http1", &[upstream.address()]);
    serve(appliance.api(), &ingress("http1", json!([rule(HOST, &[path("", "plain")])])));
    let answer = run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        client.call(Request::get(format!("http://{HOST}/")).body(()).unwrap()).await.unwrap()
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(seen["headers"]["upgrade"], Value::Null, "{seen}");
    assert_eq!(seen["headers"]["http2-settings"], Value::Null, "{seen}");
    assert_eq!(upstream.requests(), 1, "no preface was tried before");
}

/// APP-16: a restarted appliance routes by its Ingresses before it accepts anything.
#[test]
fn a_restart_serves_what_was_served() {
    let mut appliance = appliance();
    let upstream = TestUpstream::start("one");
    backend(appliance.api(), "one", "http", &[upstream.address()]);
    serve(appliance.api(), &ingress("stays", json!([rule(HOST, &[path("", "one")])])));
    appliance.restart();
    assert_eq!(seen(&appliance, HttpCall::get("/"))["name"], "one");
}

/// X-KI-08 as upstream's suite has it: a public host leads to the private listener, under another Host.
#[test]
fn a_rewritten_host_may_lead_to_our_private_listener() {
    let appliance = appliance();
    let (api, upstream) = (appliance.api(), TestUpstream::start("one"));
    backend(api, "one", "http", &[upstream.address()]);
    let local = rule("in.ns.svc.cluster.local", &[path("", "one")]);
    let object = ingress("inner", json!([with(local, "/visibility", json!("ClusterLocal"))]));
    let served = serve(api, &object);
    let name = &served["status"]["privateLoadBalancer"]["ingress"][0]["domainInternal"];
    let front = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "front", "namespace": NAMESPACE },
                        "spec": { "type": "ExternalName", "externalName": name } });
    core_service(api, &front);
    let outer = with(path("", "front"), "/rewriteHost", json!("in.ns.svc.cluster.local"));
    serve(api, &ingress("outer", json!([rule(HOST, &[outer])])));
    let seen = seen(&appliance, HttpCall::get("/"));
    assert_eq!((&seen["name"], &seen["headers"]["host"]), (&json!("one"), &json!("in.ns.svc.cluster.local")));
}

/// APP-12: a backend may be a name outside, or a Service of the appliance itself, at zero or not.
#[test]
fn a_backend_may_be_a_name_or_a_service_of_ours() {
    const IMAGE: &str = "example.com/hello";
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let (api, upstream) = (appliance.api(), TestUpstream::start("named"));
    let named = |name: &str, to: &str, port: u16| {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": { "type": "ExternalName", "externalName": to,
                          "ports": [{ "port": 80, "targetPort": port }] } })
    };
    core_service(api, &named("outside", "localhost", upstream.address().port()));
    core_service(api, &named("own", "hello.default.svc.cluster.local", 80));
    serve(api, &ingress("outside", json!([rule(HOST, &[path("", "outside")])])));
    assert_eq!(seen(&appliance, HttpCall::get("/"))["name"], "named");

    api.create(&ingress("own", json!([rule("own.example.com", &[path("", "own")])])));
    api.create(&service("hello", IMAGE, "me"));
    api.wait_for("Ingress", NAMESPACE, "own", TIMEOUT, is_ready);
    let response = HttpCall::get("/").host("own.example.com").send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
    assert!(response.text().contains("me"), "{response}");
}

/// X-KI-18: what a status calls our listeners are core Services with their address and port, and stay so over a restart.
#[test]
fn the_listeners_are_services_by_the_names_that_a_status_has() {
    let mut appliance = appliance();
    let upstream = TestUpstream::start("one");
    backend(appliance.api(), "one", "http", &[upstream.address()]);
    let object = serve(appliance.api(), &ingress("app", json!([rule(HOST, &[path("", "one")])])));
    for restarted in [false, true] {
        if restarted {
            appliance.restart();
        }
        for (field, listener) in
            [("publicLoadBalancer", appliance.http()), ("privateLoadBalancer", appliance.private())]
        {
            let called = object["status"][field]["ingress"][0]["domainInternal"].as_str().unwrap();
            let (name, namespace) = called.strip_suffix(".svc.cluster.local").unwrap().split_once('.').unwrap();
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            let service = HttpCall::get(&path).send(appliance.api().address()).json();
            assert_eq!(service["spec"]["type"], "LoadBalancer");
            assert_eq!(service["spec"]["ports"][0]["port"], listener.port(), "{restarted}");
            assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ip"], listener.ip().to_string());
        }
    }
}
