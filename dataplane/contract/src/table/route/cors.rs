//! Cross-origin resource sharing (Fetch standard, section 3.2): which pages of other origins may use a rule from a browser.

use codec::http::{Method, RequestView};

use super::header_edits::{HeaderChanges, HeaderEditError};
use super::request::RouteRequest;

/// Origins, methods or headers of one policy, and headers that one preflight may ask for: each of them is compared with each.
pub const CORS_ITEMS_MAX: usize = 64;

/// How long browsers may keep the result of a preflight if the policy does not say: 5 s, as in Gateway API.
const CORS_MAX_AGE_DEFAULT_S: u32 = 5;

const ALLOW_ORIGIN: &str = "Access-Control-Allow-Origin";
const ALLOW_CREDENTIALS: &str = "Access-Control-Allow-Credentials";
const ALLOW_METHODS: &str = "Access-Control-Allow-Methods";
const ALLOW_HEADERS: &str = "Access-Control-Allow-Headers";
const EXPOSE_HEADERS: &str = "Access-Control-Expose-Headers";
const MAX_AGE: &str = "Access-Control-Max-Age";
const REQUEST_METHOD: &str = "Access-Control-Request-Method";
const REQUEST_HEADERS: &str = "Access-Control-Request-Headers";

/// The policy of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsPolicy {
    origins: Vec<OriginPattern>,
    methods: TokenList,
    headers: TokenList,
    exposed: TokenList,
    pub allow_credentials: bool,
    /// Seconds.
    pub max_age: Option<u32>,
}

/// `SCHEME://HOST[:PORT]`, in lower case. A `*` in the host stands for any characters on its left, `*` alone for each origin.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OriginPattern {
    Any,
    Exact(Box<str>),
    /// What stands before and after the `*`.
    Wildcard(Box<str>, Box<str>),
}

/// Tokens, or `*` for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TokenList {
    any: bool,
    tokens: Vec<Box<str>>,
}

/// Why an item of a policy is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorsPolicyError {
    #[error("is not an origin: use http://HOST, https://HOST, with a port or a * in the host if needed, or *")]
    Origin,
    #[error("is neither a method or header name nor *")]
    Token,
    #[error("exceeds the limit of {CORS_ITEMS_MAX} items")]
    TooMany,
}

/// What a policy says about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CorsDecision {
    /// It is a preflight: it is answered with these fields.
    Preflight(HeaderChanges),
    /// It goes to its backend, and these changes are made to its response.
    Forward(HeaderChanges),
}

impl CorsPolicy {
    /// Allows an origin.
    ///
    /// # Errors
    ///
    /// It is not one, or there are too many.
    pub fn allow_origin(&mut self, text: &str) -> Result<(), CorsPolicyError> {
        room(self.origins.len())?;
        self.origins.push(OriginPattern::parse(text).ok_or(CorsPolicyError::Origin)?);
        Ok(())
    }

    /// Allows a method, `*` for all.
    ///
    /// # Errors
    ///
    /// It is no token, or there are too many.
    pub fn allow_method(&mut self, method: &str) -> Result<(), CorsPolicyError> {
        self.methods.add(method)
    }

    /// Allows a request header, `*` for all.
    ///
    /// # Errors
    ///
    /// It is no token, or there are too many.
    pub fn allow_header(&mut self, name: &str) -> Result<(), CorsPolicyError> {
        self.headers.add(name)
    }

    /// Allows pages to read a response header, `*` for all.
    ///
    /// # Errors
    ///
    /// It is no token, or there are too many.
    pub fn expose_header(&mut self, name: &str) -> Result<(), CorsPolicyError> {
        self.exposed.add(name)
    }

    /// `None` for internal requests.
    pub(super) fn decide(&self, route_request: &RouteRequest<'_>) -> Option<CorsDecision> {
        let request = route_request.request?;
        let origin = single(request, "Origin");
        let method = single(request, REQUEST_METHOD);
        match (origin, method) {
            (Some(origin), Some(method)) if request.head.method == Method::Options => {
                Some(CorsDecision::Preflight(self.preflight(request, origin, method).unwrap_or_default()))
            }
            (Some(origin), _) => Some(CorsDecision::Forward(self.response(origin))),
            // Caches have to know that the response depends on the origin.
            (None, _) => Some(CorsDecision::Forward(self.without_origin())),
        }
    }

    /// The fields of the response to a preflight. `None`: the origin may not use the rule.
    fn preflight(&self, request: RequestView<'_>, origin: &str, method: &str) -> Option<HeaderChanges> {
        let mut fields = HeaderChanges::default();
        if !self.allows(origin) {
            return None;
        }
        self.put_origin(&mut fields, origin).ok()?;
        put(&mut fields, ALLOW_METHODS, &self.methods.shown_for(Some(method))).ok()?;
        let asked = single(request, REQUEST_HEADERS);
        put(&mut fields, ALLOW_HEADERS, &self.headers.shown_for(asked)).ok()?;
        put(&mut fields, EXPOSE_HEADERS, &self.exposed_text()).ok()?;
        let age = self.max_age.unwrap_or(CORS_MAX_AGE_DEFAULT_S);
        fields.set(MAX_AGE, &age.to_string()).ok()?;
        fields.set("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers").ok()?;
        Some(fields)
    }

    /// The changes to the response of the backend, whose own fields do not count.
    fn response(&self, origin: &str) -> HeaderChanges {
        let mut fields = self.without_origin();
        if self.allows(origin) {
            // Cannot fail: the origin matches a pattern, and the names of headers were checked.
            let _ = self.put_origin(&mut fields, origin);
            let _ = put(&mut fields, EXPOSE_HEADERS, &self.exposed_text());
        }
        fields
    }

    fn without_origin(&self) -> HeaderChanges {
        let mut fields = HeaderChanges::default();
        for name in [ALLOW_ORIGIN, ALLOW_CREDENTIALS, EXPOSE_HEADERS] {
            let _ = fields.remove(name); // valid names
        }
        let _ = fields.add("Vary", "Origin");
        fields
    }

    fn put_origin(&self, fields: &mut HeaderChanges, origin: &str) -> Result<(), HeaderEditError> {
        fields.set(ALLOW_ORIGIN, origin)?;
        if self.allow_credentials { fields.set(ALLOW_CREDENTIALS, "true") } else { Ok(()) }
    }

    /// With credentials `*` would be a header of that name.
    fn exposed_text(&self) -> String {
        if self.exposed.any && !self.allow_credentials { "*".to_owned() } else { self.exposed.tokens.join(", ") }
    }

    fn allows(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        is_origin(&origin) && self.origins.iter().any(|pattern| pattern.matches(&origin))
    }
}

/// Sets a field, unless it would be empty.
fn put(fields: &mut HeaderChanges, name: &str, value: &str) -> Result<(), HeaderEditError> {
    if value.is_empty() { Ok(()) } else { fields.set(name, value) }
}

fn room(count: usize) -> Result<(), CorsPolicyError> {
    if count < CORS_ITEMS_MAX { Ok(()) } else { Err(CorsPolicyError::TooMany) }
}

/// The value of a field that a browser sends once.
fn single<'a>(request: RequestView<'a>, name: &str) -> Option<&'a str> {
    let mut values = request.fields().filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    std::str::from_utf8(value).ok()
}

/// A scheme, and a host with an optional port. `null` is the origin of sandboxed pages of anybody.
fn is_origin(text: &str) -> bool {
    let Some(host) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else { return false };
    !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
}

impl OriginPattern {
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if text == "*" {
            return Some(Self::Any);
        }
        let Some((before, after)) = text.split_once('*') else {
            return is_origin(&text).then(|| Self::Exact(without_default_port(&text).into()));
        };
        // The scheme is not part of the wildcard, and the rest is of a host.
        let is_valid = ["http://", "https://"].contains(&before) && is_origin(&format!("https://a{after}"));
        is_valid.then(|| Self::Wildcard(before.into(), after.into()))
    }

    fn matches(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => **exact == *without_default_port(origin),
            Self::Wildcard(before, after) => {
                let host = origin.strip_prefix(&**before);
                // A pattern without a port matches the default port only; `*` alone is any host and port.
                let matches =
                    |host: &str| after.is_empty() || host.strip_suffix(&**after).is_some_and(|label| !label.is_empty());
                host.is_some_and(|host| matches(host) || matches(without_default_port(origin).split_at(before.len()).1))
            }
        }
    }
}

/// Port 80 of http and 443 of https may be left out.
fn without_default_port(origin: &str) -> &str {
    let port = if origin.starts_with("https:") { ":443" } else { ":80" };
    origin.strip_suffix(port).unwrap_or(origin)
}

impl TokenList {
    fn add(&mut self, text: &str) -> Result<(), CorsPolicyError> {
        room(self.tokens.len())?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
        match text {
            "*" => self.any = true,
            text if !text.is_empty() && text.bytes().all(fits) => self.tokens.push(text.into()),
            _ => return Err(CorsPolicyError::Token),
        }
        Ok(())
    }

    /// The tokens as a preflight is answered: `*` is what it asks for, which is valid with credentials too.
    fn shown_for(&self, asked: Option<&str>) -> String {
        match asked.filter(|_| self.any) {
            Some(asked) => {
                let tokens = asked.split(',').map(str::trim).filter(|token| !token.is_empty());
                tokens.take(CORS_ITEMS_MAX).collect::<Vec<_>>().join(", ")
            }
            None => self.tokens.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::http::{Parsed, RequestHead, parse_request};
    use proptest::prelude::*;

    use super::*;
    use crate::client_address::{ClientAddress, ClientScheme};

    fn policy(origins: &[&str], methods: &[&str], headers: &[&str]) -> CorsPolicy {
        let mut policy = CorsPolicy::default();
        origins.iter().for_each(|origin| policy.allow_origin(origin).unwrap());
        methods.iter().for_each(|method| policy.allow_method(method).unwrap());
        headers.iter().for_each(|header| policy.allow_header(header).unwrap());
        policy
    }

    /// The decision for a request with these header lines, and its fields.
    fn decision(policy: &CorsPolicy, method: &str, lines: &str) -> (bool, Vec<(String, String)>) {
        let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
        let peer = ClientAddress::new("192.0.2.1:1".parse().unwrap(), ClientScheme::Http);
        let (is_preflight, fields) =
            match policy.decide(&RouteRequest::client(head.view(text.as_bytes()), &peer)).unwrap() {
                CorsDecision::Preflight(fields) => (true, fields),
                CorsDecision::Forward(fields) => (false, fields),
            };
        let of = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        (is_preflight, fields.written().map(of).collect())
    }

    fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
        fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn origins_match_by_scheme_host_and_port() {
        for (pattern, origin, allowed) in [
            ("https://www.foo.com", "https://www.foo.com", true),
            ("https://www.foo.com", "https://WWW.foo.com:443", true),
            ("https://www.foo.com", "http://www.foo.com", false),
            ("https://www.foo.com", "https://www.foo.com:8443", false),
            ("https://www.foo.com", "https://www.foo.com.evil.com", false),
            ("https://*.bar.com", "https://www.bar.com", true),
            ("https://*.bar.com", "https://a.b.bar.com", true),
            ("https://*.bar.com", "https://bar.com", false),
            ("https://*.bar.com", "https://.bar.com", false),
            ("https://*.bar.com", "https://evil.com/.bar.com", false),
            ("https://*.bar.com", "https://a.bar.com:8443", false),
            ("https://*.bar.com:8443", "https://a.bar.com:8443", true),
            ("http://*", "http://a.b:81", true),
            ("*", "https://anything.test:1", true),
            ("*", "null", false),
        ] {
            let allows = policy(&[pattern], &[], &[]).allows(origin);
            assert_eq!(allows, allowed, "{pattern} {origin}");
        }
        for wrong in ["", "foo.com", "https://", "https://a/b", "ftp://a", "https://a*b*c", "*://a", "https://a b"] {
            assert_eq!(CorsPolicy::default().allow_origin(wrong), Err(CorsPolicyError::Origin), "{wrong}");
        }
    }

    #[test]
    fn preflight_is_answered_with_what_is_allowed() {
        let mut exact = policy(&["https://www.foo.com"], &["GET", "OPTIONS"], &["x-a", "x-b"]);
        exact.allow_credentials = true;
        exact.max_age = Some(3600);
        exact.expose_header("x-c").unwrap();
        let asks = "Origin: https://www.foo.com\r\nAccess-Control-Request-Method: GET\r\n";
        let (is_preflight, fields) = decision(&exact, "OPTIONS", asks);
        assert!(is_preflight);
        for (name, value) in [
            (ALLOW_ORIGIN, "https://www.foo.com"),
            (ALLOW_CREDENTIALS, "true"),
            (ALLOW_METHODS, "GET, OPTIONS"),
            (ALLOW_HEADERS, "x-a, x-b"),
            (EXPOSE_HEADERS, "x-c"),
            (MAX_AGE, "3600"),
        ] {
            assert_eq!(field(&fields, name), Some(value), "{name}");
        }
        let other = "Origin: https://evil.com\r\nAccess-Control-Request-Method: GET\r\n";
        assert_eq!(decision(&exact, "OPTIONS", other), (true, Vec::new()));

        let any = policy(&["*"], &["*"], &["*"]);
        let asks =
            "Origin: https://b.c\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-1,x-2\r\n";
        let (_, fields) = decision(&any, "OPTIONS", asks);
        assert_eq!(field(&fields, ALLOW_ORIGIN), Some("https://b.c"));
        assert_eq!((field(&fields, ALLOW_METHODS), field(&fields, ALLOW_HEADERS)), (Some("PUT"), Some("x-1, x-2")));
        assert_eq!((field(&fields, MAX_AGE), field(&fields, ALLOW_CREDENTIALS)), (Some("5"), None));
    }

    #[test]
    fn other_requests_go_to_the_backend_and_its_own_fields_do_not_count() {
        let exact = policy(&["https://a.b"], &[], &[]);
        for (method, lines, origin) in [
            ("GET", "Origin: https://a.b\r\n", Some("https://a.b")),
            ("OPTIONS", "Origin: https://a.b\r\n", Some("https://a.b")),
            ("GET", "Origin: https://c.d\r\n", None),
            ("GET", "Origin: https://a.b\r\nOrigin: https://a.b\r\n", None),
            ("GET", "", None),
        ] {
            let (is_preflight, fields) = decision(&exact, method, lines);
            assert_eq!((is_preflight, field(&fields, ALLOW_ORIGIN)), (false, origin), "{method} {lines}");
            assert_eq!(field(&fields, "Vary"), Some("Origin"));
        }
        assert!(exact.without_origin().drops(b"access-control-allow-origin"));
    }

    #[test]
    fn lists_are_bounded() {
        let mut long = CorsPolicy::default();
        (0..CORS_ITEMS_MAX).for_each(|n| long.allow_header(&format!("x-{n}")).unwrap());
        assert_eq!(long.allow_header("x-a"), Err(CorsPolicyError::TooMany));
        assert_eq!(long.allow_method("a b"), Err(CorsPolicyError::Token));
    }

    proptest! {
        #[test]
        fn allowed_origin_is_always_a_valid_field(origin in "\\PC{0,40}") {
            let mut fields = HeaderChanges::default();
            let any = policy(&["*", "http://*"], &[], &[]);
            prop_assert!(!any.allows(&origin) || any.put_origin(&mut fields, &origin).is_ok());
        }
    }
}
