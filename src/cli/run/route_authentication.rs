//! The users and keys of static routes, from the files that their options name.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use control::access::jwks::VerificationKeys;
use control::bounded_file;
use control::publish::RouteFilterRule;
use dataplane::contract::limits::PASSWORD_FILE_BYTES_MAX;
use dataplane::table::authentication::{AuthenticationPolicy, BasicAuth, JwtAuth, PasswordFile};

use crate::config::{AuthenticationRule, BasicAuthRule, JwtRule, RouteRule};

/// Bytes of a JSON Web Key Set. A key has some 500.
const KEYS_BYTES_MAX: u64 = 256 << 10;

/// The routes with the credentials that they require among their filters.
///
/// # Errors
///
/// A file cannot be used; the route and the file are named.
pub(super) fn load(routes: &[RouteRule]) -> Result<Vec<RouteRule>> {
    routes.iter().map(|route| with_policy(route).with_context(|| format!("route: {}", route.host))).collect()
}

fn with_policy(route: &RouteRule) -> Result<RouteRule> {
    let Some(AuthenticationRule { basic, jwt }) = &route.authentication else { return Ok(route.clone()) };
    let basic = basic.as_ref().map(basic_auth).transpose()?;
    let jwt = jwt.as_ref().map(jwt_auth).transpose()?;
    let filters = route.filters.as_deref().cloned().unwrap_or_default();
    let authentication = AuthenticationPolicy::new(basic, jwt).map(Arc::new);
    let filters = RouteFilterRule { authentication, ..filters };
    Ok(RouteRule { filters: Some(Arc::new(filters)), ..route.clone() })
}

fn basic_auth(rule: &BasicAuthRule) -> Result<BasicAuth> {
    let named = || rule.file.display().to_string();
    let text = read(&rule.file, PASSWORD_FILE_BYTES_MAX as u64)?;
    let users = PasswordFile::parse(&text).with_context(named)?;
    let header = || format!("basic-auth-user-header: {:?}", rule.user_header);
    BasicAuth::new(users, &rule.realm, rule.user_header.as_deref()).with_context(header)
}

fn jwt_auth(rule: &JwtRule) -> Result<JwtAuth> {
    let named = || rule.keys.display().to_string();
    let text = read(&rule.keys, KEYS_BYTES_MAX)?;
    let document = serde_json::from_str(&text).with_context(named)?;
    let keys = VerificationKeys::parse(&document)
        .filter(|keys| !keys.is_empty())
        .ok_or_else(|| anyhow!("{}: it is not a JSON Web Key Set with public keys of signatures", named()))?;
    let mut jwt = JwtAuth::new(Arc::new(keys), rule.issuer.as_deref(), &rule.audiences);
    for (claim, header) in &rule.claim_headers {
        jwt.add_claim_header(claim, header).with_context(|| format!("jwt-claim-header: {header:?}"))?;
    }
    Ok(jwt)
}

fn read(file: &Path, bytes_max: u64) -> Result<String> {
    let named = || file.display().to_string();
    let large = || format!("{} has more than {bytes_max} bytes", file.display());
    bounded_file::read_text(file, bytes_max).with_context(named)?.with_context(large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_file_is_refused_with_its_route() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        for (option, file, why) in [
            ("basic-auth", file("none", ""), "no users"),
            ("basic-auth", file("plain", "ann:secret"), "line 1"),
            ("basic-auth", "/nowhere/users".to_owned(), "/nowhere/users"),
            ("jwks", file("text", "x"), "text"),
            ("jwks", file("empty", "{\"keys\":[]}"), "JSON Web Key Set"),
            ("jwks", file("secret", r#"{"keys":[{"kty":"oct","k":"c2VjcmV0","alg":"HS256"}]}"#), "public keys"),
            ("jwks", file("large", &" ".repeat(300 << 10)), "more than"),
            ("jwks", file("nested", &"[".repeat(200 << 10)), "nested"),
        ] {
            let rule: RouteRule = format!("a.test=127.0.0.1:1?{option}={file}").parse().unwrap();
            let refused = format!("{:#}", load(&[rule]).unwrap_err());
            assert!(refused.starts_with("route: a.test") && refused.contains(why), "{refused}");
            assert!(!refused.contains("secret") || option == "jwks", "{refused}");
        }
    }
}
