//! The server under load: where it is, and how it is named in requests.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::{fmt, io};

use http::Uri;

use crate::error::LoadTestError;

/// A parsed URL with the address of its host.
#[derive(Debug, Clone)]
pub struct LoadTarget {
    url: String,
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
    /// Without the port and brackets: the name that the certificate must prove.
    pub(crate) host: String,
    /// As in the URL: the Host field.
    pub(crate) authority: String,
    /// Path and query.
    pub(crate) path: String,
}

impl LoadTarget {
    /// Reads `http://HOST[:PORT][/PATH]`, or the same with https, and resolves the host.
    ///
    /// # Errors
    /// The URL is malformed, or its host has no address.
    pub fn resolve(url: &str) -> Result<Self, LoadTestError> {
        let invalid = |why: &str| LoadTestError::Invalid(format!("URL {url:?}: {why}; write http://HOST:PORT/PATH"));
        let uri: Uri = url.parse().map_err(|why: http::uri::InvalidUri| invalid(&why.to_string()))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err(invalid("the scheme is neither http nor https")),
            None => return Err(invalid("the scheme is missing")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("it contains a user; pass credentials with --header"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let unresolved = |why: String| LoadTestError::Resolve { host: host.clone(), why };
        let mut addresses = addresses(&host, port).map_err(|why| unresolved(why.to_string()))?;
        addresses.sort_by_key(SocketAddr::is_ipv6); // `localhost` is both, and servers listen on the first more often
        let address = addresses.first().copied().ok_or_else(|| unresolved("it has no address".to_owned()))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.is_empty() { "/" } else { path };
        let (authority, path) = (authority.as_str().to_owned(), path.to_owned());
        Ok(Self { url: url.to_owned(), address, is_tls, host, authority, path })
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl fmt::Display for LoadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.url, self.address)
    }
}

/// The addresses of a host. Names below `localhost` are this machine (RFC 6761, 6.3), like hosts of an appliance without a domain;
/// many systems resolve `localhost` itself and no other of them.
fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    if name.ends_with(".localhost") {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]);
    }
    Ok((host, port).to_socket_addrs()?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_address_host_and_path() {
        for (url, address, host, authority, path, is_tls) in [
            ("http://127.0.0.1:81/a?b=c", "127.0.0.1:81", "127.0.0.1", "127.0.0.1:81", "/a?b=c", false),
            ("http://127.0.0.1", "127.0.0.1:80", "127.0.0.1", "127.0.0.1", "/", false),
            ("https://[::1]:8443/x", "[::1]:8443", "::1", "[::1]:8443", "/x", true),
            (
                "http://App.ns.localhost:8080/",
                "127.0.0.1:8080",
                "App.ns.localhost",
                "App.ns.localhost:8080",
                "/",
                false,
            ),
            ("https://127.0.0.1/", "127.0.0.1:443", "127.0.0.1", "127.0.0.1", "/", true),
        ] {
            let target = LoadTarget::resolve(url).unwrap();
            assert_eq!(target.address, address.parse().unwrap(), "{url}");
            let parts = (target.host.as_str(), target.authority.as_str(), target.path.as_str(), target.is_tls);
            assert_eq!(parts, (host, authority, path, is_tls), "{url}");
        }
    }

    #[test]
    fn malformed_url_is_rejected_with_the_form() {
        for url in ["127.0.0.1:80", "/path", "ftp://127.0.0.1/", "http://", "http://u:p@127.0.0.1/", "http://a b/"] {
            let why = LoadTarget::resolve(url).unwrap_err().to_string();
            assert!(why.contains("http://HOST:PORT/PATH"), "{url}: {why}");
        }
    }
}
