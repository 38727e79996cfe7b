//! POST of `serviceaccounts/NAME/token`: issues a token for an account.

use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use serde_json::{Value, json};

use crate::access::service_account_tokens::{
    BoundObject, BoundObjectKind, SECONDS_DEFAULT, SECONDS_MAX, SECONDS_MIN, ServiceAccountIdentity,
};
use crate::store::ObjectKey;
use types::kind_registry::{CORE, KindMeta, ResourceStrategy as _};

use super::errors::StatusError;
use super::query_parameters::QueryParameters;
use super::{ApiServer, body, content_negotiation, prepare};

/// The name of a token request in error messages.
static REQUEST: KindMeta = KindMeta {
    group: "authentication.k8s.io",
    kind: "TokenRequest",
    plural: "tokenrequests",
    singular: "tokenrequest",
    ..CORE
};

/// The object that the token is to die with, if one is named.
fn bound(server: &ApiServer, namespace: &str, said: &Value) -> Result<Option<BoundObject>, StatusError> {
    if said.is_null() {
        return Ok(None);
    }
    let text = |name: &str| said[name].as_str().unwrap_or("").to_owned();
    let (kind, meta, resource) = match text("kind").as_str() {
        "Pod" => (BoundObjectKind::Pod, &Pod::META, "/pods"),
        "Secret" => (BoundObjectKind::Secret, &Secret::META, "/secrets"),
        other => {
            return Err(StatusError::bad_request(format!("cannot bind token for account to object of type {other}")));
        }
    };
    let name = text("name");
    let key = ObjectKey { resource: resource.into(), namespace: namespace.into(), name: name.as_str().into() };
    let found = server.store.read().get(&key).ok_or_else(|| StatusError::not_found(meta, &name))?;
    let uid = text("uid");
    if !uid.is_empty() && *uid != *found.head.uid() {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(StatusError::conflict(meta, &name, &why));
    }
    Ok(Some(BoundObject { kind, name, uid: found.head.uid().to_string() }))
}

/// The account that a path of this kind names.
pub(super) fn parse_path(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"] => Some((namespace, name)),
        _ => None,
    }
}

pub(super) fn create_token(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    head: &Parts,
    bytes: &[u8],
) -> Result<Response, StatusError> {
    let meta = &ServiceAccount::META;
    let Some(signer) = &server.authentication.service_accounts else {
        return Err(StatusError::unknown_path());
    };
    let key = ObjectKey { resource: prepare::resource_of(meta), namespace: namespace.into(), name: name.into() };
    let stored = server.store.read().get(&key);
    let stored = stored.ok_or_else(|| StatusError::not_found(meta, name))?;
    let mut request = body::object(&head.headers, "TokenRequest", bytes)?;
    if !request["spec"].is_object() && !request["spec"].is_null() {
        return Err(StatusError::bad_request("spec has to be an object"));
    }
    if let Some(other) = request["metadata"]["name"].as_str().filter(|other| ![name, ""].contains(other)) {
        let why = format!("Invalid value: {other:?}: must match the service account name if specified");
        return Err(StatusError::invalid_field(&REQUEST, name, "metadata.name", why));
    }
    let bound = bound(server, namespace, &request["spec"]["boundObjectRef"])?;
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
        let why = if seconds < SECONDS_MIN {
            "may not specify a duration less than 10 minutes".to_owned()
        } else {
            format!("may not specify a duration larger than {SECONDS_MAX} seconds")
        };
        let why = format!("Invalid value: {seconds}: {why}");
        return Err(StatusError::invalid_field(&REQUEST, "", "spec.expirationSeconds", why));
    }
    let account = ServiceAccountIdentity {
        namespace: namespace.into(),
        name: name.into(),
        uid: stored.head.uid().to_string(),
        bound_object: bound,
    };
    let now = Timestamp::now().as_second();
    let signed = signer
        .sign(&account, &audiences, now, seconds)
        .ok_or_else(|| StatusError::bad_request("the audiences cannot be written into a token"))?;
    let is_dry_run = QueryParameters::parse(&head.uri, &head.method)?.dry_run;
    let token = if is_dry_run { String::new() } else { signed };
    let ends = Timestamp::from_second(now + seconds).unwrap_or(Timestamp::MAX);
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["kind"] = "TokenRequest".into();
    request["metadata"] = json!({ "name": name, "namespace": namespace });
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] =
        json!({ "token": token, "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() });
    Ok(content_negotiation::json(StatusCode::CREATED, request.to_string()))
}
