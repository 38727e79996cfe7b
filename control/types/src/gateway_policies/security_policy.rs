//! SecurityPolicy: which clients may use a Gateway, a route or a rule, and how often.

use std::time::Duration;

use contract::table::{AccessList, RATE_PERIOD_MAX, RATE_REQUESTS_MAX, RateLimit, RateLimitKey};
use contract::trusted_proxies::Network;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ext_auth::PolicyExtAuth;
use super::http_uri::http_uri;
use super::{GATEWAY_POLICY, validate_targets};
use crate::duration;
use crate::field_errors::{FieldErrors, MISSING, exactly_one};
use crate::gateway_api::http_filter::HttpCorsFilter;
use crate::gateway_api::policy::{LocalPolicyTargetReference, PolicyStatus};
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::resource;

/// The key of a Secret with users, unless the policy names another.
pub const PASSWORDS_KEY: &str = "htpasswd";
/// The key of a Secret with a JSON Web Key Set, unless the policy names another.
pub const JWKS_KEY: &str = "jwks.json";

/// Networks in a list: each is compared with each client.
const NETWORKS_MAX: usize = 1000;
/// Rate limits of a policy: a request takes a token of each.
const RATE_LIMITS_MAX: usize = 8;
/// Audiences, and claims that are told to backends.
const JWT_ITEMS_MAX: usize = 32;
/// Bytes of a JSON Web Key Set in the policy. A key has some 500.
pub const JWKS_BYTES_MAX: usize = 256 << 10;

resource! {
    /// `gateway.sluicegate.dev/v1alpha1` SecurityPolicy.
    GatewaySecurityPolicy: k8s_openapi::NamespaceResourceScope { spec: SecurityPolicySpec, status: PolicyStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityPolicySpec {
    /// The objects that the policy is for: Gateways, HTTPRoutes, GRPCRoutes, and with `sectionName` rules of those routes.
    pub target_refs: Vec<LocalPolicyTargetReference>,
    /// The only networks whose clients may send requests, like `10.0.0.0/8`. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Networks whose clients may not send requests, also if `allow` has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Users with passwords. With `jwt`, either is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<PolicyBasicAuth>,
    /// JSON Web Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<PolicyJwt>,
    /// A service that is asked about each request, after `basicAuth` and `jwt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ext_auth: Option<PolicyExtAuth>,
    /// Which pages of other origins may send requests. A filter of the rule for it comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<HttpCorsFilter>,
    /// A request takes a token of each limit. All requests that the policy is for are counted together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rate_limits: Vec<PolicyRateLimit>,
}

/// A key of a Secret in the policy's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PolicySecretReference {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyBasicAuth {
    /// The Secret with the users as `htpasswd` writes them, in the key `htpasswd` or the one that is named.
    pub secret_ref: PolicySecretReference,
    /// The realm that browsers show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realm: Option<String>,
    /// The header that tells the backend the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_header: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyJwt {
    /// The value that `iss` must have. Not set: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// One of these must be in `aud`. Empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// The public keys that verify tokens.
    pub jwks: PolicyJwks,
    /// Claims that the backend is told in headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claim_headers: Vec<PolicyClaimHeader>,
}

/// A JSON Web Key Set: one of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyJwks {
    /// The document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// The Secret with the document, in the key `jwks.json` or the one that is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<PolicySecretReference>,
    /// Where the document is fetched, `http://` or `https://`, again every 5 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PolicyClaimHeader {
    /// The name of the claim; `realm.roles` is a claim in an object.
    pub claim: String,
    pub header: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PolicyRateLimit {
    /// Requests in a period.
    pub requests: u32,
    /// A duration like `1s` or `5m`.
    pub period: String,
    /// Requests that may come at once after a pause. By default those of a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// What is counted: `All` requests (the default), those of a `Client` by its address, or those of a value of a `Header`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The header of `by: Header`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

impl PolicyRateLimit {
    /// # Errors
    ///
    /// The name of a field, and what is wrong with it.
    pub fn limit(&self) -> Result<RateLimit, (&'static str, String)> {
        let is_count = |count: u32| (1..=RATE_REQUESTS_MAX).contains(&count);
        let count = |field, count| {
            is_count(count).then_some(count).ok_or_else(|| (field, format!("use 1 to {RATE_REQUESTS_MAX}")))
        };
        let requests = count("requests", self.requests)?;
        let burst = count("burst", self.burst.unwrap_or(self.requests))?;
        let period = duration::parse_go(&self.period)
            .filter(|period| (Duration::from_millis(1)..=RATE_PERIOD_MAX).contains(period))
            .ok_or_else(|| ("period", format!("use a duration from 1ms to {}s", RATE_PERIOD_MAX.as_secs())))?;
        let key = match (self.by.as_deref().unwrap_or("All"), self.header.as_deref()) {
            ("All", None) => RateLimitKey::Rule,
            ("Client", None) => RateLimitKey::Client,
            ("Header", Some(name)) if http::HeaderName::from_bytes(name.as_bytes()).is_ok() => {
                RateLimitKey::Header(name.into())
            }
            ("Header", _) => return Err(("header", "by: Header needs the name of a header".to_owned())),
            ("All" | "Client", Some(_)) => return Err(("header", "it is for by: Header only".to_owned())),
            (other, _) => return Err(("by", format!("{other:?} is none of All, Client and Header"))),
        };
        Ok(RateLimit { requests, period, burst, key })
    }
}

impl SecurityPolicySpec {
    /// The clients that may send requests.
    ///
    /// # Errors
    ///
    /// A field, and what is wrong with it.
    pub fn access(&self) -> Result<AccessList, (String, String)> {
        let networks = |field: &str, list: &[String]| -> Result<Vec<Network>, (String, String)> {
            if list.len() > NETWORKS_MAX {
                return Err((field.to_owned(), format!("a list has at most {NETWORKS_MAX} networks")));
            }
            let network = |(at, text): (usize, &String)| text.parse().map_err(|why| (format!("{field}[{at}]"), why));
            list.iter().enumerate().map(network).collect()
        };
        Ok(AccessList { allow: networks("allow", &self.allow)?, deny: networks("deny", &self.deny)? })
    }

    /// The names of the Secrets that it refers to.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let keys = self.jwt.as_ref().and_then(|jwt| jwt.jwks.secret_ref.as_ref());
        let users = self.basic_auth.as_ref().map(|basic| &basic.secret_ref);
        users.into_iter().chain(keys).map(|secret| secret.name.as_str())
    }

    fn problems(&self, problems: &mut FieldErrors) {
        if let Err((field, why)) = self.access() {
            problems.add(format!("spec.{field}"), why);
        }
        if let Some(basic) = &self.basic_auth
            && basic.secret_ref.name.is_empty()
        {
            problems.add("spec.basicAuth.secretRef.name", MISSING);
        }
        if let Some(jwt) = &self.jwt {
            jwt.validate(problems);
        }
        if let Some(ext_auth) = &self.ext_auth {
            ext_auth.validate(problems);
        }
        if let Some(Err(why)) = self.cors.as_ref().map(HttpCorsFilter::policy) {
            problems.add("spec.cors", why);
        }
        if self.rate_limits.len() > RATE_LIMITS_MAX {
            problems.add("spec.rateLimits", format!("a policy has at most {RATE_LIMITS_MAX} limits"));
        }
        for (at, limit) in self.rate_limits.iter().enumerate() {
            if let Err((field, why)) = limit.limit() {
                problems.add(format!("spec.rateLimits[{at}].{field}"), why);
            }
        }
    }
}

impl PolicyJwt {
    fn validate(&self, problems: &mut FieldErrors) {
        let PolicyJwks { inline, secret_ref, uri } = &self.jwks;
        let set = usize::from(inline.is_some()) + usize::from(secret_ref.is_some()) + usize::from(uri.is_some());
        exactly_one(set, "spec.jwt.jwks", "inline, secretRef, uri", problems);
        if inline.as_ref().is_some_and(|text| text.len() > JWKS_BYTES_MAX) {
            problems.add("spec.jwt.jwks.inline", format!("it has more than {JWKS_BYTES_MAX} bytes"));
        }
        if secret_ref.as_ref().is_some_and(|secret| secret.name.is_empty()) {
            problems.add("spec.jwt.jwks.secretRef.name", MISSING);
        }
        if let Some(Err(why)) = uri.as_deref().map(jwks_uri) {
            problems.add("spec.jwt.jwks.uri", why);
        }
        for (field, count) in [("audiences", self.audiences.len()), ("claimHeaders", self.claim_headers.len())] {
            if count > JWT_ITEMS_MAX {
                problems.add(format!("spec.jwt.{field}"), format!("a list has at most {JWT_ITEMS_MAX} items"));
            }
        }
    }
}

/// The address of a JSON Web Key Set.
///
/// # Errors
///
/// It is not an absolute URI of HTTP.
pub fn jwks_uri(text: &str) -> Result<http::Uri, String> {
    http_uri(text, "https://issuer.example.com/keys")
}

impl ResourceStrategy for GatewaySecurityPolicy {
    const META: KindMeta =
        KindMeta { kind: "SecurityPolicy", plural: "securitypolicies", singular: "securitypolicy", ..GATEWAY_POLICY };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        validate_targets(&self.spec.target_refs, problems);
        self.spec.problems(problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let mut all = json!({ "targetRefs": [
            { "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "a" } ] });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut found = FieldErrors::default();
        GatewaySecurityPolicy::new("ns", "p", serde_json::from_value(all).unwrap()).validate(None, &mut found);
        found.list.into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn value_that_cannot_be_used_is_refused_with_its_field() {
        let target = |kind: &str, section: Option<&str>| {
            json!({ "targetRefs": [
                { "group": "gateway.networking.k8s.io", "kind": kind, "name": "a", "sectionName": section } ] })
        };
        for (spec, field) in [
            (json!({ "targetRefs": [] }), "spec.targetRefs"),
            (target("Service", None), "spec.targetRefs[0].kind"),
            (target("Gateway", Some("http")), "spec.targetRefs[0].sectionName"),
            (json!({ "allow": ["10.0.0.0/8", "10.0.0.0/40"] }), "spec.allow[1]"),
            (json!({ "deny": ["example.com"] }), "spec.deny[0]"),
            (json!({ "basicAuth": {} }), "spec.basicAuth.secretRef.name"),
            (json!({ "jwt": {} }), "spec.jwt.jwks"),
            (json!({ "jwt": { "jwks": { "inline": "{}", "uri": "https://a.test/" } } }), "spec.jwt.jwks"),
            (json!({ "jwt": { "jwks": { "uri": "ftp://a.test/" } } }), "spec.jwt.jwks.uri"),
            (json!({ "jwt": { "jwks": { "uri": "https://ann:x@a.test/" } } }), "spec.jwt.jwks.uri"),
            (json!({ "cors": { "allowOrigins": ["a.test"] } }), "spec.cors"),
            (json!({ "rateLimits": [{ "requests": 0, "period": "1s" }] }), "spec.rateLimits[0].requests"),
            (json!({ "rateLimits": [{ "requests": 1, "period": "2h" }] }), "spec.rateLimits[0].period"),
            (json!({ "rateLimits": [{ "requests": 1, "period": "1s", "by": "Cookie" }] }), "spec.rateLimits[0].by"),
            (json!({ "rateLimits": [{ "requests": 1, "period": "1s", "by": "Header" }] }), "spec.rateLimits[0].header"),
        ] {
            assert_eq!(problems(spec.clone()), [field], "{spec}");
        }
    }

    #[test]
    fn whole_policy_is_valid() {
        let spec = json!({
            "allow": ["10.0.0.0/8", "::1"], "deny": ["10.1.0.0/16"],
            "basicAuth": { "secretRef": { "name": "users" }, "realm": "staff", "userHeader": "X-User" },
            "jwt": { "issuer": "https://a.test/", "audiences": ["app"], "jwks": { "uri": "https://a.test:8443/keys?a=b" },
                "claimHeaders": [{ "claim": "sub", "header": "X-Subject" }] },
            "extAuth": { "http": { "url": "https://auth.test:9091/verify?a=b", "headersToBackend": ["Remote-User"] },
                "headersToExtAuth": ["Cookie"], "timeout": "2s", "failureMode": "Forbidden" },
            "cors": { "allowOrigins": ["https://a.test"] },
            "rateLimits": [{ "requests": 10, "period": "1m", "burst": 5, "by": "Header", "header": "X-Key" }],
        });
        assert_eq!(problems(spec), Vec::<String>::new());
        let limit = PolicyRateLimit { requests: 3, period: "1s".to_owned(), ..PolicyRateLimit::default() };
        assert_eq!(limit.limit().unwrap().burst, 3);
    }
}
