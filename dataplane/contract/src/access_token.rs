//! The tokens of our own deliveries.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio::sync::Notify;

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
        f.write_str(if self.token.load().is_some() { "AccessToken" } else { "AccessToken (none yet)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
