//! Authenticates senders of a stream, and provides the tokens of our own deliveries.
//!
//! A stream with a [`StreamAdmission`] requires a bearer token on each request. A [`TokenVerifier`] decides
//! which tokens are valid; a core caches the results, so that a warm sender costs one look-up. Deliberately
//! absent: accounts, policies, and revocation before a token expires.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use tokio::sync::Notify;

use super::filter::matches;
use super::filter::steps::Steps;
use super::ingress::IncomingEvent;
use super::limits::{TOKEN_BYTES_MAX, TOKEN_CACHE_MAX};
use super::record::EventRecord;
use crate::table::EventFilter;

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
    Astray { audience: Box<str> },
}

impl StreamAdmission {
    fn audience(&self) -> Box<str> {
        self.audiences.first().cloned().unwrap_or_default()
    }

    /// Whether `subject` may send all of `events`. Nothing is copied unless a rule has a filter.
    #[must_use]
    pub fn admits(&self, subject: &str, events: &[IncomingEvent<'_>]) -> bool {
        let mut filters: Vec<&EventFilter> = Vec::new();
        for grant in self.grants.iter().filter(|grant| grant.subjects.has(subject)) {
            if grant.filter == EventFilter::Everything {
                return true;
            }
            filters.push(&grant.filter); // few, and only under policies with filters
        }
        if filters.is_empty() {
            return false;
        }
        let steps = Steps::default(); // for the whole request: a batch has a thousand events
        events.iter().all(|entering| {
            let mut bytes = entering.head(&[]);
            bytes.extend_from_slice(entering.event.data.bytes()); // an event is encoded as a whole
            EventRecord::decode(bytes.into())
                .is_ok_and(|record| filters.iter().any(|filter| matches(filter, &record, &steps)))
        })
    }
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
    /// By the whole token: a hash alone could collide with another token's.
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
        let silent = || AuthError::Silent { audience: admission.audience() };
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
            Err(AuthError::Astray { audience: admission.audience() })
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

/// The token of an Authorization header's value.
fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The token of an outgoing request.
#[derive(Debug, PartialEq, Eq)]
pub struct PresentedToken {
    /// The value of Authorization.
    pub value: Box<str>,
    pub since: Instant,
}

impl PresentedToken {
    fn new(value: String) -> Self {
        Self { value: value.into(), since: Instant::now() }
    }
}

/// The token that deliveries send to a target with authentication. It is renewed in place, so that a new
/// token needs no new table.
#[derive(Default)]
pub struct AccessToken {
    token: ArcSwapOption<PresentedToken>,
    is_login: bool,
    /// A receiver rejected the token, and this was not handled yet.
    is_refused: AtomicBool,
    /// Notified when that happens.
    notify: Option<Arc<Notify>>,
}

impl AccessToken {
    /// Without a token yet; `notify` is notified when a receiver rejects the current one.
    #[must_use]
    pub fn renewed_by(notify: Arc<Notify>) -> Self {
        Self { notify: Some(notify), ..Self::default() }
    }

    /// A receiver answered 401: the token may have expired by its clock.
    pub fn refuse(&self) {
        if !self.is_refused.swap(true, Relaxed)
            && let Some(notify) = &self.notify
        {
            notify.notify_one();
        }
    }

    /// Whether a receiver rejected the token since the last call.
    pub fn take_refusal(&self) -> bool {
        self.is_refused.swap(false, Relaxed)
    }

    /// The user and password of a URL, in the form before the `@` of its host.
    #[must_use]
    pub fn of_login(userinfo: &str) -> Self {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let plain = [percent_decoded(user), vec![b':'], percent_decoded(password)].concat();
        let shown = PresentedToken::new(format!("Basic {}", BASE64.encode(plain)));
        Self { token: ArcSwapOption::from_pointee(Some(shown)), is_login: true, ..Self::default() }
    }

    /// Whether the target's URL contains the credentials, so that no renewal exists.
    #[must_use]
    pub const fn is_login(&self) -> bool {
        self.is_login
    }

    /// The value of the header; `None` until there is a first token.
    #[must_use]
    pub fn token(&self) -> Option<Arc<PresentedToken>> {
        self.token.load_full()
    }

    pub fn renew(&self, token: &str) {
        self.token.store(Some(Arc::new(PresentedToken::new(format!("Bearer {token}")))));
    }
}

/// Decodes `%` and two hex digits; anything that is no escape stays as it is.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut parts = text.as_bytes().split(|byte| *byte == b'%');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = part.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|digits| !digits.starts_with('+')).map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(byte)) => {
                out.push(byte);
                out.extend_from_slice(&part[2..]);
            }
            _ => {
                out.push(b'%');
                out.extend_from_slice(part);
            }
        }
    }
    out
}

/// Equal if it is the same object, since tokens are renewed; or the same login.
impl PartialEq for AccessToken {
    fn eq(&self, other: &Self) -> bool {
        let is_same_login = || {
            let value = |pass: &Self| pass.token().map(|shown| shown.value.clone());
            self.is_login && other.is_login && value(self) == value(other)
        };
        std::ptr::eq(self, other) || is_same_login()
    }
}

impl Eq for AccessToken {}

impl fmt::Debug for AccessToken {
    /// The token must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.token.load().is_some() { "Pass" } else { "Pass (none yet)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

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

    /// RFC 7617, RFC 3986 section 3.2.1: the user of a URL is sent in the same form as Go's and other
    /// clients send it.
    #[test]
    fn login_is_sent_as_basic_and_compared_by_value() {
        for (userinfo, plain) in [
            ("u:p", "u:p"),
            ("u", "u:"),
            ("u:", "u:"),
            ("a%40b:p%3Aq%25", "a@b:p:q%"),
            ("u:%zz%4", "u:%zz%4"),
            ("%+1:a:b", "%+1:a:b"),
        ] {
            let pass = AccessToken::of_login(userinfo);
            assert_eq!(*pass.token().unwrap().value, *format!("Basic {}", BASE64.encode(plain)), "{userinfo}");
            assert_eq!(pass, AccessToken::of_login(userinfo));
        }
        assert_ne!(AccessToken::of_login("u:p"), AccessToken::of_login("u:q"));
        assert_ne!(AccessToken::default(), AccessToken::default());
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
            ("Bearer me@c@10", 2, Err(AuthError::Astray { audience: "a".into() })),
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
