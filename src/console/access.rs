//! What callers of the console may do. The API decides it by its roles: the console asks in the caller's name.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use control::api::PeerIdentity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::limits::REVIEW_BYTES_MAX;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Requests by POST that change nothing: what the caller may do, and as which user the API sees it.
const OWN_REVIEWS: [&str; 2] = [REVIEWS, "/apis/authentication.k8s.io/v1/selfsubjectreviews"];
/// Objects that the console patches: group and version, and the plural of the kind.
const PATCHED: [(&str, &str); 2] =
    [("eventing.knative.dev/v1", "triggers"), ("messaging.knative.dev/v1", "subscriptions")];

/// The path of the admin listener that sends events again.
const REPLAY: &str = "/debug/events/replay";

/// Whether the console passes this request to the API, which then authorizes it.
pub(super) fn passes(method: &Method, path: &str) -> bool {
    match *method {
        Method::GET | Method::HEAD => true,
        Method::POST => OWN_REVIEWS.contains(&path),
        Method::PATCH => PATCHED.iter().any(|(group, plural)| is_object(path, group, plural)),
        _ => false,
    }
}

/// Whether a path names one object of a kind itself. An escaped character might stand for a further segment.
fn is_object(path: &str, group: &str, plural: &str) -> bool {
    let below = path.strip_prefix("/apis/").and_then(|rest| rest.strip_prefix(group));
    let Some(rest) = below.and_then(|rest| rest.strip_prefix("/namespaces/")) else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    matches!(parts[..], [namespace, kind, name] if kind == plural && !namespace.is_empty() && !name.is_empty())
        && !path.contains('%')
}

/// Copies the caller's identity: the connection's peer, the token, and the user that it impersonates.
pub(super) fn copy_identity(head: &Parts, request: &mut Request) {
    if let Some(peer) = head.extensions.get::<ConnectInfo<PeerIdentity>>() {
        request.extensions_mut().insert(peer.clone());
    }
    for (name, value) in &head.headers {
        if name == header::AUTHORIZATION || name.as_str().starts_with("impersonate-") {
            request.headers_mut().append(name.clone(), value.clone());
        }
    }
}

#[derive(Deserialize)]
struct ReplaySubscriberQuery {
    trigger: Option<String>,
}

/// A replay sends events to a subscriber, so the caller must be able to change that Trigger or Subscription. Other paths are
/// granted by roles with `nonResourceURLs`.
///
/// # Errors
/// The API does not grant it; the response says why.
pub(super) async fn check_admin(api: &Router, head: &Parts) -> Result<(), Response> {
    let path = head.uri.path();
    if path != REPLAY {
        return check_path(api, head, path).await;
    }
    let target = Query::<ReplaySubscriberQuery>::try_from_uri(&head.uri).ok().and_then(|Query(target)| target.trigger);
    let Some(attributes) = target.as_deref().and_then(replay_attributes) else {
        let why = "trigger: write trigger/NAMESPACE/NAME or subscription/NAMESPACE/NAME\n";
        return Err((StatusCode::BAD_REQUEST, why).into_response());
    };
    check(api, head, json!({ "resourceAttributes": attributes })).await
}

/// # Errors
/// The API does not grant the path; the response says why.
pub(super) async fn check_path(api: &Router, head: &Parts, path: &str) -> Result<(), Response> {
    let verb = head.method.as_str().to_ascii_lowercase();
    let verb = if verb == "head" { "get" } else { &verb };
    check(api, head, json!({ "nonResourceAttributes": { "path": path, "verb": verb } })).await
}

/// The right that a replay takes.
fn replay_attributes(target: &str) -> Option<Value> {
    let mut parts = target.split('/');
    let (group, resource) = match parts.next()? {
        "trigger" => ("eventing.knative.dev", "triggers"),
        "subscription" => ("messaging.knative.dev", "subscriptions"),
        _ => return None,
    };
    let (namespace, name) = (parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !namespace.is_empty() && !name.is_empty();
    is_whole
        .then(|| json!({ "verb": "patch", "group": group, "resource": resource, "namespace": namespace, "name": name }))
}

async fn check(api: &Router, head: &Parts, spec: Value) -> Result<(), Response> {
    // The API trusts requests without a peer, because they come from inside the process.
    if head.extensions.get::<ConnectInfo<PeerIdentity>>().is_none() {
        return Err((StatusCode::UNAUTHORIZED, "this connection has no peer\n").into_response());
    }
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec.clone(),
    });
    let mut request = super::in_name_of(head, Method::POST, REVIEWS, Body::from(review.to_string()));
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let answer = super::answer(api.clone(), request).await;
    if answer.status() != StatusCode::CREATED {
        return Err(answer); // unauthenticated, as a rule
    }
    let body = to_bytes(answer.into_body(), REVIEW_BYTES_MAX).await.unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    if review["status"]["allowed"] == true {
        return Ok(());
    }
    let asked =
        [&spec["resourceAttributes"], &spec["nonResourceAttributes"]].into_iter().find(|asked| asked.is_object());
    let part = |name: &str| asked.and_then(|asked| asked[name].as_str()).unwrap_or_default().to_owned();
    let what = match part("path") {
        path if path.is_empty() => format!("{} {}/{}", part("resource"), part("namespace"), part("name")),
        path => format!("the path {path}"),
    };
    let why = format!("the API's roles do not let you {} {what}\n", part("verb"));
    Err((StatusCode::FORBIDDEN, why).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_patches_of_subscribers_and_own_reviews_pass() {
        let trigger = "/apis/eventing.knative.dev/v1/namespaces/default/triggers/orders";
        let subscription = "/apis/messaging.knative.dev/v1/namespaces/default/subscriptions/one";
        for (method, path) in [
            (Method::GET, "/api/v1/secrets"),
            (Method::HEAD, "/apis"),
            (Method::POST, REVIEWS),
            (Method::PATCH, trigger),
            (Method::PATCH, subscription),
        ] {
            assert!(passes(&method, path), "{method} {path}");
        }
        for (method, path) in [
            (Method::POST, "/api/v1/namespaces/default/configmaps"),
            (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews"),
            (Method::PUT, trigger),
            (Method::DELETE, trigger),
            (Method::PATCH, "/apis/eventing.knative.dev/v1/namespaces/default/triggers"),
            (Method::PATCH, "/apis/eventing.knative.dev/v1/namespaces/default/triggers/"),
            (Method::PATCH, "/apis/eventing.knative.dev/v1/namespaces/default/triggers/orders/status"),
            (Method::PATCH, "/apis/eventing.knative.dev/v1/namespaces/default/triggers/a%2Fstatus"),
            (Method::PATCH, "/apis/eventing.knative.dev/v1/namespaces/default/brokers/main"),
            (Method::PATCH, "/api/v1/namespaces/default/secrets/one"),
            (Method::OPTIONS, "/api"),
        ] {
            assert!(!passes(&method, path), "{method} {path}");
        }
    }

    #[test]
    fn replay_takes_the_right_to_patch_its_subscriber() {
        let right = replay_attributes("trigger/ns/orders").unwrap();
        assert_eq!(
            (&right["verb"], &right["resource"], &right["name"]),
            (&json!("patch"), &json!("triggers"), &json!("orders"))
        );
        assert_eq!(replay_attributes("subscription/ns/one").unwrap()["group"], "messaging.knative.dev");
        for bad in ["", "ns/orders", "broker/ns/one", "trigger/ns", "trigger//one", "trigger/ns/one/more"] {
            assert_eq!(replay_attributes(bad), None, "{bad}");
        }
    }
}
