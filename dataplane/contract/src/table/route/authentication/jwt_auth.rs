//! JSON Web Tokens: who may have issued them, and for whom. Control has the keys, and verifies signatures.

use std::fmt;
use std::sync::Arc;

use super::{AuthenticationError, quoted};
use crate::stream_admission::TokenError;
use crate::table::route::header_edits::{HeaderEditError, HeaderEdits};

/// Verifies signatures and times of tokens.
pub trait JwtVerifier: fmt::Debug + Send + Sync {
    /// Verifies a token at `now_s` seconds after 1970. Called on a core, for tokens that are not in its cache. `claims` are the
    /// names of those to return.
    ///
    /// # Errors
    ///
    /// The token is invalid, or cannot be verified now.
    fn verify(&self, token: &str, claims: &[&str], now_s: u64) -> Result<VerifiedJwt, TokenError>;
}

/// What a valid token says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifiedJwt {
    pub issuer: Option<Box<str>>,
    pub audiences: Vec<Box<str>>,
    /// Expiry, in seconds after 1970.
    pub until_s: u64,
    /// The claims that were asked for, in that order; `None`: the token has no such claim.
    pub claims: Vec<Option<Box<str>>>,
}

/// The tokens that a rule accepts.
#[derive(Debug, Clone)]
pub struct JwtAuth {
    verifier: Arc<dyn JwtVerifier>,
    /// `None`: any issuer that has one of the keys.
    issuer: Option<Box<str>>,
    /// One of them is enough. Empty: any audience.
    audiences: Vec<Box<str>>,
    /// Claims, and the headers that tell them to the backend.
    claim_headers: Vec<(Box<str>, Box<str>)>,
}

/// A verified client.
#[derive(Debug, PartialEq, Eq)]
pub struct JwtIdentity {
    /// Seconds after 1970.
    pub until_s: u64,
    pub headers: Option<Arc<HeaderEdits>>,
}

impl JwtAuth {
    #[must_use]
    pub fn new(verifier: Arc<dyn JwtVerifier>, issuer: Option<&str>, audiences: &[String]) -> Self {
        let audiences = audiences.iter().map(|audience| audience.as_str().into()).collect();
        Self { verifier, issuer: issuer.map(Into::into), audiences, claim_headers: Vec::new() }
    }

    /// The backend gets the claim in this header.
    ///
    /// # Errors
    ///
    /// It is not a header that can be set.
    pub fn add_claim_header(&mut self, claim: &str, header: &str) -> Result<(), HeaderEditError> {
        HeaderEdits::default().set(header, "claim")?;
        self.claim_headers.push((claim.into(), header.into()));
        Ok(())
    }

    /// RFC 6750, section 3: a request without a token is not told an error.
    pub(super) fn challenge(&self, why: AuthenticationError) -> Box<str> {
        let realm = quoted(self.issuer.as_deref().unwrap_or("gateway"));
        match why {
            AuthenticationError::Missing | AuthenticationError::Scheme => format!("Bearer realm=\"{realm}\"").into(),
            _ => format!("Bearer realm=\"{realm}\", error=\"invalid_token\"").into(),
        }
    }

    /// # Errors
    ///
    /// The token is not valid, or not for this rule.
    pub fn verify(&self, token: &str, now_s: u64) -> Result<JwtIdentity, AuthenticationError> {
        let names: Vec<&str> = self.claim_headers.iter().map(|(claim, _)| &**claim).collect();
        let verified = self.verifier.verify(token, &names, now_s)?;
        let issued = self.issuer.is_none() || self.issuer == verified.issuer;
        let for_rule =
            self.audiences.is_empty() || verified.audiences.iter().any(|audience| self.audiences.contains(audience));
        if !issued || !for_rule {
            return Err(AuthenticationError::WrongToken);
        }
        Ok(JwtIdentity { until_s: verified.until_s, headers: self.headers(&verified.claims) })
    }

    /// A header whose claim is missing, or cannot be in a header, is removed: the client's own would look like the claim.
    fn headers(&self, claims: &[Option<Box<str>>]) -> Option<Arc<HeaderEdits>> {
        if self.claim_headers.is_empty() {
            return None;
        }
        let mut edits = HeaderEdits::default();
        for ((_, header), claim) in self.claim_headers.iter().zip(claims) {
            let is_set = claim.as_deref().is_some_and(|value| edits.set(header, value).is_ok());
            if !is_set {
                edits.remove(header).ok()?;
            }
        }
        Some(Arc::new(edits))
    }
}

impl PartialEq for JwtAuth {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.verifier, &other.verifier)
            && (&self.issuer, &self.audiences, &self.claim_headers)
                == (&other.issuer, &other.audiences, &other.claim_headers)
    }
}

impl Eq for JwtAuth {}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ISSUER,AUDIENCE,CLAIM`.
    #[derive(Debug)]
    struct PlainJwtVerifier;

    impl JwtVerifier for PlainJwtVerifier {
        fn verify(&self, token: &str, claims: &[&str], now_s: u64) -> Result<VerifiedJwt, TokenError> {
            let parts: Vec<&str> = token.split(',').collect();
            let [issuer, audience, claim] = parts[..] else { return Err(TokenError::Unknown) };
            let claim = Some(claim).filter(|claim| !claim.is_empty()).map(Into::into);
            Ok(VerifiedJwt {
                issuer: Some(issuer.into()),
                audiences: vec![audience.into()],
                until_s: now_s + 60,
                claims: claims.iter().map(|_| claim.clone()).collect(),
            })
        }
    }

    #[test]
    fn token_of_another_issuer_or_audience_is_refused() {
        let auth = JwtAuth::new(Arc::new(PlainJwtVerifier), Some("us"), &["app".to_owned(), "web".to_owned()]);
        for (token, found) in [
            ("us,app,", Ok(60)),
            ("us,web,", Ok(60)),
            ("us,other,", Err(AuthenticationError::WrongToken)),
            ("them,app,", Err(AuthenticationError::WrongToken)),
            ("", Err(AuthenticationError::Token(TokenError::Unknown))),
        ] {
            assert_eq!(auth.verify(token, 0).map(|identity| identity.until_s), found, "{token}");
        }
        let any = JwtAuth::new(Arc::new(PlainJwtVerifier), None, &[]);
        assert!(any.verify("them,other,", 0).is_ok());
    }

    #[test]
    fn claim_replaces_the_header_of_the_client() {
        let mut auth = JwtAuth::new(Arc::new(PlainJwtVerifier), None, &[]);
        assert!(auth.add_claim_header("sub", "Content-Length").is_err());
        auth.add_claim_header("sub", "X-Sub").unwrap();
        let headers = |token: &str| auth.verify(token, 0).unwrap().headers.unwrap();
        assert_eq!(headers("a,b,ann").headers().collect::<Vec<_>>(), [("X-Sub", "ann")]);
        for token in ["a,b,", "a,b,x\r\ny: z"] {
            assert!(headers(token).headers().next().is_none() && headers(token).replaces(b"x-sub"), "{token:?}");
        }
    }

    #[test]
    fn only_a_refused_token_is_called_invalid() {
        let auth = JwtAuth::new(Arc::new(PlainJwtVerifier), Some("https://us"), &[]);
        assert_eq!(&*auth.challenge(AuthenticationError::Missing), "Bearer realm=\"https://us\"");
        assert!(auth.challenge(AuthenticationError::WrongToken).ends_with("error=\"invalid_token\""));
    }
}
