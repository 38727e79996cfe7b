//! Signature Version 4 of requests, as AWS documents it.

use ring_crypto::{digest, hmac};

use super::credentials::AwsCredentials;

/// What is signed. Header names are lower-case; path and query are encoded.
pub(super) struct SignedParts<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// Sorted by name.
    pub(super) query: &'a str,
    /// Sorted by name.
    pub(super) headers: &'a [(String, String)],
    pub(super) payload_hash: &'a str,
}

/// Where and when the signature is valid.
pub(super) struct SignatureScope<'a> {
    /// `YYYYMMDDTHHMMSSZ`.
    pub(super) time: &'a str,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// The value of the header `authorization`.
pub(super) fn authorization(
    parts: &SignedParts<'_>,
    scope: &SignatureScope<'_>,
    credentials: &AwsCredentials,
) -> String {
    let names: Vec<&str> = parts.headers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let headers: String =
        parts.headers.iter().map(|(name, value)| format!("{name}:{}\n", canonical_value(value))).collect();
    let canonical =
        format!("{}\n{}\n{}\n{headers}\n{names}\n{}", parts.method, parts.path, parts.query, parts.payload_hash);
    let date = scope.time.get(..8).unwrap_or_default();
    let credential_scope = format!("{date}/{}/{}/aws4_request", scope.region, scope.service);
    let to_sign = format!("AWS4-HMAC-SHA256\n{}\n{credential_scope}\n{}", scope.time, sha256_hex(canonical.as_bytes()));
    let mut key = format!("AWS4{}", credentials.secret_key).into_bytes();
    for part in [date, scope.region, scope.service, "aws4_request"] {
        key = sign(&key, part);
    }
    let signature = hex(&sign(&key, &to_sign));
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{credential_scope}, SignedHeaders={names}, Signature={signature}",
        credentials.access_key
    )
}

/// Without spaces around it, and with one where several stand together.
fn canonical_value(value: &str) -> String {
    value.split(' ').filter(|part| !part.is_empty()).collect::<Vec<&str>>().join(" ")
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes everything but unreserved characters, and `/` in a path.
pub(crate) fn percent_encode(text: &str, keep_slash: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') || byte == b'/' && keep_slash {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite_authorization(query: &str, headers: &[(&str, &str)]) -> String {
        let credentials = AwsCredentials {
            access_key: "AKIDEXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
            session_token: None,
        };
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let parts = SignedParts { method: "GET", path: "/", query, headers: &headers, payload_hash: &sha256_hex(b"") };
        let scope = SignatureScope { time: "20150830T123600Z", region: "us-east-1", service: "service" };
        authorization(&parts, &scope, &credentials)
    }

    /// The requests `get-vanilla-query-order-key-case` and `get-header-value-trim` of AWS's test suite for Signature Version 4.
    #[test]
    fn signature_is_that_of_the_test_suite() {
        let common = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
        assert_eq!(
            suite_authorization("Param1=value1&Param2=value2", &common),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, \
             Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
        );
        let spaces = [common[0], ("my-header1", " value1"), ("my-header2", " \"a   b   c\""), common[1]];
        let signed = suite_authorization("", &spaces);
        let wanted = "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736";
        assert!(signed.ends_with(wanted), "{signed}");
    }

    #[test]
    fn key_of_an_object_is_encoded_for_a_path() {
        assert_eq!(percent_encode("a b/ü+~", true), "a%20b/%C3%BC%2B~");
        assert_eq!(percent_encode("a/b", false), "a%2Fb");
    }
}
