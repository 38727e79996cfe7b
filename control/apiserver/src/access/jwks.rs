//! Public keys of tokens (JWKS, RFC 7517): of service accounts, as the API publishes them, and of other issuers.

use contract::stream_admission::{TokenError, TokenVerifier, VerifiedToken};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::token_claims::TokenClaims;

/// Keys taken from one API; a server that turns its keys over has two or three.
const KEYS_MAX: usize = 32;
/// How far ahead the signer's clock may be, in seconds.
pub(super) const SKEW_SECONDS: i64 = 10;

/// Keys by which tokens are checked. Without any, nothing can be said of a token.
#[derive(Default)]
pub struct VerificationKeys {
    keys: Vec<VerificationKey>,
}

struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl std::fmt::Debug for VerificationKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

impl VerificationKeys {
    /// Reads a document of keys. Those that cannot sign tokens are left out; `None`: it is no such document.
    #[must_use]
    pub fn parse(document: &Value) -> Option<Self> {
        let keys = document["keys"].as_array()?.iter().take(KEYS_MAX);
        let known = keys.filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
        Some(Self { keys: JwkSet { keys: known.collect() }.keys.iter().filter_map(VerificationKey::of).collect() })
    }

    /// The claims of a token that one of these keys signed, and that is valid at `now`.
    pub(super) fn claims(&self, token: &str, now: i64) -> Result<TokenClaims, TokenError> {
        let claims: TokenClaims = self.signed(token)?;
        let began = claims.nbf.is_none_or(|nbf| nbf <= now + SKEW_SECONDS);
        if began && now < claims.exp { Ok(claims) } else { Err(TokenError::OutOfTime) }
    }

    /// Whether there are keys that can verify tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The claims of a token that one of these keys signed, whatever its times.
    pub(super) fn signed<T: DeserializeOwned>(&self, token: &str) -> Result<T, TokenError> {
        if self.keys.is_empty() {
            return Err(TokenError::NoKeys);
        }
        let head = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Unknown)?;
        let fits = |key: &&VerificationKey| {
            key.algorithm == head.alg && (head.kid.is_none() || key.id.is_none() || key.id == head.kid)
        };
        for key in self.keys.iter().filter(fits) {
            let mut rules = Validation::new(key.algorithm);
            // Time is passed in, and the receiver of the token checks the audience.
            (rules.validate_exp, rules.validate_aud) = (false, false);
            rules.required_spec_claims.clear();
            if let Ok(read) = jsonwebtoken::decode::<T>(token, &key.key, &rules) {
                return Ok(read.claims);
            }
        }
        Err(TokenError::Unknown)
    }
}

impl VerificationKey {
    fn of(jwk: &Jwk) -> Option<Self> {
        let named = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
        let algorithm = match named {
            Some(name) => name.parse().ok()?,
            // Kubernetes' own have two forms, and always say which; others may leave it to the kind of key.
            None => match &jwk.algorithm {
                jsonwebtoken::jwk::AlgorithmParameters::RSA(_) => Algorithm::RS256,
                jsonwebtoken::jwk::AlgorithmParameters::EllipticCurve(_) => Algorithm::ES256,
                jsonwebtoken::jwk::AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
                jsonwebtoken::jwk::AlgorithmParameters::OctetKey(_) => return None,
            },
        };
        // A world-readable secret must not sign anything.
        if matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512) {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { id: jwk.common.key_id.clone(), algorithm, key })
    }
}

impl TokenVerifier for VerificationKeys {
    fn read(&self, token: &str, now_s: u64) -> Result<VerifiedToken, TokenError> {
        let claims = self.claims(token, i64::try_from(now_s).unwrap_or(i64::MAX))?;
        Ok(VerifiedToken {
            subject: claims.sub.into(),
            audiences: claims.aud.into_iter().map(Into::into).collect(),
            until_s: u64::try_from(claims.exp).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::service_account_tokens::{ServiceAccountIdentity, TokenSigner};

    /// X-FEA-07: what one appliance signs, others can check by what it publishes.
    #[test]
    fn a_published_key_checks_tokens_and_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        let signer = |name: &str| TokenSigner::open(&folder.path().join(name)).unwrap();
        let (ours, other) = (signer("a"), signer("b"));
        let keys = VerificationKeys::parse(&ours.jwks()).unwrap();
        let account = ServiceAccountIdentity {
            namespace: "ns".into(),
            name: "robot".into(),
            uid: "1".into(),
            bound_object: None,
        };
        let token = ours.sign(&account, &["x".into(), "y".into()], 1_000, 600).unwrap();
        let bearer = keys.read(&token, 1_000).unwrap();
        assert_eq!((&*bearer.subject, bearer.until_s), ("system:serviceaccount:ns:robot", 1_600));
        assert_eq!(bearer.audiences, ["x".into(), "y".into()]);

        let forged = other.sign(&account, &["x".into()], 1_000, 600).unwrap();
        let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", token.split('.').nth(1).unwrap());
        for (token, now, why) in [
            (token.as_str(), 1_600, TokenError::OutOfTime),
            (token.as_str(), 900, TokenError::OutOfTime),
            (&forged, 1_000, TokenError::Unknown),
            (&unsigned, 1_000, TokenError::Unknown),
            ("", 1_000, TokenError::Unknown),
        ] {
            assert_eq!(keys.read(token, now), Err(why), "{token} at {now}");
        }
        assert_eq!(VerificationKeys::default().read(&token, 1_000), Err(TokenError::NoKeys));
    }

    #[test]
    fn world_readable_secret_is_not_used_as_key() {
        assert!(VerificationKeys::parse(&json!({})).is_none());
        let secret = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "1" }, { "kty": "?" }] });
        assert!(VerificationKeys::parse(&secret).unwrap().keys.is_empty());
    }
}
