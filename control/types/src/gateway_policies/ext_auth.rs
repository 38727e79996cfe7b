//! External authorization in a SecurityPolicy: the service that is asked about each request.

use contract::table::{AuthorizationFailureMode, AuthorizationService, AuthorizationServiceError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::http_uri::http_uri;
use crate::duration;
use crate::field_errors::{FieldErrors, MISSING, exactly_one};
use crate::gateway_api::reference::BackendObjectReference;

/// A service that is asked about each request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyExtAuth {
    /// It is asked with a GET, and permits the request with any status from 200 to 299.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<PolicyExtAuthHttp>,
    /// The only headers of the request that the service is told, like `Cookie`. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers_to_ext_auth: Vec<String>,
    /// How long the service may take for its whole response, from `1ms` to `60s`. By default `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// What happens to requests if the service cannot be asked: `Unavailable` (503, the default), `Forbidden` (403), or `Allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_mode: Option<String>,
}

/// How the service is asked. One of `backendRef` and `url` is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyExtAuthHttp {
    /// A core Service, or a Knative Service. In another namespace it needs a ReferenceGrant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_ref: Option<BackendObjectReference>,
    /// The address of the service, like `http://auth.example.com:9091/verify`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The path with which the service of `backendRef` is asked. By default `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The headers of the service's response that the backend gets. The client's own headers of these names are removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers_to_backend: Vec<String>,
}

/// The host and port of a service, and whether it is reached by TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtAuthUrl {
    /// Lower case, without brackets.
    pub host: String,
    pub port: u16,
    pub by_tls: bool,
    /// As it is written in requests.
    pub authority: String,
    pub path: String,
}

impl ExtAuthUrl {
    /// # Errors
    ///
    /// It is not an absolute URI of HTTP.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri = http_uri(text, "http://auth.example.com:9091/verify")?;
        let by_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if by_tls { 443 } else { 80 });
        let authority = uri.authority().map(|authority| authority.as_str().to_ascii_lowercase()).unwrap_or_default();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
        Ok(Self { host, port, by_tls, authority, path })
    }
}

type FieldProblem = (String, String);

impl PolicyExtAuth {
    /// Where the service is, if it has a URL.
    #[must_use]
    pub fn url(&self) -> Option<ExtAuthUrl> {
        ExtAuthUrl::parse(self.http.as_ref()?.url.as_deref()?).ok()
    }

    #[must_use]
    pub fn backend_ref(&self) -> Option<&BackendObjectReference> {
        self.http.as_ref()?.backend_ref.as_ref()
    }

    /// How the service is asked. `host` is that of requests to a Service.
    ///
    /// # Errors
    ///
    /// A field, and what is wrong with it.
    pub fn service(&self, host: &str) -> Result<AuthorizationService, FieldProblem> {
        let Some(http) = &self.http else { return Err(("http".to_owned(), MISSING.to_owned())) };
        let named = |field: &str, why: AuthorizationServiceError| (field.to_owned(), format!("the value {why}"));
        let mut service = match &http.url {
            Some(url) => {
                let url = ExtAuthUrl::parse(url).map_err(|why| ("http.url".to_owned(), why))?;
                AuthorizationService::new(&url.authority, &url.path).map_err(|why| named("http.url", why))?
            }
            None => {
                let path = http.path.as_deref().unwrap_or("/");
                AuthorizationService::new(host, path).map_err(|why| named("http.path", why))?
            }
        };
        for (at, name) in self.headers_to_ext_auth.iter().enumerate() {
            service.forward_header(name).map_err(|why| named(&format!("headersToExtAuth[{at}]"), why))?;
        }
        for (at, name) in http.headers_to_backend.iter().enumerate() {
            service.copy_header(name).map_err(|why| named(&format!("http.headersToBackend[{at}]"), why))?;
        }
        if let Some(text) = &self.timeout {
            let bad = || ("timeout".to_owned(), format!("{text:?} is not a duration like 5s"));
            let timeout = duration::parse_go(text).ok_or_else(bad)?;
            service.set_timeout(timeout).map_err(|why| named("timeout", why))?;
        }
        service.failure_mode = match self.failure_mode.as_deref().unwrap_or("Unavailable") {
            "Unavailable" => AuthorizationFailureMode::Unavailable,
            "Forbidden" => AuthorizationFailureMode::Forbidden,
            "Allow" => AuthorizationFailureMode::Allow,
            other => {
                let why = format!("{other:?} is none of Unavailable, Forbidden and Allow");
                return Err(("failureMode".to_owned(), why));
            }
        };
        Ok(service)
    }

    pub(super) fn validate(&self, problems: &mut FieldErrors) {
        let field = |name: &str| format!("spec.extAuth.{name}");
        if let Some(http) = &self.http {
            let set = usize::from(http.backend_ref.is_some()) + usize::from(http.url.is_some());
            exactly_one(set, &field("http"), "backendRef, url", problems);
            if http.url.is_some() && http.path.is_some() {
                problems.add(field("http.path"), "the path of a url is in the url");
            }
            if http.backend_ref.as_ref().is_some_and(|backend| backend.name.is_empty()) {
                problems.add(field("http.backendRef.name"), MISSING);
            }
        }
        if let Err((name, why)) = self.service("a") {
            problems.add(field(&name), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(spec: Value) -> PolicyExtAuth {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn value_that_cannot_be_used_is_refused_with_its_field() {
        let url = |fields: Value| {
            let mut http = json!({ "url": "http://auth.test/" });
            http.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({ "http": http })
        };
        let with = |name: &str, value: Value| {
            let mut spec = url(json!({}));
            spec[name] = value;
            spec
        };
        for (spec, field) in [
            (json!({}), "http"),
            (json!({ "http": {} }), "http"),
            (json!({ "http": { "backendRef": { "name": "" } } }), "http.backendRef.name"),
            (json!({ "http": { "backendRef": { "name": "a" }, "path": "verify" } }), "http.path"),
            (url(json!({ "backendRef": { "name": "a" } })), "http"),
            (url(json!({ "path": "/x" })), "http.path"),
            (url(json!({ "url": "auth:9091" })), "http.url"),
            (url(json!({ "url": "http://a:b@auth/" })), "http.url"),
            (url(json!({ "headersToBackend": ["X-User", "Host"] })), "http.headersToBackend[1]"),
            (with("headersToExtAuth", json!(["a b"])), "headersToExtAuth[0]"),
            (with("timeout", json!("5")), "timeout"),
            (with("timeout", json!("2m")), "timeout"),
            (with("failureMode", json!("Open")), "failureMode"),
        ] {
            let mut found = FieldErrors::default();
            parsed(spec.clone()).validate(&mut found);
            let fields: Vec<_> = found.list.into_iter().map(|problem| problem.field).collect();
            assert_eq!(fields, [format!("spec.extAuth.{field}")], "{spec}");
        }
    }

    #[test]
    fn service_has_the_host_of_its_url_or_of_its_backend() {
        let by_url = parsed(json!({ "http": { "url": "https://[::1]?x" } }));
        let service = by_url.service("other").unwrap();
        assert_eq!((service.host(), service.path()), ("[::1]", "/?x"));
        let url = by_url.url().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.by_tls), ("::1", 443, true));
        let by_backend = parsed(json!({ "http": { "backendRef": { "name": "a" }, "path": "/v" } }));
        let service = by_backend.service("a.ns:80").unwrap();
        assert_eq!((service.host(), service.path(), by_backend.url()), ("a.ns:80", "/v", None));
    }
}
