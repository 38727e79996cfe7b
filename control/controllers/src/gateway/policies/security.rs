//! Compiles a SecurityPolicy. One that cannot be compiled closes its routes: their requests are answered 503.

use std::sync::Arc;

use apiserver::access::jwks::VerificationKeys;
use contract::table::authentication::{AuthenticationPolicy, BasicAuth, JwtAuth, PasswordFile};
use contract::table::{RateLimiter, RouteReply};
use k8s_openapi::api::core::v1::Secret;

use super::cache::{CompiledFrom, CompiledPolicy, PolicyCache};
use super::dns_names::HostPort;
use super::ext_auth;
use super::jwks_documents::FetchedKeys;
use super::refusals::{INVALID, invalid};
use crate::context::ControllerContext;
use crate::gateway::conditions::ConditionRefusal;
use crate::publish::RouteFilterRule;
use types::gateway_api::http_filter::HttpCorsFilter;
use types::gateway_policies::security_policy::{
    GatewaySecurityPolicy, JWKS_BYTES_MAX, JWKS_KEY, PASSWORDS_KEY, PolicyBasicAuth, PolicyJwt, PolicyRateLimit,
    PolicySecretReference, SecurityPolicySpec,
};
use types::shared::{name, namespace};

/// The status of requests whose policy cannot be compiled.
const CLOSED: u16 = 503;
/// The realm of a policy without one.
const REALM: &str = "restricted";

/// What a policy refers to.
pub(super) trait PolicySources {
    fn secret(&self, name: &str) -> Option<Arc<Secret>>;
    fn keys(&self, uri: &str) -> FetchedKeys;
}

struct ContextSources<'a> {
    context: &'a ControllerContext,
    cache: &'a PolicyCache,
    namespace: &'a str,
}

impl PolicySources for ContextSources<'_> {
    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        self.context.caches.secrets.get(self.namespace, name)
    }

    fn keys(&self, uri: &str) -> FetchedKeys {
        self.cache.jwks.get(uri)
    }
}

/// Where the policy's keys are fetched.
pub(super) fn jwks_uri(policy: &GatewaySecurityPolicy) -> Option<&str> {
    policy.spec.jwt.as_ref().and_then(|jwt| jwt.jwks.uri.as_deref())
}

/// The host of the policy's authorization service.
pub(super) fn ext_auth_host(policy: &GatewaySecurityPolicy) -> Option<HostPort> {
    let url = policy.spec.ext_auth.as_ref()?.url()?;
    Some((url.host, url.port))
}

pub(super) fn compiled(
    context: &ControllerContext,
    cache: &PolicyCache,
    policy: &GatewaySecurityPolicy,
) -> Arc<CompiledPolicy> {
    let compiled = without_ext_auth(context, cache, policy);
    let Some(ext_auth) = policy.spec.ext_auth.as_ref().filter(|_| compiled.not_accepted.is_none()) else {
        return compiled;
    };
    let mut made = CompiledPolicy::clone(&compiled);
    let home = namespace(&policy.metadata);
    match ext_auth::compile(context, (&cache.dns_names, home), ext_auth, &mut made.references) {
        Ok((rule, failure)) => {
            made.filters.external_authorization = Some(rule);
            made.unresolved = made.unresolved.or(failure);
        }
        Err(refusal) => {
            made.not_accepted = Some(refuse(refusal, &mut made.unresolved));
            made.filters = closed();
        }
    }
    Arc::new(made)
}

/// The policy without its authorization service, whose addresses change more often than the policy.
fn without_ext_auth(
    context: &ControllerContext,
    cache: &PolicyCache,
    policy: &GatewaySecurityPolicy,
) -> Arc<CompiledPolicy> {
    let key = (namespace(&policy.metadata), name(&policy.metadata));
    let sources = ContextSources { context, cache, namespace: key.0 };
    let from = CompiledFrom { spec: policy.spec.clone(), versions: versions(&policy.spec, &sources) };
    cache.get_or_compile(key, from, |before| {
        let made = compile(&policy.spec, &sources, before);
        if let Some(refusal) = &made.not_accepted {
            let why = refusal.message.as_str();
            tracing::warn!(
                namespace = key.0,
                name = key.1,
                why,
                "the SecurityPolicy cannot be used; requests of its routes are answered 503 until it can"
            );
        }
        made
    })
}

/// Changes whenever something changes that the policy refers to.
fn versions(spec: &SecurityPolicySpec, sources: &dyn PolicySources) -> Vec<String> {
    let secret = |name: &str| match sources.secret(name) {
        None => String::new(),
        Some(secret) => {
            let meta = &secret.metadata;
            format!("{:?} {:?}", meta.uid, meta.resource_version)
        }
    };
    let uri = spec.jwt.as_ref().and_then(|jwt| jwt.jwks.uri.as_deref());
    spec.secrets().map(secret).chain(uri.map(|uri| sources.keys(uri).version.to_string())).collect()
}

fn compile(spec: &SecurityPolicySpec, sources: &dyn PolicySources, before: Option<&CompiledPolicy>) -> CompiledPolicy {
    let mut unresolved = None;
    match filters(spec, sources, before, &mut unresolved) {
        Ok(filters) => CompiledPolicy { filters, unresolved, ..CompiledPolicy::default() },
        Err(not_accepted) => {
            let not_accepted = Some(not_accepted);
            CompiledPolicy { filters: closed(), not_accepted, unresolved, ..CompiledPolicy::default() }
        }
    }
}

fn closed() -> RouteFilterRule {
    RouteFilterRule { reply: Some(RouteReply::Status(CLOSED)), ..RouteFilterRule::default() }
}

fn filters(
    spec: &SecurityPolicySpec,
    sources: &dyn PolicySources,
    before: Option<&CompiledPolicy>,
    unresolved: &mut Option<ConditionRefusal>,
) -> Result<RouteFilterRule, ConditionRefusal> {
    let access = spec.access().map_err(|(field, why)| invalid(&field, &why))?;
    let cors = spec.cors.as_ref().map(HttpCorsFilter::policy).transpose();
    let basic = spec.basic_auth.as_ref().map(|basic| basic_auth(basic, sources, unresolved)).transpose()?;
    let jwt = spec.jwt.as_ref().map(|jwt| jwt_auth(jwt, sources, unresolved)).transpose()?;
    let limits = spec.rate_limits.iter().enumerate();
    let rate_limits = limits.map(|(at, limit)| limiter(at, limit, before)).collect::<Result<_, _>>()?;
    Ok(RouteFilterRule {
        access,
        cors: cors.map_err(|why| invalid("cors", &why))?,
        rate_limits,
        authentication: AuthenticationPolicy::new(basic, jwt).map(Arc::new),
        ..RouteFilterRule::default()
    })
}

/// A limit that stays the same goes on counting.
fn limiter(
    at: usize,
    limit: &PolicyRateLimit,
    before: Option<&CompiledPolicy>,
) -> Result<Arc<RateLimiter>, ConditionRefusal> {
    let limit = limit.limit().map_err(|(field, why)| invalid(&format!("rateLimits[{at}].{field}"), &why))?;
    let same = before.and_then(|before| before.filters.rate_limits.get(at)).filter(|same| *same.limit() == limit);
    Ok(same.map_or_else(|| Arc::new(RateLimiter::new(limit)), Arc::clone))
}

fn basic_auth(
    rule: &PolicyBasicAuth,
    sources: &dyn PolicySources,
    unresolved: &mut Option<ConditionRefusal>,
) -> Result<BasicAuth, ConditionRefusal> {
    let text = secret_text("basicAuth.secretRef", &rule.secret_ref, PASSWORDS_KEY, sources, unresolved)?;
    let users = PasswordFile::parse(&text)
        .map_err(|why| refuse(invalid("basicAuth.secretRef", &why.to_string()), unresolved))?;
    let realm = rule.realm.as_deref().unwrap_or(REALM);
    BasicAuth::new(users, realm, rule.user_header.as_deref())
        .map_err(|why| invalid("basicAuth.userHeader", &why.to_string()))
}

/// Without keys that have not been fetched yet, requests with tokens are answered 503, and all others 401.
fn jwt_auth(
    rule: &PolicyJwt,
    sources: &dyn PolicySources,
    unresolved: &mut Option<ConditionRefusal>,
) -> Result<JwtAuth, ConditionRefusal> {
    let jwks = &rule.jwks;
    let keys = match (&jwks.inline, &jwks.secret_ref, &jwks.uri) {
        (Some(text), None, None) => keys("jwt.jwks.inline", text),
        (None, Some(secret), None) => {
            let field = "jwt.jwks.secretRef";
            let text = secret_text(field, secret, JWKS_KEY, sources, unresolved)?;
            keys(field, &text).map_err(|why| refuse(why, unresolved))
        }
        (None, None, Some(uri)) => {
            let fetched = sources.keys(uri);
            if let Some(why) = fetched.failure {
                refuse(ConditionRefusal::new(INVALID, format!("spec.jwt.jwks.uri: {uri}: {why}.")), unresolved);
            }
            Ok(fetched.keys)
        }
        _ => Err(invalid("jwt.jwks", "set one of inline, secretRef and uri")),
    };
    let mut auth = JwtAuth::new(keys?, rule.issuer.as_deref(), &rule.audiences);
    for claim in &rule.claim_headers {
        let refused = |why: &dyn std::fmt::Display| invalid("jwt.claimHeaders", &format!("{:?} {why}", claim.header));
        auth.add_claim_header(&claim.claim, &claim.header).map_err(|why| refused(&why))?;
    }
    Ok(auth)
}

fn keys(field: &str, text: &str) -> Result<Arc<VerificationKeys>, ConditionRefusal> {
    let why = "it is not a JSON Web Key Set with public keys of signatures";
    let document = Some(text).filter(|text| text.len() <= JWKS_BYTES_MAX).map(serde_json::from_str);
    let keys = document.and_then(Result::ok).and_then(|document| VerificationKeys::parse(&document));
    keys.filter(|keys| !keys.is_empty()).map(Arc::new).ok_or_else(|| invalid(field, why))
}

/// The text of a key of a Secret.
fn secret_text(
    field: &str,
    reference: &PolicySecretReference,
    default_key: &str,
    sources: &dyn PolicySources,
    unresolved: &mut Option<ConditionRefusal>,
) -> Result<String, ConditionRefusal> {
    let key = reference.key.as_deref().unwrap_or(default_key);
    let found = match sources.secret(&reference.name) {
        None => Err(format!("Secret {:?} not found", reference.name)),
        Some(secret) => match secret.data.as_ref().and_then(|data| data.get(key)) {
            None => Err(format!("Secret {:?} has no key {key:?}", reference.name)),
            Some(bytes) => String::from_utf8(bytes.0.clone())
                .map_err(|_| format!("the key {key:?} of Secret {:?} is not text", reference.name)),
        },
    };
    found.map_err(|why| refuse(ConditionRefusal::new("RefNotFound", format!("spec.{field}: {why}.")), unresolved))
}

/// The policy is invalid because of a reference, which is told too.
fn refuse(refusal: ConditionRefusal, unresolved: &mut Option<ConditionRefusal>) -> ConditionRefusal {
    let message = refusal.message.clone();
    unresolved.get_or_insert(refusal);
    ConditionRefusal::new(INVALID, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Default)]
    struct TestSources {
        secrets: BTreeMap<&'static str, (&'static str, &'static str)>,
        fetched: Option<FetchedKeys>,
    }

    impl PolicySources for TestSources {
        fn secret(&self, name: &str) -> Option<Arc<Secret>> {
            let (key, text) = self.secrets.get(name)?;
            let data = [((*key).to_owned(), ByteString(text.as_bytes().to_vec()))];
            Some(Arc::new(Secret { data: Some(data.into()), ..Secret::default() }))
        }

        fn keys(&self, _: &str) -> FetchedKeys {
            self.fetched.clone().unwrap_or_default()
        }
    }

    fn compile_with(spec: Value, sources: &TestSources) -> CompiledPolicy {
        compile(&serde_json::from_value(spec).unwrap(), sources, None)
    }

    const USERS: &str = "ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";

    #[test]
    fn policy_that_cannot_be_compiled_closes_its_routes() {
        let secrets =
            [("plain", ("htpasswd", "ann:secret")), ("users", ("auth", USERS)), ("keys", ("jwks.json", "{}"))];
        let sources = TestSources { secrets: secrets.into(), fetched: None };
        for (spec, unresolved) in [
            (json!({ "basicAuth": { "secretRef": { "name": "none" } } }), Some("RefNotFound")),
            (json!({ "basicAuth": { "secretRef": { "name": "users" } } }), Some("RefNotFound")),
            (json!({ "basicAuth": { "secretRef": { "name": "plain" } } }), Some(INVALID)),
            (json!({ "jwt": { "jwks": { "secretRef": { "name": "keys" } } } }), Some(INVALID)),
            (json!({ "jwt": { "jwks": { "inline": "[" } } }), None),
            (json!({ "jwt": {} }), None),
            (json!({ "allow": ["x"] }), None),
            (json!({ "cors": { "allowOrigins": ["x"] } }), None),
            (json!({ "rateLimits": [{}] }), None),
        ] {
            let made = compile_with(spec.clone(), &sources);
            let only_reply = RouteFilterRule { reply: Some(RouteReply::Status(503)), ..RouteFilterRule::default() };
            assert_eq!(made.filters, only_reply, "{spec}");
            assert_eq!(made.not_accepted.unwrap().reason, INVALID, "{spec}");
            assert_eq!(made.unresolved.map(|refusal| refusal.reason), unresolved, "{spec}");
        }
    }

    #[test]
    fn users_are_those_of_the_key_that_is_named() {
        let sources = TestSources { secrets: [("users", ("auth", USERS))].into(), fetched: None };
        let spec = json!({ "basicAuth": { "secretRef": { "name": "users", "key": "auth" } } });
        let made = compile_with(spec, &sources);
        assert!(made.filters.authentication.unwrap().basic().is_some());
        assert_eq!((made.filters.reply, made.not_accepted, made.unresolved), (None, None, None));
    }

    #[test]
    fn tokens_are_required_before_their_keys_are_fetched() {
        let failed = FetchedKeys { failure: Some("connection refused".to_owned()), ..FetchedKeys::default() };
        let sources = TestSources { fetched: Some(failed), ..TestSources::default() };
        let made = compile_with(json!({ "jwt": { "jwks": { "uri": "http://a.test/" } } }), &sources);
        assert!(made.filters.authentication.unwrap().jwt().is_some());
        assert!(made.not_accepted.is_none() && made.unresolved.unwrap().message.contains("connection refused"));
    }

    #[test]
    fn limit_goes_on_counting_when_the_policy_changes_otherwise() {
        let spec = |deny: &str| {
            serde_json::from_value(json!({ "deny": [deny], "rateLimits": [{ "requests": 1, "period": "1m" }] }))
                .unwrap()
        };
        let sources = TestSources::default();
        let first = compile(&spec("10.0.0.1"), &sources, None);
        let second = compile(&spec("10.0.0.2"), &sources, Some(&first));
        assert!(Arc::ptr_eq(&first.filters.rate_limits[0], &second.filters.rate_limits[0]));
    }
}
