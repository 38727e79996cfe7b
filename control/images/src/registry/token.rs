//! Bearer tokens of a registry's token service, cached until shortly before they expire.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::credentials::Login;

/// Validity of a token without `expires_in` (docker's token specification).
const EXPIRES_IN_DEFAULT: Duration = Duration::from_secs(60);
/// Tokens of this many repositories and logins are remembered; past that, expired ones go, then any.
const TOKENS_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RegistryTokenKey {
    pub(super) realm: String,
    pub(super) service: Option<String>,
    pub(super) scope: String,
    pub(super) login: Option<Login>,
}

#[derive(Default)]
pub(super) struct TokenCache(Mutex<HashMap<RegistryTokenKey, (String, Instant)>>);

/// Names the type only: a token is never printed.
impl std::fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCache").finish_non_exhaustive()
    }
}

impl TokenCache {
    pub(super) fn get(&self, key: &RegistryTokenKey, now: Instant) -> Option<String> {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(key).filter(|(_, expiry)| *expiry > now).map(|(token, _)| token.clone())
    }

    pub(super) fn put(&self, key: RegistryTokenKey, token: &Token, now: Instant) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= TOKENS_MAX {
            tokens.retain(|_, (_, expiry)| *expiry > now);
        }
        if tokens.len() >= TOKENS_MAX {
            tokens.clear();
        }
        tokens.insert(key, (token.text.clone(), now + token.valid_for));
    }

    pub(super) fn remove(&self, key: &RegistryTokenKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

pub(super) struct Token {
    pub(super) text: String,
    valid_for: Duration,
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
    #[serde(default)]
    expires_in: Option<u64>,
}

/// Reads the response of a token service. Errors never contain it.
pub(super) fn parse(bytes: &[u8]) -> Result<Token, String> {
    let answer: TokenAnswer =
        serde_json::from_slice(bytes).map_err(|_| "the token service's answer is not the expected JSON".to_owned())?;
    let text = if answer.token.is_empty() { answer.access_token } else { answer.token };
    if text.is_empty() || !text.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
        return Err("the token service's answer has no token".into());
    }
    let expires_in = answer.expires_in.map_or(EXPIRES_IN_DEFAULT, |seconds| Duration::from_secs(seconds.min(86_400)));
    // A tenth earlier, so that a request does not leave with a token that expires on its way.
    Ok(Token { text, valid_for: expires_in.mul_f64(0.9) })
}

/// `realm` with the query of docker's token specification.
pub(super) fn query(key: &RegistryTokenKey) -> String {
    let mut url = key.realm.clone();
    let mut separator = if url.contains('?') { '&' } else { '?' };
    for (name, value) in [("service", key.service.as_deref()), ("scope", Some(key.scope.as_str()))] {
        if let Some(value) = value {
            url.push(separator);
            url.push_str(name);
            url.push('=');
            url.push_str(&escape(value));
            separator = '&';
        }
    }
    url
}

/// The form that an identity token is exchanged with (OAuth 2, `refresh_token`).
pub(super) fn refresh_form(key: &RegistryTokenKey, identity_token: &str) -> String {
    let service = key.service.as_deref().map(|service| format!("&service={}", escape(service))).unwrap_or_default();
    format!(
        "grant_type=refresh_token&client_id=sluicegate{service}&scope={}&refresh_token={}",
        escape(&key.scope),
        escape(identity_token)
    )
}

pub(super) fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        use std::fmt::Write as _;
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
        let _ = if plain { write!(escaped, "{}", byte as char) } else { write!(escaped, "%{byte:02X}") };
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> RegistryTokenKey {
        let scope = "repository:a/b:pull".to_owned();
        RegistryTokenKey { realm: "https://t/x?y=1".into(), service: Some("s t".into()), scope, login: None }
    }

    #[test]
    fn query_has_service_and_scope_escaped() {
        assert_eq!(query(&key()), "https://t/x?y=1&service=s%20t&scope=repository%3Aa%2Fb%3Apull");
        let form = refresh_form(&key(), "a+b");
        assert!(form.ends_with("&scope=repository%3Aa%2Fb%3Apull&refresh_token=a%2Bb"), "{form}");
    }

    #[test]
    fn token_is_forgotten_before_it_expires() {
        let (cache, now) = (TokenCache::default(), Instant::now());
        let token = parse(br#"{"access_token":"t","expires_in":100}"#).unwrap_or_else(|why| panic!("{why}"));
        cache.put(key(), &token, now);
        assert_eq!(cache.get(&key(), now + Duration::from_secs(89)).as_deref(), Some("t"));
        assert_eq!(cache.get(&key(), now + Duration::from_secs(90)), None);
    }

    #[test]
    fn debug_output_of_the_cache_has_no_token() {
        let cache = TokenCache::default();
        let token = parse(br#"{"token":"s3cret"}"#).unwrap_or_else(|why| panic!("{why}"));
        cache.put(key(), &token, Instant::now());
        assert!(!format!("{cache:?}").contains("s3cret"));
    }

    #[test]
    fn answer_without_a_usable_token_is_refused() {
        for answer in ["{}", "[]", r#"{"token":"a b"}"#, "{\"token\":\"a\\r\\nX: y\"}"] {
            assert!(parse(answer.as_bytes()).is_err(), "{answer}");
        }
    }
}
