//! Reviews: questions in the form of objects that are answered and not stored.
//!
//! There is no access control between those who reach the API, so whoever asks may do everything; the
//! answer says why.

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::errors::Refusal;
use super::{Call, accept, body, fields, object};

const WHY: &str = "everybody who reaches this API may do everything: it has no RBAC";

pub(super) fn answer(call: &Call, bytes: &[u8]) -> Result<Response, Refusal> {
    let meta = call.target.entry.meta;
    let validation = call.validation();
    let (asked, duplicates) = body::written(&call.headers, meta.kind, bytes, validation)?;
    let warnings = fields::check(&call.target.entry, validation, &asked, duplicates)?;
    let requester = &call.requester();
    let mut review = (call.target.entry.admit)(asked, None, requester)
        .map_err(|denied| Refusal::denied(meta, "", denied))?;
    review["apiVersion"] = object::api_version(meta).into();
    review["kind"] = meta.kind.into();
    review["status"] = verdict(meta.kind, &requester.user);
    Ok(fields::warn(accept::json(StatusCode::CREATED, review.to_string()), &warnings))
}

fn verdict(kind: &str, user: &str) -> Value {
    match kind {
        "SelfSubjectReview" => json!({ "userInfo": { "username": user, "groups": ["system:masters"] } }),
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "incomplete": false,
        }),
        _ => json!({ "allowed": true, "reason": WHY }),
    }
}
