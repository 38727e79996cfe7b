//! Which senders may send to a stream: the rules that control provides, and the interface that verifies tokens.
//!
//! A stream with a [`StreamAdmission`] requires a bearer token on each request. A [`TokenVerifier`] decides which tokens
//! are valid; cores cache the results. Deliberately absent: accounts, policies, and revocation before a token expires.

use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use crate::filter::EventFilter;

/// Verifies tokens.
pub trait TokenVerifier: fmt::Debug + Send + Sync {
    /// Verifies a token at `now_s` seconds after 1970. Called on a core, for tokens that are not in its
    /// cache.
    ///
    /// # Errors The token is invalid, or cannot be verified now.
    fn read(&self, token: &str, now_s: u64) -> Result<VerifiedToken, TokenError>;
}

/// The identity in a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedToken {
    pub subject: Box<str>,
    /// The audiences that the token was issued for.
    pub audiences: Vec<Box<str>>,
    /// Expiry, in seconds after 1970.
    pub until_s: u64,
}

/// Why a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token is malformed, or is signed by an unknown issuer")]
    Unknown,
    #[error("the token has expired, or is not valid yet")]
    OutOfTime,
    /// Our fault, and not the sender's.
    #[error("the keys that sign tokens are not known here yet")]
    NoKeys,
}

/// Which senders may send to a stream.
#[derive(Debug, Clone)]
pub struct StreamAdmission {
    pub verifier: Arc<dyn TokenVerifier>,
    /// Tokens for one of these audiences are accepted.
    pub audiences: Vec<Box<str>>,
    /// One matching rule is enough.
    pub grants: Vec<AdmissionRule>,
}

impl PartialEq for StreamAdmission {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.verifier, &other.verifier)
            && (&self.audiences, &self.grants) == (&other.audiences, &other.grants)
    }
}

impl Eq for StreamAdmission {}

/// Allows some senders to send some events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRule {
    pub subjects: SubjectMatcher,
    pub filter: EventFilter,
}

/// Names, some of them as prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubjectMatcher {
    whole: HashSet<Box<str>, RandomState>,
    beginnings: Vec<Box<str>>,
}

impl SubjectMatcher {
    #[must_use]
    pub fn any() -> Self {
        ["*"].into_iter().collect()
    }

    #[must_use]
    pub fn has(&self, subject: &str) -> bool {
        self.whole.contains(subject) || self.beginnings.iter().any(|begin| subject.starts_with(&**begin))
    }
}

/// A name that ends in `*` matches every name with this prefix.
impl<'a> FromIterator<&'a str> for SubjectMatcher {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        let mut subjects = Self::default();
        for name in names {
            match name.strip_suffix('*') {
                Some(begin) => subjects.beginnings.push(begin.into()),
                None => drop(subjects.whole.insert(name.into())),
            }
        }
        subjects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-FEA-09: a subject matches exactly, or by its prefix.
    #[test]
    fn subjects_match_exactly_or_by_prefix() {
        let subjects: SubjectMatcher =
            ["system:serviceaccount:ns:a", "system:serviceaccount:other:*"].into_iter().collect();
        for (subject, has) in [
            ("system:serviceaccount:ns:a", true),
            ("system:serviceaccount:ns:ab", false),
            ("system:serviceaccount:other:b", true),
            ("system:serviceaccount:others:b", false),
        ] {
            assert_eq!(subjects.has(subject), has, "{subject}");
        }
        assert!(SubjectMatcher::any().has("anybody") && !SubjectMatcher::default().has("anybody"));
    }
}
