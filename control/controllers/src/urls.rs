//! URLs: a path below an address (RFC 3986), and a URL in the form that the data plane needs.

use std::sync::Arc;

use contract::access_token::AccessToken;
use contract::table::{DeliveryTarget, NO_PORT};

/// Resolves `reference` against the absolute URL `base` (RFC 3986, 5.2); `reference` has no scheme.
#[must_use]
pub fn resolve_reference(base: &str, reference: &str) -> String {
    let (origin, base_path, base_query) = split(base);
    if let Some(authority) = reference.strip_prefix("//") {
        let scheme = origin.split_once("//").map_or("http:", |(scheme, _)| scheme);
        return format!("{scheme}//{authority}");
    }
    let reference = reference.split('#').next().unwrap_or_default();
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let (path, query) = if path.is_empty() {
        (base_path.to_owned(), query.or(base_query))
    } else if path.starts_with('/') {
        (remove_dots(path), query)
    } else {
        let folder = base_path.rfind('/').map_or("/", |slash| &base_path[..=slash]);
        (remove_dots(&format!("{folder}{path}")), query)
    };
    match query {
        Some(query) => format!("{origin}{path}?{query}"),
        None => format!("{origin}{path}"),
    }
}

/// Origin, path and query of an absolute URL.
fn split(url: &str) -> (&str, &str, Option<&str>) {
    let host_at = url.find("://").map_or(0, |at| at + 3);
    let path_at = url[host_at..].find(['/', '?', '#']).map_or(url.len(), |at| host_at + at);
    let rest = url[path_at..].split('#').next().unwrap_or_default();
    match rest.split_once('?') {
        Some((path, query)) => (&url[..path_at], path, Some(query)),
        None => (&url[..path_at], rest, None),
    }
}

fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part {
            "." => {}
            ".." => {
                kept.pop();
            }
            other => {
                kept.push(other);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

/// The protocol of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlScheme {
    Http,
    Https,
    /// An unsupported scheme.
    Other,
}

/// A URL to deliver to, parsed once; the error names the problem. The authorities of an `https` one are not
/// in the URL: see [`crate::trust_store::TrustStore::target`].
pub(crate) fn parse_target(url: &str) -> Result<(UrlScheme, DeliveryTarget), String> {
    let uri: http::Uri = url.parse().map_err(|why| format!("\"{url}\" is not a URL: {why}"))?;
    let (scheme, usual) = match uri.scheme_str() {
        Some("http") => (UrlScheme::Http, 80),
        Some("https") => (UrlScheme::Https, 443),
        Some(_) => (UrlScheme::Other, NO_PORT),
        None => return Err(format!("\"{url}\" begins neither with http:// nor with https://")),
    };
    let authority = uri.authority().ok_or_else(|| format!("\"{url}\" has no host"))?;
    if authority.host().is_empty() {
        return Err(format!("\"{url}\" has no host"));
    }
    let (login, place) = match authority.as_str().rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, authority.as_str()),
    };
    let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
        "" => "/".to_owned(),
        query if query.starts_with('?') => format!("/{query}"),
        path => path.to_owned(),
    };
    let target = DeliveryTarget {
        // It is shown to others, so without credentials.
        url: login.map_or_else(|| url.into(), |login| url.replacen(&format!("{login}@"), "", 1).into()),
        authority: place.into(),
        host: authority.host().trim_end_matches('.').to_ascii_lowercase().into(),
        port: if scheme == UrlScheme::Other { NO_PORT } else { port(place).unwrap_or(usual) },
        path: percent_encode(&path).into(),
        is_stream: false,
        access_token: login.map(|login| Arc::new(AccessToken::of_login(login))),
        tls: None,
    };
    Ok((scheme, target))
}

/// The explicit port; [`NO_PORT`] if it is not a number, because the default port is another server's.
fn port(place: &str) -> Option<u16> {
    let (_, written) = place.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'))?;
    if written.is_empty() { None } else { Some(written.parse().unwrap_or(NO_PORT)) }
}

/// A path and query as they may be in a request: characters that RFC 3986 does not allow are percent-encoded. A
/// percent sign counts as the start of an escape, as in every URL.
fn percent_encode(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EV-ADR-03: the two examples of the specification, and the corners of RFC 3986.
    #[test]
    fn a_relative_uri_is_resolved_against_the_address() {
        for (base, reference, whole) in [
            ("http://h/a/b", "/update", "http://h/update"),
            ("http://h/a/b", "c", "http://h/a/c"),
            ("http://h", "c", "http://h/c"),
            ("http://h:81", "/x?y=1", "http://h:81/x?y=1"),
            ("http://h/a/b/c", "../d", "http://h/a/d"),
            ("http://h/a/", "./../../d/.", "http://h/d/"),
            ("http://h/a?q", "?z", "http://h/a?z"),
            ("http://h/a?q", "", "http://h/a?q"),
            ("http://h/a", "//other/b", "http://other/b"),
        ] {
            assert_eq!(resolve_reference(base, reference), whole, "{base} + {reference}");
        }
    }

    #[test]
    fn a_target_has_host_port_and_path() {
        let (_, parsed) = parse_target("http://App.ns.svc.cluster.local").unwrap();
        assert_eq!((&*parsed.host, parsed.port, &*parsed.path), ("app.ns.svc.cluster.local", 80, "/"));
        let (scheme, parsed) = parse_target("https://a").unwrap();
        assert_eq!((scheme, parsed.port), (UrlScheme::Https, 443));
        let (_, parsed) = parse_target("http://127.0.0.1:81/x?y").unwrap();
        assert_eq!((&*parsed.authority, parsed.port, &*parsed.path), ("127.0.0.1:81", 81, "/x?y"));
        for (url, path) in [
            ("http://a/\u{e9}/{b}|c?q=\u{fc}", "/%C3%A9/%7Bb%7D%7Cc?q=%C3%BC"),
            ("http://a/a%20b?c=d%26&e=[1]", "/a%20b?c=d%26&e=[1]"),
            ("http://a?q={x}", "/?q=%7Bx%7D"),
        ] {
            let (_, parsed) = parse_target(url).unwrap();
            assert_eq!((&*parsed.path, &*parsed.url), (path, url));
        }
        for bad in ["https://", "a", "/x", "http://", "http://u:p@/"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
        for (url, port) in [
            ("http://a:/", 80),
            ("https://[::1]/", 443),
            ("http://[::1]:81/", 81),
            ("http://[::1]:/", 80),
            ("http://a:65536/", NO_PORT),
            ("https://a:99999/", NO_PORT),
            ("http://a:8o/", NO_PORT),
        ] {
            assert_eq!(parse_target(url).map(|(_, parsed)| parsed.port), Ok(port), "{url}");
        }
        for (url, authority, port, shown) in [
            ("http://u:p@a/x@y", "a", 80, "http://a/x@y"),
            ("https://u@a:81/", "a:81", 81, "https://a:81/"),
            ("http://u:80@[::1]/", "[::1]", 80, "http://[::1]/"),
        ] {
            let (_, parsed) = parse_target(url).unwrap();
            assert_eq!((&*parsed.authority, parsed.port, &*parsed.url), (authority, port, shown));
            assert!(parsed.access_token.is_some_and(|pass| pass.is_login()), "{url}");
        }
        let (scheme, parsed) = parse_target("bad://uri:80/x").unwrap();
        assert_eq!((scheme, parsed.port), (UrlScheme::Other, NO_PORT), "nothing is ever sent there");
    }
}
