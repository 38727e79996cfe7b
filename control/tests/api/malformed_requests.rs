//! Malformed requests: each gets a 4xx response with a message, and nothing is stored.

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};
use sluicegate_control::api::BODY_BYTES_MAX;

use crate::support::{TestApiServer, WIDGETS};

/// APP-19
#[tokio::test]
async fn unknown_paths_methods_and_types_are_refused_in_words() {
    let server = TestApiServer::open().await;
    let one = format!("{WIDGETS}/one");
    for (method, path, code, reason) in [
        (Method::GET, "/apis/none.example/v1", 404, "NotFound"),
        (Method::GET, "/apis/none.example", 404, "NotFound"),
        (Method::GET, "/apis/test.sluicegate.dev/v9/widgets", 404, "NotFound"),
        (Method::GET, "/apis/test.sluicegate.dev/v1/namespaces/default/gizmos", 404, "NotFound"),
        (Method::GET, "/apis/test.sluicegate.dev/v1/namespaces/default/gadgets/a/status", 404, "NotFound"),
        (Method::GET, "/apis/test.sluicegate.dev/v1/widgets/one", 404, "NotFound"),
        (Method::GET, "/apis/test.sluicegate.dev/v1/namespaces/default/widgets/a/b/c", 404, "NotFound"),
        (Method::GET, "/api/v1/namespaces/default/namespaces", 404, "NotFound"),
        (Method::GET, "/api/v1/../../etc/passwd", 404, "NotFound"),
        (Method::POST, "/apis/test.sluicegate.dev/v1/widgets", 405, "MethodNotAllowed"),
        (Method::POST, one.as_str(), 405, "MethodNotAllowed"),
        (Method::PUT, WIDGETS, 405, "MethodNotAllowed"),
        (Method::OPTIONS, WIDGETS, 405, "MethodNotAllowed"),
        (Method::POST, "/version", 405, "MethodNotAllowed"),
        (Method::GET, "/healthz/unknown", 404, "NotFound"),
        (Method::GET, "/readyz/ping/x", 404, "NotFound"),
    ] {
        let (found, status) = server.ask(method.clone(), path, &json!({})).await;
        assert_eq!((found, &status["reason"]), (code, &json!(reason)), "{method} {path}: {status}");
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)));
    }
    let (code, paths) = server.get("/").await;
    assert!(code == 200 && paths["paths"].as_array().unwrap().contains(&json!("/apis")), "{paths}");
    let (code, status) = server.get_as(WIDGETS, "text/html").await;
    assert_eq!((code, &status["reason"]), (406, &json!("NotAcceptable")));
    let (code, status) = server.ask_as(Method::POST, WIDGETS, "text/plain", "{}").await;
    assert_eq!((code, &status["reason"]), (415, &json!("UnsupportedMediaType")));
}

#[tokio::test]
async fn bodies_of_the_wrong_shape_are_refused_and_not_stored() {
    let server = TestApiServer::open().await;
    let named = |rest: Value| {
        let mut body = json!({ "metadata": { "name": "one" } });
        json_patch::merge(&mut body, &rest);
        body.to_string()
    };
    let deep =
        format!("{{\"metadata\":{{\"name\":\"one\"}},\"spec\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (body, code) in [
        (String::new(), 400),
        ("{".into(), 400),
        ("[]".into(), 400),
        ("null".into(), 400),
        ("\u{0}".into(), 400),
        (deep, 400),
        ("{}".into(), 422),
        (named(json!({ "metadata": "text" })), 400),
        (named(json!({ "metadata": { "name": 5 } })), 400),
        (named(json!({ "metadata": { "name": "Upper" } })), 422),
        (named(json!({ "metadata": { "name": "../../x" } })), 422),
        (named(json!({ "metadata": { "name": "a\u{0}b" } })), 422),
        (named(json!({ "metadata": { "name": "a".repeat(300) } })), 422),
        (named(json!({ "metadata": { "labels": [] } })), 400),
        (named(json!({ "metadata": { "labels": { "a": 1 } } })), 400),
        (named(json!({ "metadata": { "labels": { "a b": "c" } } })), 422),
        (named(json!({ "metadata": { "labels": { "a": "b c" } } })), 422),
        (named(json!({ "metadata": { "annotations": { "a": "x".repeat(300_000) } } })), 422),
        (named(json!({ "metadata": { "namespace": "other" } })), 400),
        (named(json!({ "metadata": { "resourceVersion": "5" } })), 400),
        (named(json!({ "kind": "Gadget" })), 400),
        (named(json!({ "apiVersion": "v2" })), 400),
        (named(json!({ "spec": "text" })), 400),
        (named(json!({ "spec": { "size": 1e300 } })), 400),
    ] {
        let (found, status) = server.ask_as(Method::POST, WIDGETS, "application/json", body.clone()).await;
        let shown: String = body.chars().take(80).collect();
        assert_eq!(found, code, "{shown}: {status}");
        assert_eq!(status["kind"], "Status");
    }
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
        d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
        g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    for yaml in [bomb, "a: b: c", "- a", "\t", "&a [*a]", "? [a]\n: b"] {
        let (found, status) = server.ask_as(Method::POST, WIDGETS, "application/yaml", yaml).await;
        assert_eq!(found, 400, "{yaml}: {status}");
    }
    assert_eq!(server.get(WIDGETS).await.1["items"], json!([]));
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "name": "one" }, "data": { "a": "x".repeat(BODY_BYTES_MAX) } });
    let (code, status) = server.ask(Method::POST, WIDGETS, &body).await;
    assert_eq!((code, &status["reason"]), (413, &json!("RequestEntityTooLarge")));
    let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 64 * 1024]));
    let endless = Request::post(WIDGETS).body(Body::from_stream(chunks)).unwrap();
    assert_eq!(server.send(endless).await.status(), 413);
}

#[tokio::test]
async fn an_object_cannot_be_patched_beyond_the_limit() {
    let server = TestApiServer::real().await;
    let sources = "/apis/sources.knative.dev/v1/namespaces/default/pingsources";
    let half = "x".repeat(BODY_BYTES_MAX / 2);
    let spec = json!({ "schedule": "* * * * *", "data": "d", "sink": { "uri": "http://a.test/" } });
    let source = json!({ "metadata": { "name": "one" }, "spec": spec });
    let (code, status) = server.ask(Method::POST, sources, &source).await;
    assert_eq!(code, 201, "{status}");
    let path = format!("{sources}/one");
    let (code, status) = server.ask(Method::PATCH, &path, &json!({ "spec": { "data": &half } })).await;
    assert_eq!(code, 200, "{}", status["message"]);
    let overrides = json!({ "spec": { "ceOverrides": { "extensions": { "big": &half } } } });
    let (code, status) = server.ask(Method::PATCH, &path, &overrides).await;
    assert_eq!((code, &status["reason"]), (413, &json!("RequestEntityTooLarge")), "{}", status["message"]);
    // The labels of an object and the data of a map have limits of their own.
    let maps = crate::support::MAPS;
    server.ask(Method::POST, maps, &json!({ "metadata": { "name": "one" } })).await;
    let path = format!("{maps}/one");
    let value = "x".repeat(63);
    let labels: serde_json::Map<String, Value> =
        (0..4_000).map(|number| (format!("l{number}"), value.as_str().into())).collect();
    let (code, status) = server.ask(Method::PATCH, &path, &json!({ "metadata": { "labels": labels } })).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("metadata.labels")), "{status}");
    let data = json!({ "data": { "a": "x".repeat(BODY_BYTES_MAX / 2) } });
    let (code, status) = server.ask(Method::PATCH, &path, &data).await;
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (422, &json!("FieldValueTooLong")));
}

#[tokio::test]
async fn query_parameters_that_make_no_sense_are_refused() {
    let server = TestApiServer::open().await;
    for query in [
        "limit=x",
        "resourceVersion=abc",
        "labelSelector=a%20in%20(b",
        "fieldSelector=spec.size%3D1",
        "continue=%25%25",
        "includeObject=Some",
        "timeoutSeconds=soon",
    ] {
        let (code, status) = server.get(&format!("{WIDGETS}?{query}")).await;
        assert_eq!((code, &status["reason"]), (400, &json!("BadRequest")), "{query}");
    }
    for query in ["resourceVersionMatch=Nearly&resourceVersion=1", "fieldValidation=Maybe", "sendInitialEvents=true"] {
        let (code, status) = server.get(&format!("{WIDGETS}?{query}")).await;
        assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{query}");
    }
}

/// Ten thousand invalid labels were answered with four megabytes of text.
#[tokio::test]
async fn label_errors_are_reported_up_to_limit() {
    let server = TestApiServer::open().await;
    let labels: serde_json::Map<String, Value> = (0..10_000).map(|number| (format!("-{number}"), "-".into())).collect();
    let body = json!({ "metadata": { "name": "one", "labels": labels } });
    let (code, status) = server.ask(Method::POST, crate::support::MAPS, &body).await;
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!((code, causes.len()), (422, 65));
    let expected = "Too many: 20000 problems were found; the first 64 are reported";
    assert_eq!(causes[64]["message"], expected);
}

/// Each requirement is held against every object, and a long list of values was gone through for each.
#[tokio::test]
async fn a_selector_has_so_many_requirements() {
    let server = TestApiServer::open().await;
    let query = |count: usize| {
        let parts: Vec<String> = (0..count).map(|number| format!("!a{number}")).collect();
        format!("{}?labelSelector={}", crate::support::MAPS, parts.join(","))
    };
    assert_eq!(server.get(&query(256)).await.0, 200);
    let (code, refusal) = server.get(&query(257)).await;
    assert_eq!((code, &refusal["reason"]), (400, &json!("BadRequest")), "{refusal}");
}
