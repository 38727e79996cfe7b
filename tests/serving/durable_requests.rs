//! Requests that are stored before they are answered, through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const HOST: &str = "app.default.localhost";
const ANNOTATION: &str = "/metadata/annotations";

/// An appliance with a Service `app` that stores requests as `which` says.
fn appliance(which: &str) -> Appliance {
    let setup = ApplianceSetup::new(BIN).flag("workers", "2").hello_image(IMAGE);
    let appliance = setup.start();
    appliance.api().create(&durable(which));
    appliance.api().wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    appliance
}

fn durable(which: &str) -> Value {
    with(service("app", IMAGE, "world"), ANNOTATION, json!({ "sluicegate.dev/durable-requests": which }))
}

fn send(appliance: &Appliance, call: HttpCall) -> HttpResponse {
    call.host(HOST).send(appliance.http())
}

/// Sends a request that is stored, and returns where its result will be.
fn stored(appliance: &Appliance, call: HttpCall) -> String {
    let accepted = send(appliance, call);
    assert_eq!(accepted.status, 202, "{accepted}");
    assert_eq!(accepted.header("sluicegate-request-state"), Some("pending"), "{accepted}");
    accepted.header("location").unwrap().to_owned()
}

/// The result, once it is there.
fn result(appliance: &Appliance, location: &str) -> HttpResponse {
    wait::until(TIMEOUT, "the result", || {
        let found = send(appliance, HttpCall::get(location));
        (found.header("sluicegate-request-state") == Some("done")).then_some(found)
    })
}

/// A POST is answered at once, reaches the Service as it was sent, and its response is at the location, from each core and after
/// a restart. Safe requests are not stored.
#[test]
fn stored_request_reaches_its_service_and_result_is_kept() {
    let mut appliance = appliance("async");
    let direct = send(&appliance, HttpCall::get("/"));
    assert!(direct.text().starts_with("Hello world"), "{direct}");

    let location = stored(&appliance, HttpCall::post("/echo?a=b").body("a letter"));
    let (root, id) = location.rsplit_once('/').unwrap();
    assert_eq!((root, id.len()), ("/.sluicegate/requests", 32));
    let echoed = result(&appliance, &location);
    assert_eq!((echoed.status, echoed.text().as_str()), (200, "a letter"), "{echoed}");
    assert_eq!(echoed.header("content-type"), Some("application/octet-stream"));

    let location = stored(&appliance, HttpCall::post("/headers").header("X-One", "1").header("Sluicegate-Other", "x"));
    let seen: Value = result(&appliance, &location).json();
    let header = |name: &str| {
        let all = seen.as_array().unwrap();
        all.iter().find(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned())
    };
    assert_eq!(header("x-one").as_deref(), Some("1"), "{seen}");
    assert_eq!(
        (header("host").as_deref(), header("sluicegate-other"), header("sluicegate-internal")),
        (Some(HOST), None, None)
    );

    for _ in 0..4 {
        assert_eq!(result(&appliance, &location).status, 200, "whichever core the client reaches");
    }
    appliance.terminate();
    appliance.restart();
    assert_eq!(result(&appliance, &location).json(), seen);
}

/// A result is found by its id alone and by the same Service; the intake is closed to clients of the events listener.
#[test]
fn unknown_results_and_other_ways_in_are_refused() {
    let appliance = appliance("async");
    let api = appliance.api();
    let other = with(durable("async"), "/metadata/name", json!("other"));
    api.create(&other);
    api.wait_ready("Service", NAMESPACE, "other", TIMEOUT);
    let location = stored(&appliance, HttpCall::post("/echo").body("x"));
    result(&appliance, &location);

    let elsewhere = HttpCall::get(&location).host("other.default.localhost").send(appliance.http());
    assert_eq!(elsewhere.status, 404, "another Service's");
    let guess = format!("/.sluicegate/requests/{}", "0".repeat(32));
    for (path, status) in [(guess.as_str(), 404), ("/.sluicegate/requests/x", 404), ("/.sluicegate/requests/", 404)] {
        assert_eq!(send(&appliance, HttpCall::get(path)).status, status, "{path}");
    }
    let large = "a".repeat((1 << 20) + 1);
    assert_eq!(send(&appliance, HttpCall::post("/echo").body(large)).status, 413);

    for path in [format!("/requests/default/app{location}"), "/requests/default/app/echo".to_owned()] {
        assert_eq!(HttpCall::get(&path).send(appliance.events()).status, 404, "{path}");
        let posted = HttpCall::post(&path).header("Sluicegate-Internal", "guess").send(appliance.events());
        assert_eq!(posted.status, 404, "{path}");
    }
    let event = kit::TestEvent::new("1").binary("/requests/default/app");
    assert_eq!(event.send(appliance.events()).status, 404, "no event either");
}

/// `respond-async` stores a request alone that asks for it (RFC 7240).
#[test]
fn preference_decides_where_the_annotation_lets_it() {
    let appliance = appliance("respond-async");
    let direct = send(&appliance, HttpCall::post("/echo").body("now"));
    assert_eq!((direct.status, direct.text().as_str()), (200, "now"));
    for preference in ["respond-async", "wait=10, Respond-Async", "respond-async; x=y"] {
        let location = stored(&appliance, HttpCall::post("/echo").header("Prefer", preference).body("later"));
        assert_eq!(result(&appliance, &location).text(), "later", "{preference}");
    }
    let direct = send(&appliance, HttpCall::post("/echo").header("Prefer", "respond-asynchronously").body("now"));
    assert_eq!(direct.status, 200);
    let refused = appliance.api().try_create(&with(durable("later"), "/metadata/name", json!("wrong")));
    assert!(refused.status >= 400 && refused.text().contains("expected async or respond-async"), "{refused}");
}

/// A request that its Service rejects is a dead letter: it is listed, traced, and sent again. Its result is the rejection, then
/// the new response. The counts of the stream add up.
#[test]
fn rejected_request_is_a_dead_letter_and_can_be_redriven() {
    let setup = ApplianceSetup::new(BIN).flag("image", &format!("{IMAGE}={BIN} example sink --status 400"));
    let appliance = setup.start();
    let api = appliance.api();
    api.create(&durable("async"));
    api.wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    let location = stored(&appliance, HttpCall::post("/").body("x"));
    assert_eq!(result(&appliance, &location).status, 400);
    let event = |words: &[&str]| {
        let admin = appliance.admin().to_string();
        let output = Command::new(BIN).arg("event").args(words).args(["--admin", &admin]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let id = location.rsplit('/').next().unwrap();
    wait::until(TIMEOUT, "the dead letter", || event(&["list", "--dead-letters"]).contains(id).then_some(()));
    assert!(event(&["trace", id]).contains("default/app: dropped"), "{}", event(&["trace", id]));

    assert!(event(&["redrive", "--trigger", "service/default/app"]).contains("1 events sent"));
    wait::until(TIMEOUT, "the counts to add up", || {
        let count = |name: &str| appliance.metric(&format!("sluicegate_subscriber_{name}_total"), "default/app");
        let ends = count("delivered") + count("filtered") + count("dropped");
        (count("offered") == ends && count("dropped") == 2 && ends == 4).then_some(())
    });
}
