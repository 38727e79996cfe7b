//! POST of `serviceaccounts/NAME/token`: a token for an account.

use axum::response::Response;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::{Value, json};

use crate::access::accounts::{Account, SECONDS_DEFAULT, SECONDS_MAX, SECONDS_MIN};
use crate::kind::Resource as _;
use crate::store::Key;

use super::errors::Refusal;
use super::{Server, accept, body, object};

/// The account that a path of this kind names.
pub(super) fn named(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"] => Some((namespace, name)),
        _ => None,
    }
}

pub(super) fn answer(
    server: &Server,
    namespace: &str,
    name: &str,
    headers: &HeaderMap,
    bytes: &[u8],
) -> Result<Response, Refusal> {
    let meta = &ServiceAccount::META;
    let Some(signer) = &server.believed.signer else { return Err(Refusal::unknown_path()) };
    let key = Key { resource: object::resource_of(meta), namespace: namespace.into(), name: name.into() };
    let stored = server.store.read().get(&key).cloned();
    let stored = stored.ok_or_else(|| Refusal::not_found(meta, name))?;
    let mut request = body::object(headers, "TokenRequest", bytes)?;
    let spec = &request["spec"];
    let audiences: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    let seconds = match &spec["expirationSeconds"] {
        Value::Null => SECONDS_DEFAULT,
        asked => asked.as_i64().unwrap_or(0),
    };
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        let why = format!("Invalid value: {seconds}: must be between {SECONDS_MIN} and {SECONDS_MAX}");
        return Err(Refusal::invalid_field(meta, name, "spec.expirationSeconds", why));
    }
    let account =
        Account { namespace: namespace.into(), name: name.into(), uid: stored.head.uid.to_string() };
    let now = Timestamp::now().as_second();
    let token = signer
        .sign(&account, &audiences, now, seconds)
        .ok_or_else(|| Refusal::bad_request("the audiences cannot be written into a token"))?;
    let ends = Timestamp::from_second(now + seconds).unwrap_or(Timestamp::MAX);
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["kind"] = "TokenRequest".into();
    request["metadata"] = json!({ "name": name, "namespace": namespace });
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] =
        json!({ "token": token, "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() });
    Ok(accept::json(StatusCode::CREATED, request.to_string()))
}
