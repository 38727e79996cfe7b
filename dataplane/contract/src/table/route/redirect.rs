//! Redirects of a rule.

use super::header_edits::{HeaderEditError, check_host};
use super::path_rewrite::PathRewrite;
use super::request::RouteRequest;
use crate::client_address::ClientScheme;
use crate::table::{HTTPS_PORT, host_name};

/// The port of `http://HOST` (RFC 9110, section 4.2.1).
const HTTP_PORT: u16 = 80;

/// Sends clients elsewhere. What is not set stays as in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    status: u16,
    host: Option<Box<str>>,
    pub scheme: Option<ClientScheme>,
    /// Without it and with a scheme, the scheme's port.
    pub port: Option<u16>,
    pub path: Option<PathRewrite>,
}

impl Redirect {
    /// A redirect with this status: 301, 302, 303, 307 or 308. `None` for another one.
    #[must_use]
    pub fn new(status: u16) -> Option<Self> {
        let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
        is_redirect.then_some(Self { status, host: None, scheme: None, port: None, path: None })
    }

    /// Sets the host, without a port.
    ///
    /// # Errors
    ///
    /// It is not a host.
    pub fn set_host(&mut self, host: &str) -> Result<(), HeaderEditError> {
        check_host(host)?;
        self.host = Some(host.into());
        Ok(())
    }

    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The `Location` for a request.
    #[must_use]
    pub fn location(&self, request: &RouteRequest<'_>) -> String {
        let scheme = self.scheme.unwrap_or_else(|| request.scheme());
        let usual = match scheme {
            ClientScheme::Http => HTTP_PORT,
            ClientScheme::Https => HTTPS_PORT,
        };
        let port = match (self.port, self.scheme) {
            (Some(port), _) => port,
            (None, Some(_)) => usual,
            (None, None) => port_of(request.host).unwrap_or(usual),
        };
        let host = self.host.as_deref().unwrap_or_else(|| host_name(request.host));
        let colon_port = if port == usual { String::new() } else { format!(":{port}") };
        let path = match &self.path {
            Some(rewrite) => rewrite.parts(request.path),
            None if request.path.starts_with('/') => [request.path, "", ""],
            None => ["/", request.path.trim_start_matches('*'), ""],
        };
        format!("{}://{host}{colon_port}{}", scheme.name(), path.concat())
    }
}

/// The port of an authority, if it has one.
fn port_of(authority: &str) -> Option<u16> {
    let (_, port) = authority.rsplit_once(':')?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(edit: impl FnOnce(&mut Redirect), host: &str, path: &str) -> String {
        let mut redirect = Redirect::new(302).unwrap();
        edit(&mut redirect);
        redirect.location(&RouteRequest::internal(host, path))
    }

    #[test]
    fn unset_parts_of_a_location_are_those_of_the_request() {
        assert_eq!(location(|_| {}, "a.test", "/x?y"), "http://a.test/x?y");
        assert_eq!(location(|_| {}, "a.test:8080", "/x"), "http://a.test:8080/x");
        assert_eq!(location(|_| {}, "[::1]:8080", "?y"), "http://[::1]:8080/?y");
        assert_eq!(location(|_| {}, "[::1]", "*"), "http://[::1]/");
        assert_eq!(location(|redirect| redirect.set_host("b").unwrap(), "a:80", "/"), "http://b/");
    }

    #[test]
    fn port_of_a_redirect_follows_its_scheme() {
        let to =
            |scheme, port| location(|redirect| (redirect.scheme, redirect.port) = (scheme, port), "a.test:8080", "/");
        assert_eq!(to(Some(ClientScheme::Https), None), "https://a.test/");
        assert_eq!(to(Some(ClientScheme::Http), None), "http://a.test/");
        assert_eq!(to(Some(ClientScheme::Https), Some(8443)), "https://a.test:8443/");
        assert_eq!(to(Some(ClientScheme::Https), Some(443)), "https://a.test/");
        assert_eq!(to(None, Some(80)), "http://a.test/");
        assert_eq!(to(None, Some(443)), "http://a.test:443/");
    }

    #[test]
    fn path_of_a_redirect_is_replaced() {
        let path = |path: PathRewrite| location(|redirect| redirect.path = Some(path), "a", "/old/x?y");
        assert_eq!(path(PathRewrite::full("/new").unwrap()), "http://a/new?y");
        assert_eq!(path(PathRewrite::prefix("/old", "/new").unwrap()), "http://a/new/x?y");
    }

    #[test]
    fn invalid_redirect_is_refused() {
        assert!([200, 300, 304, 305, 306, 309, 400].into_iter().all(|status| Redirect::new(status).is_none()));
        assert!([301, 302, 303, 307, 308].into_iter().all(|status| Redirect::new(status).is_some()));
        let mut redirect = Redirect::new(301).unwrap();
        for host in ["", "a/b", "a\r\nb", "a b", "a@b"] {
            assert_eq!(redirect.set_host(host), Err(HeaderEditError::Host), "{host:?}");
        }
    }
}
