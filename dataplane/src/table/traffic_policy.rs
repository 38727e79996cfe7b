//! What a route does beyond dividing its requests: clients that stay where they are, copies for comparison.

use std::sync::Arc;

use crate::hex;
use crate::http::codec::{FieldName, RequestView};

/// Beyond weights. Most routes have none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrafficPolicy {
    pub sticky: Option<SessionKey>,
    pub mirror: Option<Arc<MirrorPolicy>>,
}

/// What a client is known by: the same value leads to the same share and, while it has room, to the same instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKey {
    /// The value of this header; requests without it are divided anew.
    Header(Box<str>),
    /// The value of this cookie, which somebody else issues; requests without it are divided anew.
    Cookie(Box<str>),
    /// A cookie of ours ([`STICKY_COOKIE`]); an answer to a client without it brings it.
    Issued,
}

/// Copies of requests, sent when the client has had its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorPolicy {
    /// The copy goes where this host's requests go.
    pub host: Box<str>,
    /// Of a hundred requests.
    pub percent: u8,
}

/// The cookie's name.
pub const STICKY_COOKIE: &str = "sluicegate-sticky";

/// What its route's manners make of one request.
#[derive(Debug, Clone, Default)]
pub struct SessionAffinity {
    /// Names the client, if it is known by anything.
    pub key: Option<u64>,
    /// The cookie that the client has still to get.
    pub cookie: Option<AffinityCookie>,
    pub mirror: Option<Arc<MirrorPolicy>>,
}

/// A cookie to be issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityCookie {
    number: u64,
    /// The request came by TLS, so the browser is to send it by TLS only.
    secure: bool,
}

impl SessionKey {
    /// The request's key; `chance` becomes a new client's cookie. `secure`: the request came by TLS.
    #[must_use]
    pub fn bind(&self, request: RequestView<'_>, secure: bool, chance: impl FnOnce() -> u64) -> SessionAffinity {
        let found = match self {
            Self::Header(name) => request.field(name),
            Self::Cookie(name) => cookie(request, name),
            Self::Issued => cookie(request, STICKY_COOKIE),
        };
        match (found.filter(|value| !value.is_empty()), self) {
            (Some(value), _) => SessionAffinity { key: Some(hash(value)), ..SessionAffinity::default() },
            (None, Self::Issued) => {
                let cookie = AffinityCookie { number: chance(), secure };
                SessionAffinity { key: Some(hash(&cookie.digits())), cookie: Some(cookie), mirror: None }
            }
            (None, _) => SessionAffinity::default(),
        }
    }
}

impl AffinityCookie {
    fn digits(self) -> [u8; 16] {
        let mut digits = [0; 16];
        hex::put(&mut digits, self.number.into());
        digits
    }

    /// The value of `Set-Cookie`. Lasts as long as the browser's session; `Lax`, so that a link from elsewhere
    /// leads to the same version as before.
    #[must_use]
    pub fn value(self) -> Vec<u8> {
        let secure: &[u8] = if self.secure { b"; Secure" } else { b"" };
        [STICKY_COOKIE.as_bytes(), b"=", &self.digits(), b"; Path=/; HttpOnly; SameSite=Lax", secure].concat()
    }
}

/// A cookie's value among all that a request brings.
fn cookie<'a>(request: RequestView<'a>, name: &str) -> Option<&'a [u8]> {
    let fields = request.fields().filter(|(field, _)| field.eq_ignore_ascii_case("cookie"));
    let mut pairs = fields.flat_map(|(_, value)| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// FNV-1a, then mixed: the same on every core, after every restart and in every version, because a client's
/// place hangs on it.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Spreads a number's bits (the finalizer of splitmix64).
#[must_use]
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Whether a header may name clients: one that the proxy writes or removes itself may not.
#[must_use]
pub fn names_clients(header: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !header.is_empty() && header.bytes().all(token) && FieldName::of(header.as_bytes()) == FieldName::Other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::codec::{Parsed, RequestHead, parse_request};

    fn bond(sticky: &SessionKey, fields: &str) -> SessionAffinity {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
        sticky.bind(head.view(text.as_bytes()), false, || 0x0123_4567_89ab_cdef)
    }

    #[test]
    fn cookie_issued_by_tls_is_secure() {
        for (secure, ends) in [(false, "; SameSite=Lax"), (true, "; SameSite=Lax; Secure")] {
            let value = AffinityCookie { number: 7, secure }.value();
            assert!(value.ends_with(ends.as_bytes()), "{value:?}");
        }
    }

    #[test]
    fn a_client_is_known_by_its_header_or_cookie_and_by_nothing_else() {
        let own = |name: &str| SessionKey::Cookie(name.into());
        for (sticky, fields, known) in [
            (SessionKey::Header("X-User".into()), "x-user: ann\r\n", true),
            (SessionKey::Header("X-User".into()), "X-User:\r\n", false),
            (SessionKey::Header("X-User".into()), "X-Users: ann\r\n", false),
            (own("id"), "Cookie: a=1; id=2\r\n", true),
            (own("id"), "Cookie: a=1\r\nCookie: id=2\r\n", true),
            (own("id"), "Cookie: xid=2; ID=3; id\r\n", false),
            (own("id"), "", false),
        ] {
            let bond = bond(&sticky, fields);
            assert_eq!(bond.key.is_some(), known, "{sticky:?} {fields:?}");
            assert!(bond.cookie.is_none());
        }
    }

    #[test]
    fn a_new_client_is_given_a_cookie_that_leads_to_where_it_went_first() {
        let first = bond(&SessionKey::Issued, "");
        let value = String::from_utf8(first.cookie.unwrap().value()).unwrap();
        assert_eq!(value, "sluicegate-sticky=0123456789abcdef; Path=/; HttpOnly; SameSite=Lax");
        let sent = value.split(';').next().unwrap();
        let again = bond(&SessionKey::Issued, &format!("Cookie: a=b; {sent}\r\n"));
        assert_eq!((again.key, again.cookie), (first.key, None));
    }

    /// Places hang on it: another function would send every client elsewhere.
    #[test]
    fn a_value_has_the_same_key_for_ever() {
        assert_eq!((hash(b""), hash(b"ann")), (0xf52a_15e9_a9b5_e89b, 0x8096_e52a_d559_ed80));
    }

    #[test]
    fn headers_of_the_proxys_own_name_nobody() {
        for (name, fits) in [("X-User", true), ("Host", false), ("Connection", false), ("a b", false), ("", false)] {
            assert_eq!(names_clients(name), fits, "{name}");
        }
    }
}
