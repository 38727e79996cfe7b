//! Tokens of clients of the gateway: any issuer, and any claims.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::stream_admission::TokenError;
use contract::table::authentication::{JwtVerifier, VerifiedJwt};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::jwks::{SKEW_SECONDS, VerificationKeys};

/// Longest text that a claim becomes, in bytes: a list of groups still fits in a header.
const CLAIM_BYTES_MAX: usize = 4096;

#[derive(Deserialize)]
struct ClientClaims {
    iss: Option<Box<str>>,
    #[serde(default)]
    aud: Audiences,
    /// RFC 7519: a number of seconds, maybe with a fraction. Required: a token without an end could not be withdrawn.
    exp: f64,
    nbf: Option<f64>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// One audience or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(Box<str>),
    Several(Vec<Box<str>>),
}

impl Default for Audiences {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl JwtVerifier for VerificationKeys {
    fn verify(&self, token: &str, claims: &[&str], now_s: u64) -> Result<VerifiedJwt, TokenError> {
        if has_critical_extensions(token) {
            return Err(TokenError::Unknown);
        }
        let read: ClientClaims = self.signed(token)?;
        #[allow(clippy::cast_precision_loss, reason = "seconds after 1970 are far below 2^53")]
        let (now, skew) = (now_s as f64, SKEW_SECONDS as f64);
        if now >= read.exp || read.nbf.is_some_and(|nbf| nbf > now + skew) {
            return Err(TokenError::OutOfTime);
        }
        let audiences = match &read.aud {
            Audiences::One(audience) => vec![audience.clone()],
            Audiences::Several(audiences) => audiences.clone(),
        };
        let claims = claims.iter().map(|name| claim(&read, name)).collect();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
        let until_s = read.exp as u64;
        Ok(VerifiedJwt { issuer: read.iss, audiences, until_s, claims })
    }
}

/// RFC 7515, section 4.1.11: a token with an extension that the recipient must understand is invalid for one that does not.
fn has_critical_extensions(token: &str) -> bool {
    let head = token.split('.').next().unwrap_or_default();
    let head = URL_SAFE_NO_PAD.decode(head).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    head.is_some_and(|head| head.get("crit").is_some())
}

/// A claim as text: `a.b` is in an object, and the items of a list are joined with commas.
fn claim(claims: &ClientClaims, name: &str) -> Option<Box<str>> {
    if name == "iss" {
        return claims.iss.clone();
    }
    let found = claims.others.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.others.get(first)?, |value, part| value.get(part))
    })?;
    let text = match found {
        Value::Array(items) => items.iter().map(scalar).collect::<Option<Vec<_>>>()?.join(","),
        other => scalar(other)?,
    };
    (text.len() <= CLAIM_BYTES_MAX).then(|| text.into())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    /// A key pair of ECDSA, and its public half.
    fn key() -> (EncodingKey, VerificationKeys) {
        let (private, public) = key_documents();
        (EncodingKey::from_ec_der(&private), VerificationKeys::parse(&public).unwrap())
    }

    fn key_documents() -> (Vec<u8>, Value) {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let point = pair.public_key_raw();
        let part = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&point[range]);
        let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": "1", "x": part(1..33), "y": part(33..65) });
        (pair.serialize_der(), json!({ "keys": [jwk] }))
    }

    fn sign(key: &EncodingKey, claims: &Value) -> String {
        encode(&Header { kid: Some("1".to_owned()), ..Header::new(Algorithm::ES256) }, claims, key).unwrap()
    }

    #[test]
    fn claims_of_a_signed_token_are_returned_as_text() {
        let (private, keys) = key();
        let token = sign(
            &private,
            &json!({ "iss": "us", "aud": "app", "exp": 1000.5, "nbf": 10, "sub": "ann", "n": 7, "groups": ["a", "b"],
                "realm": { "roles": ["r"], "deep": {} }, "https://x.test/y": "z", "long": "x".repeat(CLAIM_BYTES_MAX + 1) }),
        );
        let names = ["sub", "n", "groups", "realm.roles", "realm.deep", "https://x.test/y", "long", "none", "iss"];
        let verified = keys.verify(&token, &names, 100).unwrap();
        assert_eq!((verified.issuer.as_deref(), verified.until_s), (Some("us"), 1000));
        assert_eq!(verified.audiences, ["app".into()]);
        let claims: Vec<_> = verified.claims.iter().map(Option::as_deref).collect();
        assert_eq!(claims, [Some("ann"), Some("7"), Some("a,b"), Some("r"), None, Some("z"), None, None, Some("us")]);
    }

    #[test]
    fn token_out_of_its_time_is_refused() {
        let (private, keys) = key();
        let token = sign(&private, &json!({ "exp": 1000, "nbf": 500 }));
        for (now, found) in [(489, false), (490, true), (999, true), (1000, false)] {
            assert_eq!(keys.verify(&token, &[], now).is_ok(), found, "{now}");
        }
        let endless = sign(&private, &json!({ "sub": "ann" }));
        assert!(keys.verify(&endless, &[], 1).is_err());
    }

    /// No signature, a signature by the public key as a secret, another key, and an extension that is not understood.
    #[test]
    fn forged_token_is_refused() {
        let (private, public) = key_documents();
        let keys = VerificationKeys::parse(&public).unwrap();
        let claims = json!({ "exp": 1000, "sub": "ann" });
        let body = URL_SAFE_NO_PAD.encode(claims.to_string());
        let none = format!("{}.{body}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#));
        let confused =
            encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(public.to_string().as_bytes()));
        let good = sign(&EncodingKey::from_ec_der(&private), &claims);
        let (head, rest) = good.split_once('.').unwrap();
        let critical = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"1","crit":["x"],"x":1}"#);
        assert!(keys.verify(&good, &[], 1).is_ok());
        for forged in [
            none,
            confused.unwrap(),
            sign(&key().0, &claims),
            format!("{critical}.{rest}"),
            format!(
                "{head}.{}.{}",
                URL_SAFE_NO_PAD.encode(r#"{"exp":1000,"sub":"eve"}"#),
                rest.split('.').nth(1).unwrap()
            ),
            format!("{good}.x"),
            String::new(),
            "..".to_owned(),
            "[".repeat(10_000),
            format!("{}.{body}.", URL_SAFE_NO_PAD.encode("[".repeat(10_000))),
        ] {
            assert_eq!(keys.verify(&forged, &[], 1), Err(TokenError::Unknown), "{forged:.60}");
        }
        assert_eq!(VerificationKeys::default().verify(&good, &[], 1), Err(TokenError::NoKeys));
    }
}
