//! Reviews: requests in the form of objects that are answered and not stored.

use std::collections::BTreeMap;

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use crate::access::{RequestAttributes, rbac};
use types::kind_registry::RequestContext;

use super::errors::StatusError;
use super::{ApiRequest, authentication, body, content_negotiation, field_validation, metadata_validation};

pub(super) fn handle(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let meta = call.target.entry.meta;
    let validation = call.field_validation();
    let (mut asked, duplicates) = body::object_with_duplicates(&call.headers, meta.kind, bytes, validation)?;
    let warnings = field_validation::check(&call.target.entry, validation, &asked, duplicates)?;
    metadata_validation::check_shape(meta, &mut asked)?;
    if let Some(fields) = asked.as_object_mut() {
        fields.remove("apiVersion"); // the older versions have the same shape by another name
    }
    let requester = &call.requester();
    let mut review = call
        .target
        .entry
        .admit_object(asked, None, requester)
        .map_err(|denied| StatusError::from_admission_error(meta, "", denied))?;
    check(call, &review["spec"])?;
    review["apiVersion"] = meta.api_version().into();
    review["kind"] = meta.kind.into();
    review["status"] = review_access(call, requester, &review["spec"]);
    Ok(field_validation::with_warnings(content_negotiation::json(StatusCode::CREATED, review.to_string()), &warnings))
}

/// A question that asks nothing, or two things, has no answer.
fn check(call: &ApiRequest, spec: &Value) -> Result<(), StatusError> {
    let meta = call.target.entry.meta;
    let refused = |field: &str, why: &str| Err(StatusError::invalid_field(meta, "", field, why));
    match meta.kind {
        "SelfSubjectRulesReview" if text(spec, "namespace").is_empty() => {
            return Err(StatusError::bad_request("no namespace on request"));
        }
        "TokenReview" if text(spec, "token").is_empty() => {
            return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
        }
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {}
        _ => return Ok(()),
    }
    let (asked, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if asked.is_object() && path.is_object() {
        let why = "Invalid value: cannot be specified in combination with resourceAttributes";
        return refused("spec.nonResourceAttributes", why);
    }
    if !asked.is_object() && !path.is_object() {
        let why = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return refused("spec.resourceAttributes", why);
    }
    let nobody = text(spec, "user").is_empty() && spec["groups"].as_array().is_none_or(Vec::is_empty);
    if meta.kind != "SelfSubjectAccessReview" && nobody {
        return refused("spec.user", "Invalid value: \"\": at least one of user or group must be specified");
    }
    if meta.kind == "LocalSubjectAccessReview" {
        let here = call.target.namespace.as_deref().unwrap_or("");
        if text(asked, "namespace") != here {
            let why = format!("Invalid value: {:?}: must match metadata.namespace", text(asked, "namespace"));
            return refused("spec.resourceAttributes.namespace", &why);
        }
    }
    Ok(())
}

fn review_access(call: &ApiRequest, who: &RequestContext, spec: &Value) -> Value {
    match call.target.entry.meta.kind {
        "SelfSubjectReview" => {
            json!({ "userInfo": user_json(&who.user, &who.groups, &who.uid, &who.extra) })
        }
        "TokenReview" => token_review(call, spec),
        "SelfSubjectRulesReview" => rules_review(call, who, text(spec, "namespace")),
        "SelfSubjectAccessReview" => subject_access_review(call, &who.user, &who.groups, spec),
        _ => {
            let groups = spec["groups"].as_array().into_iter().flatten();
            let groups: Vec<String> = groups.filter_map(|group| group.as_str().map(str::to_owned)).collect();
            subject_access_review(call, text(spec, "user"), &groups, spec)
        }
    }
}

fn subject_access_review(call: &ApiRequest, user: &str, groups: &[String], spec: &Value) -> Value {
    let memory = call.server.store.read();
    let (asked, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let granted = if asked.is_object() {
        let action = RequestAttributes {
            verb: text(asked, "verb"),
            group: text(asked, "group"),
            resource: text(asked, "resource"),
            subresource: text(asked, "subresource"),
            namespace: text(asked, "namespace"),
            name: text(asked, "name"),
        };
        rbac::allows(&memory, user, groups, &action)
    } else {
        rbac::allows_path(&memory, user, groups, text(path, "verb"), text(path, "path"))
    };
    json!({ "allowed": granted })
}

/// A user, as reviews and the audit log tell of him.
pub(super) fn user_json(name: &str, groups: &[String], uid: &str, extra: &BTreeMap<String, Vec<String>>) -> Value {
    let mut user_info = json!({ "username": name, "groups": groups });
    if !uid.is_empty() {
        user_info["uid"] = uid.into();
    }
    if !extra.is_empty() {
        user_info["extra"] = json!(extra);
    }
    user_info
}

/// The user of a token, for the audience that received it.
fn token_review(call: &ApiRequest, spec: &Value) -> Value {
    let audiences: Vec<String> =
        spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect();
    match authentication::review_token(&call.server, text(spec, "token"), &audiences) {
        Some((user, good_for)) => json!({
            "authenticated": true,
            "user": user_json(&user.name, &user.groups, &user.uid, &user.extra),
            "audiences": good_for,
        }),
        None => json!({ "user": {}, "error": "invalid bearer token" }),
    }
}

fn rules_review(call: &ApiRequest, who: &RequestContext, namespace: &str) -> Value {
    let all = json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] });
    let everywhere = json!({ "verbs": ["*"], "nonResourceURLs": ["*"] });
    let masters = who.groups.iter().any(|group| group == crate::access::MASTERS);
    let found = if masters {
        vec![all, everywhere]
    } else {
        rbac::rules(&call.server.store.read(), &who.user, &who.groups, namespace)
    };
    let (paths, objects): (Vec<Value>, Vec<Value>) =
        found.into_iter().partition(|rule| rule["nonResourceURLs"].is_array());
    json!({ "resourceRules": objects, "nonResourceRules": paths, "incomplete": false })
}

fn text<'a>(fields: &'a Value, name: &str) -> &'a str {
    fields[name].as_str().unwrap_or("")
}
