//! Authenticates senders of a stream.
//!
//! A stream with a [`StreamAdmission`] requires a bearer token on each request. A [`TokenVerifier`] decides
//! which tokens are valid; a core caches the results, so that a warm sender costs one look-up. Deliberately
//! absent: accounts, policies, and revocation before a token expires.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use contract::stream_admission::{StreamAdmission, TokenError, TokenVerifier, VerifiedToken};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::limits::{TOKEN_BYTES_MAX, TOKEN_CACHE_MAX};

/// Why a sender is not authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("a token is required here: Authorization: Bearer TOKEN, issued for \"{audience}\"")]
    Silent { audience: Box<str> },
    #[error("there is more than one Authorization header")]
    Ambiguous,
    #[error("the token has more than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    #[error("{0}")]
    Bad(#[from] TokenError),
    #[error("the token is not issued for \"{audience}\"")]
    WrongAudience { audience: Box<str> },
}

/// One core's cache of verified tokens.
#[derive(Default)]
pub struct Authenticator {
    cache: RefCell<CachedToken>,
}

#[derive(Default)]
struct CachedToken {
    /// The verifier of the cached tokens; another one invalidates them.
    verifier: Option<Arc<dyn TokenVerifier>>,
    /// Results by the whole token: a hash alone could collide with another token's.
    by_token: HashMap<Box<str>, Rc<VerifiedToken>, RandomState>,
}

impl Authenticator {
    /// Identifies the sender of a request with these headers.
    ///
    /// # Errors The sender is not authenticated.
    pub fn identify(
        &self,
        admission: &StreamAdmission,
        headers: &[(&str, &[u8])],
        now_s: u64,
    ) -> Result<Rc<VerifiedToken>, AuthError> {
        let mut given = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let silent = || AuthError::Silent { audience: audience_of(admission) };
        let (_, value) = given.next().ok_or_else(silent)?;
        if given.next().is_some() {
            return Err(AuthError::Ambiguous);
        }
        let token = bearer(value).ok_or_else(silent)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(AuthError::TooLong);
        }
        let bearer = self.read(&admission.verifier, token, now_s)?;
        if bearer.audiences.iter().any(|audience| admission.audiences.contains(audience)) {
            Ok(bearer)
        } else {
            Err(AuthError::WrongAudience { audience: audience_of(admission) })
        }
    }

    fn read(
        &self,
        verifier: &Arc<dyn TokenVerifier>,
        token: &str,
        now_s: u64,
    ) -> Result<Rc<VerifiedToken>, TokenError> {
        let mut known = self.cache.borrow_mut();
        if !known.verifier.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, verifier)) {
            *known = CachedToken { verifier: Some(Arc::clone(verifier)), by_token: HashMap::default() };
        }
        if let Some(bearer) = known.by_token.get(token) {
            return if now_s < bearer.until_s { Ok(Rc::clone(bearer)) } else { Err(TokenError::OutOfTime) };
        }
        let bearer = Rc::new(verifier.read(token, now_s)?);
        if known.by_token.len() >= TOKEN_CACHE_MAX {
            known.by_token.retain(|_, bearer| now_s < bearer.until_s);
            if known.by_token.len() >= TOKEN_CACHE_MAX {
                known.by_token.clear(); // full: verifying again is better than growing
            }
        }
        known.by_token.insert(token.into(), Rc::clone(&bearer)); // once per token and core
        Ok(bearer)
    }
}

fn audience_of(admission: &StreamAdmission) -> Box<str> {
    admission.audiences.first().cloned().unwrap_or_default()
}

/// The token of an Authorization header's value.
fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    /// Accepts `NAME@AUDIENCE@END` as a token.
    #[derive(Debug, Default)]
    struct PlainTokenVerifier {
        read: AtomicU64,
    }

    impl TokenVerifier for PlainTokenVerifier {
        fn read(&self, token: &str, now_s: u64) -> Result<VerifiedToken, TokenError> {
            self.read.fetch_add(1, Relaxed);
            let mut parts = token.split('@');
            let mut next = || parts.next().ok_or(TokenError::Unknown);
            let (subject, audience, until) = (next()?, next()?, next()?);
            let until_s = until.parse().map_err(|_| TokenError::Unknown)?;
            let bearer = VerifiedToken { subject: subject.into(), audiences: vec![audience.into()], until_s };
            if now_s < until_s { Ok(bearer) } else { Err(TokenError::OutOfTime) }
        }
    }

    fn admission(verifier: &Arc<PlainTokenVerifier>) -> StreamAdmission {
        let verifier = Arc::clone(verifier) as Arc<dyn TokenVerifier>;
        StreamAdmission { verifier, audiences: vec!["a".into(), "b".into()], grants: Vec::new() }
    }

    #[test]
    fn token_is_verified_once_for_its_time_and_audience() {
        let (plain, authenticator) = (Arc::new(PlainTokenVerifier::default()), Authenticator::default());
        let admission = admission(&plain);
        let ask = |value: &str, now| {
            authenticator.identify(&admission, &[("Authorization", value.as_bytes())], now).map(|b| b.subject.clone())
        };
        let silent = AuthError::Silent { audience: "a".into() };
        let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1));
        for (value, now, expected) in [
            ("Bearer me@a@10", 1, Ok("me")),
            ("bearer  me@a@10", 2, Ok("me")),
            ("Bearer me@b@10", 2, Ok("me")),
            ("Bearer me@a@10", 9, Ok("me")),
            ("Bearer me@a@10", 10, Err(TokenError::OutOfTime.into())),
            ("Bearer me@a@1", 2, Err(TokenError::OutOfTime.into())),
            ("Bearer me@c@10", 2, Err(AuthError::WrongAudience { audience: "a".into() })),
            ("Bearer me", 2, Err(TokenError::Unknown.into())),
            ("Basic me@a@10", 2, Err(silent.clone())),
            ("Bearer ", 2, Err(silent.clone())),
            (long.as_str(), 2, Err(AuthError::TooLong)),
        ] {
            assert_eq!(ask(value, now), expected.map(Box::from), "{value:.40} at {now}");
        }
        assert_eq!(plain.read.load(Relaxed), 5, "two good ones, one astray, two bad ones");
        assert_eq!(authenticator.identify(&admission, &[], 1).unwrap_err(), silent);
        let twice: [(&str, &[u8]); 2] = [("authorization", b"Bearer me@a@10"), ("Authorization", b"Bearer x")];
        assert_eq!(authenticator.identify(&admission, &twice, 1).unwrap_err(), AuthError::Ambiguous);
    }

    #[test]
    fn token_cache_is_bounded_and_cleared_for_new_verifier() {
        let (first, second, authenticator) = (
            Arc::new(PlainTokenVerifier::default()),
            Arc::new(PlainTokenVerifier::default()),
            Authenticator::default(),
        );
        for verifier in [&first, &second, &first] {
            authenticator.identify(&admission(verifier), &[("authorization", b"Bearer me@a@10")], 1).unwrap();
        }
        assert_eq!((first.read.load(Relaxed), second.read.load(Relaxed)), (2, 1));
        let admission = admission(&first);
        for n in 0..=TOKEN_CACHE_MAX {
            let value = format!("Bearer {n}@a@10");
            authenticator.identify(&admission, &[("authorization", value.as_bytes())], 1).unwrap();
            assert!(authenticator.cache.borrow().by_token.len() <= TOKEN_CACHE_MAX);
        }
    }
}
