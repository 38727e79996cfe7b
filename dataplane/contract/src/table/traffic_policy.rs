//! Traffic settings of a route beyond the split: session affinity.

use codec::hex;
use codec::http::{FieldName, RequestView};

/// Most routes have none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrafficPolicy {
    pub sticky: Option<SessionKey>,
}

/// How a client is identified: the same value leads to the same share and, while it has capacity, to the same instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKey {
    /// The value of this header; requests without it are split at random.
    Header(Box<str>),
    /// The value of this cookie of the application; requests without it are split at random.
    Cookie(Box<str>),
    /// A cookie that the gateway sets ([`STICKY_COOKIE`]) in the response to a client without it.
    Issued,
}

/// The name of the gateway's cookie.
pub const STICKY_COOKIE: &str = "sluicegate-sticky";

/// The decisions of a route's traffic policy for one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionAffinity {
    /// Identifies the client, if possible.
    pub key: Option<u64>,
    /// The cookie to set in the response.
    pub cookie: Option<AffinityCookie>,
}

/// A cookie to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityCookie {
    number: u64,
    /// The request came over TLS, so the browser should send the cookie over TLS only.
    secure: bool,
}

impl SessionKey {
    /// The request's key; `chance` becomes a new client's cookie. `secure`: the request came over TLS.
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
                SessionAffinity { key: Some(hash(&cookie.digits())), cookie: Some(cookie) }
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

    /// The value of `Set-Cookie`. Lasts for the browser's session; `Lax`, so that a link from another site leads to the
    /// same version as before.
    #[must_use]
    pub fn value(self) -> Vec<u8> {
        let secure: &[u8] = if self.secure { b"; Secure" } else { b"" };
        [STICKY_COOKIE.as_bytes(), b"=", &self.digits(), b"; Path=/; HttpOnly; SameSite=Lax", secure].concat()
    }
}

/// A cookie's value among all that a request has.
fn cookie<'a>(request: RequestView<'a>, name: &str) -> Option<&'a [u8]> {
    let fields = request.fields().filter(|(field, _)| field.eq_ignore_ascii_case("cookie"));
    let mut pairs = fields.flat_map(|(_, value)| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// FNV-1a, then mixed: the same on every core, after every restart and in every version, because session affinity
/// depends on it.
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

/// Whether a header may identify clients; those that the proxy writes or removes may not.
#[must_use]
pub fn names_clients(header: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !header.is_empty()
        && header.bytes().all(token)
        && matches!(FieldName::of(header.as_bytes()), FieldName::Other | FieldName::ForwardedOther)
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::http::{Parsed, RequestHead, parse_request};

    fn affinity(sticky: &SessionKey, fields: &str) -> SessionAffinity {
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
    fn client_is_identified_only_by_its_header_or_cookie() {
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
            let affinity = affinity(&sticky, fields);
            assert_eq!(affinity.key.is_some(), known, "{sticky:?} {fields:?}");
            assert!(affinity.cookie.is_none());
        }
    }

    #[test]
    fn new_client_gets_a_cookie_for_its_first_backend() {
        let first = affinity(&SessionKey::Issued, "");
        let value = String::from_utf8(first.cookie.unwrap().value()).unwrap();
        assert_eq!(value, "sluicegate-sticky=0123456789abcdef; Path=/; HttpOnly; SameSite=Lax");
        let sent = value.split(';').next().unwrap();
        let again = affinity(&SessionKey::Issued, &format!("Cookie: a=b; {sent}\r\n"));
        assert_eq!((again.key, again.cookie), (first.key, None));
    }

    /// Session affinity depends on it: another function would send every client elsewhere.
    #[test]
    fn affinity_hash_is_stable() {
        assert_eq!((hash(b""), hash(b"ann")), (0xf52a_15e9_a9b5_e89b, 0x8096_e52a_d559_ed80));
    }

    #[test]
    fn proxy_headers_cannot_identify_clients() {
        for (name, fits) in [("X-User", true), ("Host", false), ("Connection", false), ("a b", false), ("", false)] {
            assert_eq!(names_clients(name), fits, "{name}");
        }
    }
}
