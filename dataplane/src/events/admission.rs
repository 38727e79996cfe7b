//! Who may send to a stream, and what our own deliveries show to somebody who asks the same.
//!
//! A stream with an [`Admission`] wants a bearer token on each request. What a token is and who signed it is the
//! business of whoever implements [`Papers`]; a core remembers what it has seen, so that a warm sender costs one
//! look-up. Deliberately absent: accounts, policies, and revocation before a token ends.

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

use super::filter::steps::Steps;
use super::filter::wants;
use super::ingress::Entering;
use super::limits::{TOKEN_BYTES_MAX, TOKENS_KNOWN_MAX};
use super::record::Record;
use crate::table::Filter;

/// Knows tokens.
pub trait Papers: fmt::Debug + Send + Sync {
    /// Whose token it is, at `now_s` seconds after 1970. Called on a core, for tokens that it does not know.
    ///
    /// # Errors
    /// Nobody's, or nobody can say.
    fn read(&self, token: &str, now_s: u64) -> Result<Bearer, BadToken>;
}

/// Who somebody is, as long as his token is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    pub subject: Box<str>,
    /// For whom the token was made out.
    pub audiences: Vec<Box<str>>,
    /// Seconds after 1970; from then on the token says nothing.
    pub until_s: u64,
}

/// Why a token says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("the token is none, or is signed by nobody who is known here")]
    Unknown,
    #[error("the token has ended, or has not begun")]
    OutOfTime,
    /// Ours to mend, and not the sender's.
    #[error("the keys that tokens are signed with are not known here yet")]
    NoKeys,
}

/// Who may send to a stream.
#[derive(Debug, Clone)]
pub struct Admission {
    pub papers: Arc<dyn Papers>,
    /// Tokens for one of these are meant for the stream.
    pub audiences: Vec<Box<str>>,
    /// One that grants is enough.
    pub grants: Vec<Grant>,
}

impl PartialEq for Admission {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.papers, &other.papers)
            && (&self.audiences, &self.grants) == (&other.audiences, &other.grants)
    }
}

impl Eq for Admission {}

/// Some senders may send some events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub subjects: Subjects,
    pub filter: Filter,
}

/// Names, some of them by their beginnings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subjects {
    whole: HashSet<Box<str>, RandomState>,
    beginnings: Vec<Box<str>>,
}

impl Subjects {
    #[must_use]
    pub fn everybody() -> Self {
        ["*"].into_iter().collect()
    }

    #[must_use]
    pub fn has(&self, subject: &str) -> bool {
        self.whole.contains(subject) || self.beginnings.iter().any(|begin| subject.starts_with(&**begin))
    }
}

/// A name that ends in `*` means all that begin like it.
impl<'a> FromIterator<&'a str> for Subjects {
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

/// Why somebody is a stranger at a stream's door.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    #[error("a token is needed here: Authorization: Bearer TOKEN, made out for \"{audience}\"")]
    Silent { audience: Box<str> },
    #[error("there is more than one Authorization header")]
    Ambiguous,
    #[error("the token has more than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    #[error("{0}")]
    Bad(#[from] BadToken),
    #[error("the token is not made out for \"{audience}\"")]
    Astray { audience: Box<str> },
}

impl Admission {
    fn audience(&self) -> Box<str> {
        self.audiences.first().cloned().unwrap_or_default()
    }

    /// Whether `subject` may send all of `events`. Nothing is copied unless a grant has a filter.
    #[must_use]
    pub fn admits(&self, subject: &str, events: &[Entering<'_>]) -> bool {
        let mut filters: Vec<&Filter> = Vec::new();
        for grant in self.grants.iter().filter(|grant| grant.subjects.has(subject)) {
            if grant.filter == Filter::Everything {
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
            bytes.extend_from_slice(entering.event.data.bytes()); // a record is whole, or none
            Record::decode(bytes.into())
                .is_ok_and(|record| filters.iter().any(|filter| wants(filter, &record, &steps)))
        })
    }
}

/// What one core remembers of tokens.
#[derive(Default)]
pub struct Porter {
    known: RefCell<Known>,
}

#[derive(Default)]
struct Known {
    /// Whose word the others are; another one's are worth nothing.
    papers: Option<Arc<dyn Papers>>,
    /// By the whole token: a hash alone could be met by another token.
    by_token: HashMap<Box<str>, Rc<Bearer>, RandomState>,
}

impl Porter {
    /// Who sends a request with these headers.
    ///
    /// # Errors
    /// Nobody that can be known.
    pub fn identify(
        &self,
        admission: &Admission,
        headers: &[(&str, &[u8])],
        now_s: u64,
    ) -> Result<Rc<Bearer>, Stranger> {
        let mut given = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let silent = || Stranger::Silent { audience: admission.audience() };
        let (_, value) = given.next().ok_or_else(silent)?;
        if given.next().is_some() {
            return Err(Stranger::Ambiguous);
        }
        let token = bearer(value).ok_or_else(silent)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Stranger::TooLong);
        }
        let bearer = self.read(&admission.papers, token, now_s)?;
        if bearer.audiences.iter().any(|audience| admission.audiences.contains(audience)) {
            Ok(bearer)
        } else {
            Err(Stranger::Astray { audience: admission.audience() })
        }
    }

    fn read(&self, papers: &Arc<dyn Papers>, token: &str, now_s: u64) -> Result<Rc<Bearer>, BadToken> {
        let mut known = self.known.borrow_mut();
        if !known.papers.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, papers)) {
            *known = Known { papers: Some(Arc::clone(papers)), by_token: HashMap::default() };
        }
        if let Some(bearer) = known.by_token.get(token) {
            return if now_s < bearer.until_s { Ok(Rc::clone(bearer)) } else { Err(BadToken::OutOfTime) };
        }
        let bearer = Rc::new(papers.read(token, now_s)?);
        if known.by_token.len() >= TOKENS_KNOWN_MAX {
            known.by_token.retain(|_, bearer| now_s < bearer.until_s);
            if known.by_token.len() >= TOKENS_KNOWN_MAX {
                known.by_token.clear(); // all in use: reading again is better than growing
            }
        }
        known.by_token.insert(token.into(), Rc::clone(&bearer)); // once a token and core
        Ok(bearer)
    }
}

/// The token of an Authorization header's value.
fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// What a request shows.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// The value of Authorization.
    pub value: Box<str>,
    pub since: Instant,
}

impl Shown {
    fn new(value: String) -> Self {
        Self { value: value.into(), since: Instant::now() }
    }
}

/// What a delivery shows to a target that asks who comes. It is renewed in place, so that a new token is no new
/// table.
#[derive(Default)]
pub struct Pass {
    shown: ArcSwapOption<Shown>,
    is_login: bool,
    /// A receiver refused the token, and it has not been looked at since.
    is_refused: AtomicBool,
    /// Rung when that is so.
    bell: Option<Arc<Notify>>,
}

impl Pass {
    /// One without a token yet; `bell` tells that a receiver refused the one that there is.
    #[must_use]
    pub fn renewed_by(bell: Arc<Notify>) -> Self {
        Self { bell: Some(bell), ..Self::default() }
    }

    /// A receiver answered 401: the token may have ended by its clock.
    pub fn refuse(&self) {
        if !self.is_refused.swap(true, Relaxed)
            && let Some(bell) = &self.bell
        {
            bell.notify_one();
        }
    }

    /// Whether a receiver refused the token since the last call.
    pub fn take_refusal(&self) -> bool {
        self.is_refused.swap(false, Relaxed)
    }

    /// The user and password of a URL, as they stand before its host's `@`.
    #[must_use]
    pub fn of_login(userinfo: &str) -> Self {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let plain = [percent_decoded(user), vec![b':'], percent_decoded(password)].concat();
        let shown = Shown::new(format!("Basic {}", BASE64.encode(plain)));
        Self { shown: ArcSwapOption::from_pointee(Some(shown)), is_login: true, ..Self::default() }
    }

    /// Whether its target's URL says it all, and nobody renews it.
    #[must_use]
    pub const fn is_login(&self) -> bool {
        self.is_login
    }

    /// What stands in the header; `None` until there is a first token.
    #[must_use]
    pub fn shown(&self) -> Option<Arc<Shown>> {
        self.shown.load_full()
    }

    pub fn renew(&self, token: &str) {
        self.shown.store(Some(Arc::new(Shown::new(format!("Bearer {token}")))));
    }
}

/// Bytes behind `%` and two digits; what is no escape stands for itself.
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

/// One that is the same object, since tokens come and go; or the same login.
impl PartialEq for Pass {
    fn eq(&self, other: &Self) -> bool {
        let is_same_login = || {
            let value = |pass: &Self| pass.shown().map(|shown| shown.value.clone());
            self.is_login && other.is_login && value(self) == value(other)
        };
        std::ptr::eq(self, other) || is_same_login()
    }
}

impl Eq for Pass {}

impl fmt::Debug for Pass {
    /// The token is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.shown.load().is_some() { "Pass" } else { "Pass (none yet)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Takes `NAME@AUDIENCE@END` for a token.
    #[derive(Debug, Default)]
    struct Plain {
        read: AtomicU64,
    }

    impl Papers for Plain {
        fn read(&self, token: &str, now_s: u64) -> Result<Bearer, BadToken> {
            self.read.fetch_add(1, Relaxed);
            let mut parts = token.split('@');
            let mut next = || parts.next().ok_or(BadToken::Unknown);
            let (subject, audience, until) = (next()?, next()?, next()?);
            let until_s = until.parse().map_err(|_| BadToken::Unknown)?;
            let bearer = Bearer { subject: subject.into(), audiences: vec![audience.into()], until_s };
            if now_s < until_s { Ok(bearer) } else { Err(BadToken::OutOfTime) }
        }
    }

    fn admission(papers: &Arc<Plain>) -> Admission {
        let papers = Arc::clone(papers) as Arc<dyn Papers>;
        Admission { papers, audiences: vec!["a".into(), "b".into()], grants: Vec::new() }
    }

    /// RFC 7617, RFC 3986 section 3.2.1: what a URL says of its user is shown as Go's and other clients show it.
    #[test]
    fn a_login_is_shown_as_basic_and_is_the_same_where_it_says_the_same() {
        for (userinfo, plain) in [
            ("u:p", "u:p"),
            ("u", "u:"),
            ("u:", "u:"),
            ("a%40b:p%3Aq%25", "a@b:p:q%"),
            ("u:%zz%4", "u:%zz%4"),
            ("%+1:a:b", "%+1:a:b"),
        ] {
            let pass = Pass::of_login(userinfo);
            assert_eq!(
                *pass.shown().unwrap().value,
                *format!("Basic {}", BASE64.encode(plain)),
                "{userinfo}"
            );
            assert_eq!(pass, Pass::of_login(userinfo));
        }
        assert_ne!(Pass::of_login("u:p"), Pass::of_login("u:q"));
        assert_ne!(Pass::default(), Pass::default());
    }

    #[test]
    fn a_token_is_read_once_and_believed_for_its_time_and_audience() {
        let (plain, porter) = (Arc::new(Plain::default()), Porter::default());
        let admission = admission(&plain);
        let ask = |value: &str, now| {
            porter
                .identify(&admission, &[("Authorization", value.as_bytes())], now)
                .map(|b| b.subject.clone())
        };
        let silent = Stranger::Silent { audience: "a".into() };
        let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1));
        for (value, now, expected) in [
            ("Bearer me@a@10", 1, Ok("me")),
            ("bearer  me@a@10", 2, Ok("me")),
            ("Bearer me@b@10", 2, Ok("me")),
            ("Bearer me@a@10", 9, Ok("me")),
            ("Bearer me@a@10", 10, Err(BadToken::OutOfTime.into())),
            ("Bearer me@a@1", 2, Err(BadToken::OutOfTime.into())),
            ("Bearer me@c@10", 2, Err(Stranger::Astray { audience: "a".into() })),
            ("Bearer me", 2, Err(BadToken::Unknown.into())),
            ("Basic me@a@10", 2, Err(silent.clone())),
            ("Bearer ", 2, Err(silent.clone())),
            (long.as_str(), 2, Err(Stranger::TooLong)),
        ] {
            assert_eq!(ask(value, now), expected.map(Box::from), "{value:.40} at {now}");
        }
        assert_eq!(plain.read.load(Relaxed), 5, "two good ones, one astray, two bad ones");
        assert_eq!(porter.identify(&admission, &[], 1).unwrap_err(), silent);
        let twice: [(&str, &[u8]); 2] =
            [("authorization", b"Bearer me@a@10"), ("Authorization", b"Bearer x")];
        assert_eq!(porter.identify(&admission, &twice, 1).unwrap_err(), Stranger::Ambiguous);
    }

    #[test]
    fn what_others_papers_said_is_forgotten_and_memory_is_bounded() {
        let (first, second, porter) =
            (Arc::new(Plain::default()), Arc::new(Plain::default()), Porter::default());
        for papers in [&first, &second, &first] {
            porter.identify(&admission(papers), &[("authorization", b"Bearer me@a@10")], 1).unwrap();
        }
        assert_eq!((first.read.load(Relaxed), second.read.load(Relaxed)), (2, 1));
        let admission = admission(&first);
        for n in 0..=TOKENS_KNOWN_MAX {
            let value = format!("Bearer {n}@a@10");
            porter.identify(&admission, &[("authorization", value.as_bytes())], 1).unwrap();
            assert!(porter.known.borrow().by_token.len() <= TOKENS_KNOWN_MAX);
        }
    }

    /// X-FEA-09: a name is meant as it stands, or by its beginning.
    #[test]
    fn subjects_are_whole_or_begin_alike() {
        let subjects: Subjects =
            ["system:serviceaccount:ns:a", "system:serviceaccount:other:*"].into_iter().collect();
        for (subject, has) in [
            ("system:serviceaccount:ns:a", true),
            ("system:serviceaccount:ns:ab", false),
            ("system:serviceaccount:other:b", true),
            ("system:serviceaccount:others:b", false),
        ] {
            assert_eq!(subjects.has(subject), has, "{subject}");
        }
        assert!(Subjects::everybody().has("anybody") && !Subjects::default().has("anybody"));
    }
}
