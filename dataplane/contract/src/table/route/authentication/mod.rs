//! Which clients may use a rule, by the credentials that they send: passwords (RFC 7617) and JSON Web Tokens (RFC 7519).
//!
//! Values in, values out: the proxy caches the results for each core, and waits for passwords whose verification is expensive.

mod basic_auth;
mod htpasswd;
mod jwt_auth;
mod password_verifier;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use codec::http::RequestView;

pub use basic_auth::{BasicAuth, BasicCredentials, PasswordCheck};
pub use htpasswd::{HtpasswdError, PasswordFile};
pub use jwt_auth::{JwtAuth, JwtVerifier, VerifiedJwt};
pub use password_verifier::PendingPassword;

use crate::limits::AUTHORIZATION_BYTES_MAX;
use crate::stream_admission::TokenError;
use crate::table::route::header_edits::HeaderEdits;

/// The credentials that a rule requires. With both, either is enough.
#[derive(Debug)]
pub struct AuthenticationPolicy {
    basic: Option<BasicAuth>,
    jwt: Option<JwtAuth>,
    /// Results are cached for this policy only: another one has other users or keys.
    id: u64,
}

/// The credentials of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCredentials<'a> {
    /// The encoded name and password.
    Basic(&'a str),
    Bearer(&'a str),
}

/// Why a request is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    #[error("the request has no credentials")]
    Missing,
    #[error("the request has more than one Authorization header")]
    Ambiguous,
    #[error("the Authorization header is malformed, or too long")]
    Malformed,
    #[error("the rule does not accept credentials of this scheme")]
    Scheme,
    #[error("the user or the password is wrong")]
    Password,
    #[error("{0}")]
    Token(#[from] TokenError),
    #[error("the token is not issued for this rule: its issuer or its audience is another")]
    WrongToken,
    /// Not the client's fault.
    #[error("too many passwords are being verified")]
    Overloaded,
}

impl AuthenticationError {
    /// Whether other credentials would not help now.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Overloaded | Self::Token(TokenError::NoKeys))
    }
}

/// Changes to the request of an authenticated client: the headers that tell its backend who it is.
pub type IdentityHeaders = Option<std::sync::Arc<HeaderEdits>>;

impl AuthenticationPolicy {
    /// `None`: nothing is required.
    #[must_use]
    pub fn new(basic: Option<BasicAuth>, jwt: Option<JwtAuth>) -> Option<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        if basic.is_none() && jwt.is_none() {
            return None;
        }
        Some(Self { basic, jwt, id: NEXT_ID.fetch_add(1, Relaxed) })
    }

    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    #[must_use]
    pub fn basic(&self) -> Option<&BasicAuth> {
        self.basic.as_ref()
    }

    #[must_use]
    pub fn jwt(&self) -> Option<&JwtAuth> {
        self.jwt.as_ref()
    }

    /// The credentials of a request, in a scheme that the rule accepts.
    ///
    /// # Errors
    ///
    /// It has none, or they cannot be read.
    pub fn credentials<'a>(&self, request: RequestView<'a>) -> Result<ClientCredentials<'a>, AuthenticationError> {
        let mut values = request.fields().filter(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let (_, value) = values.next().ok_or(AuthenticationError::Missing)?;
        if values.next().is_some() {
            return Err(AuthenticationError::Ambiguous);
        }
        if value.len() > AUTHORIZATION_BYTES_MAX {
            return Err(AuthenticationError::Malformed);
        }
        let text = std::str::from_utf8(value).map_err(|_| AuthenticationError::Malformed)?.trim();
        let (scheme, credentials) = text.split_once(' ').ok_or(AuthenticationError::Malformed)?;
        let credentials = credentials.trim_start();
        if scheme.eq_ignore_ascii_case("basic") && self.basic.is_some() {
            Ok(ClientCredentials::Basic(credentials))
        } else if scheme.eq_ignore_ascii_case("bearer") && self.jwt.is_some() {
            Ok(ClientCredentials::Bearer(credentials))
        } else {
            Err(AuthenticationError::Scheme)
        }
    }

    /// The values of `WWW-Authenticate` in a 401.
    #[must_use]
    pub fn challenges(&self, why: AuthenticationError) -> Vec<Box<str>> {
        let jwt = self.jwt.as_ref().map(|jwt| jwt.challenge(why));
        let basic = self.basic.as_ref().map(BasicAuth::challenge);
        jwt.into_iter().chain(basic).collect()
    }
}

/// The same users, keys and settings.
impl PartialEq for AuthenticationPolicy {
    fn eq(&self, other: &Self) -> bool {
        (&self.basic, &self.jwt) == (&other.basic, &other.jwt)
    }
}

impl Eq for AuthenticationPolicy {}

/// A realm in a challenge: a quoted string.
fn quoted(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ' { c } else { '?' };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use codec::http::{Parsed, RequestHead, parse_request};

    use super::*;

    fn policy() -> AuthenticationPolicy {
        let file = PasswordFile::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=").unwrap();
        AuthenticationPolicy::new(Some(BasicAuth::new(file, "a \"b\"\r\n", None).unwrap()), None).unwrap()
    }

    #[test]
    fn credentials_are_read_from_one_header_of_a_known_scheme() {
        let policy = policy();
        let long = format!("Authorization: Basic {}\r\n", "a".repeat(AUTHORIZATION_BYTES_MAX));
        for (fields, found) in [
            ("", Err(AuthenticationError::Missing)),
            ("Authorization: basic  YQ==\r\n", Ok(ClientCredentials::Basic("YQ=="))),
            ("Authorization: Bearer a.b.c\r\n", Err(AuthenticationError::Scheme)),
            ("Authorization: Basic\r\n", Err(AuthenticationError::Malformed)),
            ("Authorization: Basic a\r\nauthorization: Basic b\r\n", Err(AuthenticationError::Ambiguous)),
            ("Authorization: Basic \u{fc}\r\n", Ok(ClientCredentials::Basic("\u{fc}"))),
            (&long, Err(AuthenticationError::Malformed)),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut head = RequestHead::default();
            assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
            assert_eq!(policy.credentials(head.view(text.as_bytes())), found, "{fields}");
        }
    }

    #[test]
    fn challenge_cannot_break_the_head() {
        let challenges = policy().challenges(AuthenticationError::Missing);
        assert_eq!(challenges, ["Basic realm=\"a ?b???\", charset=\"UTF-8\"".into()]);
    }

    #[test]
    fn policies_are_compared_by_content() {
        assert_eq!(policy(), policy());
        assert_ne!(policy().id(), policy().id());
        assert!(AuthenticationPolicy::new(None, None).is_none());
    }
}
