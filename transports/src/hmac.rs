//! Webhooks whose requests carry the HMAC of their body.

use adapter::SecretFile;
use adapter::server::{Request, Response};
use ring_crypto::hmac;
use serde::Deserialize;

/// Requests carry the HMAC of their body, as GitHub's webhooks do.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Hmac {
    pub(crate) secret: SecretFile,
    #[serde(default = "default_header")]
    pub(crate) header: String,
    #[serde(default = "default_prefix")]
    pub(crate) prefix: String,
}

impl Hmac {
    /// GitHub's header.
    pub(crate) fn of(secret: SecretFile) -> Hmac {
        Hmac { secret, header: default_header(), prefix: default_prefix() }
    }
}

fn default_header() -> String {
    "X-Hub-Signature-256".to_owned()
}

fn default_prefix() -> String {
    "sha256=".to_owned()
}

/// Verifies the HMAC-SHA256 of the body, or returns the response to the client.
pub(crate) fn verify(request: &Request, config: &Hmac) -> Result<(), Response> {
    let secret = config.secret.read_bytes().map_err(|error| {
        tracing::error!(error = %error.message, "requests cannot be verified");
        Response::new(503, "the secret of the signature is not there")
    })?;
    let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
    if secret.is_empty() {
        // Every client can compute an HMAC with an empty key.
        tracing::error!(path = %config.secret.path().display(), "requests cannot be verified: the secret file is empty");
        return Err(Response::new(503, "the secret of the signature is empty"));
    }
    let signature = request.headers.get(config.header.as_str()).and_then(|value| value.to_str().ok());
    let signature = signature.and_then(|value| value.strip_prefix(config.prefix.as_str())).and_then(from_hex);
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    match signature {
        Some(signature) if hmac::verify(&key, &request.body, &signature).is_ok() => Ok(()),
        _ => Err(Response::new(401, format!("header {} holds no valid HMAC of the body", config.header))),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok())
        .collect()
}
