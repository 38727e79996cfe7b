//! Debug queries on the admin listener: connections, routes, and the waits of cold
//! requests.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{SocketAddr, TcpListener};

use kit::http2::{self, H2Client};
use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
const IMAGE: &str = "example.com/hello";
const NEVER: &str = "example.com/never";

fn shown(appliance: &Appliance, path: &str) -> Value {
    let answer = HttpCall::get(path).send(appliance.admin());
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

/// The one connection in this state, once there is one.
fn in_state(appliance: &Appliance, state: &str) -> Value {
    wait::until(TIMEOUT, state, || {
        let all = shown(appliance, "/debug/connections");
        all["connections"].as_array().unwrap().iter().find(|one| one["state"] == state).cloned()
    })
}

#[test]
fn open_connections_are_shown_with_what_they_do() {
    let (upstream, silent) = (TestUpstream::start("one"), TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let appliance = ApplianceSetup::new(BIN)
        .route(HOST, upstream.address())
        .route("silent.example.com", silent.local_addr().unwrap())
        .flag("workers", "2")
        .flag("cluster-local", "127.0.0.1:0")
        .start();
    assert_eq!(shown(&appliance, "/debug/connections")["open"], 0);

    let mut idle = HttpConnection::open(appliance.private());
    for _ in 0..3 {
        assert_eq!(idle.call(&HttpCall::get("/").host(HOST)).status, 200);
    }
    let one = in_state(&appliance, "idle");
    assert_eq!((&one["requests"], &one["streams"]), (&json!(3), &json!(0)), "{one}");
    assert_eq!((&one["listener"], &one["protocol"]), (&json!("cluster-local"), &json!("HTTP/1.1")), "{one}");
    assert!(one["received_bytes"].as_u64() > Some(100) && one["sent_bytes"].as_u64() > Some(300), "{one}");
    assert!(one["peer"].as_str().unwrap().parse::<SocketAddr>().is_ok() && one["core"].as_u64() < Some(2));

    let mut waits = HttpConnection::open(appliance.http());
    waits.send(&HttpCall::get("/").host("silent.example.com").to_bytes(appliance.http()));
    let one = in_state(&appliance, "active");
    assert_eq!((&one["requests"], &one["streams"], &one["listener"]), (&json!(1), &json!(1), &json!("http")));

    http2::run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let begin = |host: &str| {
            let request = http::Request::get(format!("http://{host}/")).body(()).unwrap();
            let client = client.clone();
            async move { client.begin(request, true).await.unwrap() }
        };
        let _open = [begin("silent.example.com").await, begin("silent.example.com").await];
        loop {
            let all = shown(&appliance, "/debug/connections");
            let found = all["connections"].as_array().unwrap().iter().find(|one| one["streams"] == 2).cloned();
            if let Some(one) = found {
                assert_eq!((&one["protocol"], &one["requests"]), (&json!("HTTP/2"), &json!(2)), "{one}");
                assert!(one["received_bytes"].as_u64() > Some(40), "{one}");
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    });

    // Bounded: those with a request first; and closed connections are gone.
    let most = shown(&appliance, "/debug/connections?limit=1");
    assert_eq!((&most["returned"], &most["connections"][0]["state"]), (&json!(1), &json!("active")), "{most}");
    drop((idle, waits, silent)); // an instance that goes ends the requests inside it
    wait::until(TIMEOUT, "everybody to be gone", || {
        (shown(&appliance, "/debug/connections")["open"] == 0).then_some(())
    });
    assert_eq!(HttpCall::get("/debug/connections?limit=x").send(appliance.admin()).status, 400);
}

#[test]
fn routes_are_shown_as_the_cores_have_them() {
    let upstream = TestUpstream::start("one");
    let appliance = ApplianceSetup::new(BIN)
        .hello_image(IMAGE)
        .route(HOST, upstream.address())
        .flag("route", &format!("*.wild.example.com=h2c://{}", upstream.address()))
        .start();
    let concurrency = "/spec/template/spec/containerConcurrency";
    appliance.api().create(&with(service("hello", IMAGE, "x"), concurrency, json!(3)));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);

    let own = shown(&appliance, "/debug/routes?host=hello.default.localhost");
    assert_eq!((&own["returned"], &own["routes"][0]["cluster_local"]), (&json!(1), &json!(false)), "{own}");
    let key = own["routes"][0]["rules"][0]["splits"][0]["backend"].as_str().unwrap().to_owned();
    assert_eq!(key, "default/hello-00001");
    let backend = &own["backends"][&key];
    assert_eq!((&backend["concurrency_max"], &backend["protocol"]), (&json!(3), &json!("http1")), "{own}");
    assert!(backend["queue_timeout_ms"].as_u64() > Some(0) && backend["timeouts_ms"]["total"] == 300_000, "{own}");
    assert_eq!(backend["ready_instances"], backend["instances"].as_array().unwrap().len());

    let met = shown(&appliance, "/debug/routes?host=a.wild.example.com");
    assert_eq!(met["backends"]["static/*.wild.example.com"]["protocol"], "h2", "{met}");
    assert_eq!(met["backends"]["static/*.wild.example.com"]["queue_timeout_ms"], Value::Null);
    assert_eq!(shown(&appliance, "/debug/routes?host=nobody.example.com")["returned"], 0);

    let all = shown(&appliance, "/debug/routes");
    assert_eq!(all["returned"], all["hosts"]);
    let hosts: Vec<_> = all["routes"].as_array().unwrap().iter().map(|route| route["host"].clone()).collect();
    assert!(hosts.contains(&json!("*.wild.example.com")) && hosts.contains(&json!(HOST)), "{hosts:?}");
    let first = shown(&appliance, "/debug/routes?limit=1");
    assert_eq!((&first["returned"], &first["hosts"]), (&json!(1), &all["hosts"]));
}

/// A Service without an instance, whatever its image.
fn asleep(setup: ApplianceSetup, image: &str) -> Appliance {
    let appliance = setup.hello_image(IMAGE).flag("image", &format!("{NEVER}=sleep 600")).start();
    let api = appliance.api();
    let allowed = json!({ "data": { "allow-zero-initial-scale": "true" } });
    api.patch("ConfigMap", "knative-serving", "config-autoscaler", &allowed);
    let none = "/spec/template/metadata/annotations/autoscaling.knative.dev~1initial-scale";
    api.create(&with(service("hello", image, "x"), none, json!("0")));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    appliance
}

const COLD: &str = "hello.default.localhost";

/// `name;dur=MS` in its order.
fn phases(header: &str) -> Vec<(String, f64)> {
    let phase = |text: &str| {
        let (name, ms) = text.trim().split_once(";dur=").unwrap();
        (name.to_owned(), ms.parse().unwrap())
    };
    header.split(',').map(phase).collect()
}

/// RT-ISO-09: a request that started its instance gets its wait, once, and the part that was the instance's own start; warm
/// ones get nothing.
#[test]
fn cold_request_gets_server_timing() {
    let appliance = asleep(ApplianceSetup::new(BIN), IMAGE);
    let cold = HttpCall::get("/").host(COLD).send(appliance.http());
    assert_eq!(cold.status, 200, "{cold}");
    let reported = phases(cold.header("server-timing").unwrap());
    let names: Vec<_> = reported.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["queue", "spawn", "listen", "first-byte"], "{cold}");
    assert!(reported[0].1 > 0.0 && reported[0].1 >= reported[2].1, "the listening lies within the queue: {reported:?}");
    let warm = HttpCall::get("/").host(COLD).send(appliance.http());
    assert_eq!((warm.status, warm.header("server-timing")), (200, None));
    for phase in ["queue", "spawn", "listen", "first-byte"] {
        let label = format!("phase=\"{phase}\"");
        assert_eq!(appliance.metric("sluicegate_cold_start_seconds_count", &label), 1, "{phase}");
    }
}

/// ... by HTTP/2 too; and with the setting off no client gets it, but it is counted.
#[test]
fn server_timing_works_over_http2_and_can_be_off() {
    for (setup, is_reported) in
        [(ApplianceSetup::new(BIN), true), (ApplianceSetup::new(BIN).flag("server-timing", "off"), false)]
    {
        let appliance = asleep(setup, IMAGE);
        http2::run(async {
            let (client, _ended) = H2Client::open(appliance.http()).await;
            let request = || http::Request::get(format!("http://{COLD}/")).body(()).unwrap();
            let cold = client.call(request()).await.unwrap();
            let reported = cold.headers.get("server-timing").map(|value| value.to_str().unwrap().to_owned());
            assert_eq!((cold.status, reported.is_some()), (200, is_reported), "{cold:?}");
            assert!(reported.is_none_or(|reported| phases(&reported).len() == 4));
            assert!(client.call(request()).await.unwrap().headers.get("server-timing").is_none());
        });
        assert_eq!(appliance.metric("sluicegate_cold_start_seconds_count", "queue"), 1);
    }
}

#[test]
fn who_waits_for_an_instance_is_shown_waiting() {
    let appliance = asleep(ApplianceSetup::new(BIN), NEVER);
    let mut waits = HttpConnection::open(appliance.http());
    waits.send(&HttpCall::get("/").host(COLD).to_bytes(appliance.http()));
    let one = in_state(&appliance, "queued");
    assert_eq!((&one["requests"], &one["protocol"]), (&json!(1), &json!("HTTP/1.1")), "{one}");
    let backend = shown(&appliance, &format!("/debug/routes?host={COLD}"))["backends"]["default/hello-00001"].clone();
    assert_eq!((&backend["queued_requests"], &backend["ready_instances"]), (&json!(1), &json!(0)), "{backend}");
}
