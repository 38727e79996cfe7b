//! Builds the Kubernetes `Status` object of every rejected request. All texts of such objects are here.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::access::RequestAttributes;
use crate::cross_origin::Rejection;
use crate::store::{RevisionExpired, StoreError};
use types::field_errors::{AdmissionError, Problem};
use types::kind_registry::{AllowedVerbs, KindMeta, ResourceStrategy as _};
use types::serving;

/// Seconds after which a write that failed on a full disk may be retried; client-go does so by itself.
const FULL_RETRY_SECONDS: u64 = 2;

/// The alternative to a write of an object that follows from a Service.
const ALTERNATIVES: [(&str, &[&str], &str); 4] = [
    ("Deployment", &["create"], FROM_SERVICES),
    ("Pod", &["create"], FROM_SERVICES),
    ("Deployment", &["update", "patch"], CHANGE_SERVICE),
    ("Pod", &["update", "patch"], CHANGE_SERVICE),
];
const FROM_SERVICES: &str = "the appliance runs with --workloads services-only, and instances follow from a Service of \
    serving.knative.dev/v1; \"kn service create\" makes one, and \"kubectl apply\" of its manifest";
pub(super) const CHANGE_SERVICE: &str = "it shows what its Revision runs; change spec.template of the Service of serving.knative.dev/v1 \
    instead (\"kn service update\", \"kubectl edit ksvc\"; a new annotation there restarts all instances): a new \
    Revision takes over without a failed request";

/// Why a request failed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StatusError {
    pub(super) code: StatusCode,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
}

impl StatusError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    fn with_details(mut self, kind: &str, group: &str, name: &str) -> Self {
        let mut details = json!({ "kind": kind });
        if !name.is_empty() {
            details["name"] = name.into();
        }
        if !group.is_empty() {
            details["group"] = group.into();
        }
        self.details = details;
        self
    }

    pub(super) fn not_found(meta: &KindMeta, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified_resource(meta));
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with_details(meta.plural, meta.group, name)
    }

    /// No such path, group, version or kind.
    pub(super) fn unknown_path() -> Self {
        let mut refusal =
            Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        refusal.details = json!({});
        refusal
    }

    /// `leaving`: it is being deleted, and still exists.
    pub(super) fn already_exists(meta: &KindMeta, name: &str, leaving: bool) -> Self {
        let leaving = if leaving { "object is being deleted: " } else { "" };
        let message = format!("{leaving}{} \"{name}\" already exists", qualified_resource(meta));
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).with_details(meta.plural, meta.group, name)
    }

    pub(super) fn conflict(meta: &KindMeta, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified_resource(meta));
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_details(meta.plural, meta.group, name)
    }

    /// The object was changed since the client read it.
    pub(super) fn resource_version_conflict(meta: &KindMeta, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(meta, name, why)
    }

    pub(super) fn invalid(meta: &KindMeta, name: &str, problems: &[Problem]) -> Self {
        let described: Vec<String> = problems.iter().map(field_error_text).collect();
        let described =
            if let [one] = described.as_slice() { one.clone() } else { format!("[{}]", described.join(", ")) };
        let kind = if meta.group.is_empty() { meta.kind.to_owned() } else { format!("{}.{}", meta.kind, meta.group) };
        let message = format!("{kind} \"{name}\" is invalid: {described}");
        let mut refusal =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(meta.kind, meta.group, name);
        refusal.details["causes"] = problems
            .iter()
            .map(|problem| {
                json!({ "reason": reason(&problem.message), "message": problem.message, "field": problem.field })
            })
            .collect();
        refusal
    }

    /// One problem of one field.
    pub(super) fn invalid_field(meta: &KindMeta, name: &str, field: &str, message: impl Into<String>) -> Self {
        Self::invalid(meta, name, &[Problem { field: field.into(), message: message.into() }])
    }

    pub(super) fn from_admission_error(meta: &KindMeta, name: &str, denied: AdmissionError) -> Self {
        match denied {
            AdmissionError::Malformed(why) => {
                let (kind, version) = (meta.kind, meta.version);
                Self::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
            }
            AdmissionError::WrongTypes(problems) | AdmissionError::Invalid(problems) => {
                Self::invalid(meta, name, &problems)
            }
        }
    }

    pub(super) fn forbidden(meta: &KindMeta, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", qualified_resource(meta))
        } else {
            format!("{} \"{name}\" is forbidden: {why}", qualified_resource(meta))
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(meta.plural, meta.group, name)
    }

    /// The request is not authenticated.
    pub(super) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// No rule of RBAC grants it.
    pub(super) fn forbidden_by_rbac(user: &str, action: &RequestAttributes<'_>) -> Self {
        let RequestAttributes { verb, group, resource, subresource, namespace, name } = *action;
        let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
        let what = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let which = if name.is_empty() { what } else { format!("{what} \"{name}\"") };
        let place = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{namespace}\"")
        };
        let message = format!(
            "{which} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}{part}\" in API group \"{group}\" {place}"
        );
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(resource, group, name)
    }

    pub(super) fn path_forbidden_by_rbac(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\"");
        let mut refusal = Self::new(StatusCode::FORBIDDEN, "Forbidden", message);
        refusal.details = json!({});
        refusal
    }

    /// One client has as many requests in progress as one may have.
    pub(super) fn too_many_requests(user: &str, most: usize) -> Self {
        Self::busy(format!("User \"{user}\" has {most} requests under way, please try again later"))
    }

    /// A shared resource of all requests is exhausted.
    pub(super) fn busy(why: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", why);
        refusal.details = json!({ "retryAfterSeconds": 1 });
        refusal
    }

    pub(super) fn namespace_terminating(meta: &KindMeta, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut refusal = Self::forbidden(meta, name, &why);
        refusal.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        refusal
    }

    pub(super) fn bad_request(why: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", why)
    }

    pub(super) fn internal(why: &str) -> Self {
        let why = format!("Internal error occurred: {why}");
        let mut refusal = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", why.clone());
        refusal.details = json!({ "causes": [{ "message": why }] });
        refusal
    }

    pub(super) fn method_not_allowed() -> Self {
        let why = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", why)
    }

    /// A web page of another origin may have sent it.
    pub(super) fn cross_origin(rejection: &Rejection) -> Self {
        let reason = match rejection.status() {
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::MISDIRECTED_REQUEST => "MisdirectedRequest",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
            _ => "BadRequest",
        };
        Self::new(rejection.status(), reason, rejection.to_string())
    }

    /// A subresource of a Pod that is not supported here.
    pub(super) fn subresource_not_supported(meta: &KindMeta, name: &str, part: &str, why: &str) -> Self {
        let message = format!("{part} is not supported: {why}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).with_details(
            meta.plural,
            meta.group,
            name,
        )
    }

    /// The same, once the subresource is known: other errors stay as they are.
    pub(super) fn with_verb(self, meta: &KindMeta, access: AllowedVerbs, verb: &str) -> Self {
        if self.code != StatusCode::METHOD_NOT_ALLOWED {
            return self;
        }
        let mut derived = ALTERNATIVES.iter().filter(|_| access == AllowedVerbs::Derived);
        let instead = derived.find(|(kind, verbs, _)| *kind == meta.kind && verbs.contains(&verb));
        let instead = instead.map(|(_, _, why)| format!(": {why}")).unwrap_or_default();
        let message = format!("{verb} is not supported on resources of kind {:?}{instead}", qualified_resource(meta));
        let mut details = json!({ "kind": meta.plural });
        if !meta.group.is_empty() {
            details["group"] = meta.group.into();
        }
        Self { message, details, ..self }
    }

    pub(super) fn not_acceptable(offered: &str) -> Self {
        let why = format!("only the following media types are accepted: {offered}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", why)
    }

    pub(super) fn unsupported_media_type(accepted: &str) -> Self {
        let why =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", why)
    }

    /// A valid patch that does not fit the object.
    ///
    /// Of a refusal that names an object kubectl shows causes alone, and this one has none: so it names none, as
    /// Kubernetes' own does not.
    pub(super) fn invalid_patch(why: &str) -> Self {
        let why = format!("the server rejected our request due to an error in our request: {why}");
        let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", why);
        refusal.details = json!({});
        refusal
    }

    /// The same error, for an object that a patch produced: an invalid one is the patch's fault.
    pub(super) fn for_patch(self) -> Self {
        let shape = [" cannot be handled as a ", " in the data ("].iter().any(|words| self.message.contains(words));
        if self.code != StatusCode::BAD_REQUEST || !shape {
            return self;
        }
        let why = format!("Invalid value: {}", self.message);
        let mut refusal =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", format!(" \"\" is invalid: patch: {why}"));
        refusal.details = json!({ "causes": [{ "reason": reason(&why), "message": why, "field": "patch" }] });
        refusal
    }

    /// The same error, of a dry run. Upstream dry-runs the Pod too, and Kubernetes' own errors about that are reported
    /// unchanged; errors of Knative's validation and of its schema come first.
    pub(super) fn for_dry_run(self, meta: &KindMeta) -> Self {
        const DRY_RUN: &str = "dry-run-validation";
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_pod = |cause: &Value| {
            let (field, message) = (text(&cause["field"]), text(&cause["message"]));
            let field = field.strip_prefix("spec.template.").filter(|field| field.starts_with("spec."))?;
            // Kubernetes' messages begin with a capital, Knative's ("invalid value: ") do not.
            let of_schema = message.contains(" in body must ");
            (message.starts_with("Invalid value: ") && !of_schema).then(|| Problem { field: field.to_owned(), message })
        };
        let causes = self.details["causes"].as_array().filter(|_| meta.group == serving::GROUP);
        let problems: Option<Vec<Problem>> =
            causes.map(|causes| causes.iter().map(of_pod)).into_iter().flatten().collect();
        let Some(problems) = problems.filter(|problems| !problems.is_empty()) else { return self };
        let described = Self::invalid(&Pod::META, DRY_RUN, &problems).message;
        let why = format!("validation callback failed: dry run failed with {described}");
        Self::invalid_field(meta, &text(&self.details["name"]), "spec.template", why)
    }

    /// A query parameter that does not fit the request.
    pub(super) fn invalid_option(options: &str, option: &str, why: &str) -> Self {
        let message = format!("{options}.meta.k8s.io \"\" is invalid: {option}: {why}");
        let mut refusal =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(options, "meta.k8s.io", "");
        refusal.details["causes"] = json!([{ "reason": reason(why), "message": why, "field": option }]);
        refusal
    }

    /// The conflicting managers and their fields.
    pub(super) fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let described = if let [(with, path)] = conflicts {
            format!("{with}: {path}")
        } else {
            let mut described = Vec::new();
            let mut last = None;
            for (with, path) in conflicts {
                if last.replace(with) != Some(with) {
                    described.push(format!("{}:", with.replacen("conflict", "conflicts", 1)));
                }
                described.push(format!("- {path}"));
            }
            described.join("\n")
        };
        let count = conflicts.len();
        let message = format!("Apply failed with {count} conflict{}: {described}", if count == 1 { "" } else { "s" });
        let mut refusal = Self::new(StatusCode::CONFLICT, "Conflict", message);
        refusal.details = json!({
            "causes": conflicts
                .iter()
                .map(|(with, path)| {
                    json!({ "reason": "FieldManagerConflict", "message": with, "field": path })
                })
                .collect::<Vec<_>>(),
        });
        refusal
    }

    pub(super) fn too_many_operations(count: usize, operations_max: usize) -> Self {
        let why = format!("The allowed maximum operations in a JSON patch is {operations_max}, got {count}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", why)
    }

    pub(super) fn too_large(bytes_max: usize) -> Self {
        let why = format!("Request entity too large: limit is {bytes_max}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", why)
    }

    pub(super) fn head_too_large(bytes_max: usize) -> Self {
        let why = format!("the request's head is too large: limit is {bytes_max} bytes");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "RequestHeaderFieldsTooLarge", why)
    }

    pub(super) fn request_timeout(most: std::time::Duration) -> Self {
        let why = format!("the body did not arrive within {} seconds", most.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", why)
    }

    pub(super) fn expired(why: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", why)
    }

    /// The client has seen a version that this server has not assigned.
    pub(super) fn resource_version_too_large(asked: u64, newest: u64) -> Self {
        let why = format!("Timeout: Too large resource version: {asked}, current: {newest}");
        let mut refusal = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", why);
        refusal.details = json!({
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
            "retryAfterSeconds": 1,
        });
        refusal
    }

    /// The `Status` object.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// `services.serving.knative.dev`, or `namespaces` in the core group.
fn qualified_resource(meta: &KindMeta) -> String {
    if meta.group.is_empty() { meta.plural.to_owned() } else { format!("{}.{}", meta.plural, meta.group) }
}

/// The reason for the start of a message, in Kubernetes' words or in Knative's.
fn reason(message: &str) -> &'static str {
    const REASONS: [(&str, &str); 9] = [
        ("Required value", "FieldValueRequired"),
        ("missing field(s)", "FieldValueRequired"),
        ("Forbidden", "FieldValueForbidden"),
        ("must not set the field(s)", "FieldValueForbidden"),
        ("Unsupported value", "FieldValueNotSupported"),
        ("Duplicate value", "FieldValueDuplicate"),
        ("Not found", "FieldValueNotFound"),
        ("Too long", "FieldValueTooLong"),
        ("Too many", "FieldValueTooMany"),
    ];
    REASONS.iter().find(|(start, _)| message.starts_with(start)).map_or("FieldValueInvalid", |(_, reason)| reason)
}

fn field_error_text(problem: &Problem) -> String {
    if problem.field.is_empty() { problem.message.clone() } else { format!("{}: {}", problem.field, problem.message) }
}

impl From<StoreError> for StatusError {
    fn from(why: StoreError) -> Self {
        match why {
            StoreError::TooLarge { .. } => Self::too_large(crate::store::OBJECT_BYTES_MAX),
            StoreError::TooDeep => Self::bad_request(why.to_string()),
            StoreError::Full { .. } => {
                let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why.to_string());
                refusal.details = json!({ "retryAfterSeconds": FULL_RETRY_SECONDS });
                refusal
            }
            StoreError::WriterFailed(_) | StoreError::Closed => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why.to_string())
            }
            _ => {
                let message = format!("Internal error occurred: {why}");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
            }
        }
    }
}

impl From<RevisionExpired> for StatusError {
    fn from(expired: RevisionExpired) -> Self {
        Self::expired(format!("too old resource version: {} ({})", expired.requested, expired.oldest))
    }
}

impl IntoResponse for StatusError {
    fn into_response(self) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.code, json, self.status().to_string()).into_response();
        if let Some(seconds) = self.details["retryAfterSeconds"].as_u64() {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests;
