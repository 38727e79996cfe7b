//! External authorization: a service is asked about each request before that goes to its backend, as by Traefik's ForwardAuth,
//! nginx's `auth_request` and Envoy's `ext_authz` over HTTP.

use std::sync::Arc;
use std::time::Duration;

use super::filter_destination::FilterDestination;
use super::header_edits::{HeaderEditError, HeaderEdits, check_host};
use crate::limits::{
    AUTHORIZATION_COPIED_BYTES_MAX, AUTHORIZATION_HEADERS_MAX, AUTHORIZATION_PATH_BYTES_MAX, AUTHORIZATION_TIMEOUT,
    AUTHORIZATION_TIMEOUT_MAX,
};

/// Looks up the values of a field by its name.
type FieldValues<'f, 'a> = &'f dyn Fn(&str) -> Vec<&'a [u8]>;

/// The authorization service of a share.
#[derive(Debug, Clone)]
pub struct ExternalAuthorization {
    pub destination: FilterDestination,
    pub service: Arc<AuthorizationService>,
}

/// How an authorization service is asked, and what its response means. Requests to it have no body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationService {
    host: Box<str>,
    path: Box<str>,
    /// The client's headers that the service is told. `None`: all that do not describe a body or a condition.
    request_headers: Option<Vec<Box<str>>>,
    /// The headers of a permitting response that the backend gets instead of the client's own.
    response_headers: Vec<Box<str>>,
    timeout: Duration,
    pub failure_mode: AuthorizationFailureMode,
}

/// What happens to a request if the service cannot be asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthorizationFailureMode {
    /// It is answered 503.
    #[default]
    Unavailable,
    /// It is answered 403.
    Forbidden,
    /// It passes, without the headers that the service would set.
    Allow,
}

/// Why a service cannot be used, or its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthorizationServiceError {
    #[error("is not a host")]
    Host,
    #[error("is not a path of printable ASCII that begins with / and has at most {AUTHORIZATION_PATH_BYTES_MAX} bytes")]
    Path,
    #[error("{0}")]
    Header(#[from] HeaderEditError),
    #[error("is one header too many: a list has at most {AUTHORIZATION_HEADERS_MAX}")]
    TooManyHeaders,
    #[error("is not between 1ms and {}s", AUTHORIZATION_TIMEOUT_MAX.as_secs())]
    Timeout,
    #[error("the headers that the backend is told have more than {AUTHORIZATION_COPIED_BYTES_MAX} bytes")]
    TooManyBytes,
    #[error("a header that the backend is told is not text")]
    NotText,
}

impl AuthorizationFailureMode {
    /// The status of requests if the service cannot be asked. `None`: they pass.
    #[must_use]
    pub fn status(self) -> Option<u16> {
        match self {
            Self::Unavailable => Some(503),
            Self::Forbidden => Some(403),
            Self::Allow => None,
        }
    }
}

impl AuthorizationService {
    /// A service that is asked with `GET path` at `host`, which may have a port.
    ///
    /// # Errors
    ///
    /// The host or the path cannot stand in a request.
    pub fn new(host: &str, path: &str) -> Result<Self, AuthorizationServiceError> {
        check_host(host).map_err(|_| AuthorizationServiceError::Host)?;
        let is_path = path.starts_with('/')
            && path.len() <= AUTHORIZATION_PATH_BYTES_MAX
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if !is_path {
            return Err(AuthorizationServiceError::Path);
        }
        Ok(Self {
            host: host.into(),
            path: path.into(),
            request_headers: None,
            response_headers: Vec::new(),
            timeout: AUTHORIZATION_TIMEOUT,
            failure_mode: AuthorizationFailureMode::default(),
        })
    }

    /// Tells the service this header of the client, and none that is not named.
    ///
    /// # Errors
    ///
    /// It is not a header, or one of the proxy; or there are too many.
    pub fn forward_header(&mut self, name: &str) -> Result<(), AuthorizationServiceError> {
        add_name(self.request_headers.get_or_insert_default(), name)
    }

    /// Tells the backend this header of a permitting response. The client's own is removed in any case.
    ///
    /// # Errors
    ///
    /// As for [`AuthorizationService::forward_header`].
    pub fn copy_header(&mut self, name: &str) -> Result<(), AuthorizationServiceError> {
        add_name(&mut self.response_headers, name)
    }

    /// # Errors
    ///
    /// It is zero, or too long.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), AuthorizationServiceError> {
        if timeout < Duration::from_millis(1) || timeout > AUTHORIZATION_TIMEOUT_MAX {
            return Err(AuthorizationServiceError::Timeout);
        }
        self.timeout = timeout;
        Ok(())
    }

    /// The Host of requests to the service.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// With query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// For the whole response.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether the service is told the client's header of that name.
    #[must_use]
    pub fn forwards(&self, name: &[u8]) -> bool {
        let has_name = |names: &Vec<Box<str>>| names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
        self.request_headers.as_ref().is_none_or(has_name)
    }

    /// The edits of a permitted request. `response` has the fields of the service's response; `None`: there is no response.
    ///
    /// # Errors
    ///
    /// A field that the backend is told cannot be written, or they are too large together.
    pub fn edits<'a>(&self, response: Option<FieldValues<'_, 'a>>) -> Result<HeaderEdits, AuthorizationServiceError> {
        let mut edits = HeaderEdits::default();
        let mut bytes = 0;
        for name in &self.response_headers {
            edits.remove(name)?;
            for value in response.map(|values| values(name)).unwrap_or_default() {
                bytes += name.len() + value.len();
                if bytes > AUTHORIZATION_COPIED_BYTES_MAX {
                    return Err(AuthorizationServiceError::TooManyBytes);
                }
                let text = std::str::from_utf8(value).map_err(|_| AuthorizationServiceError::NotText)?;
                edits.add(name, text)?;
            }
        }
        Ok(edits)
    }
}

fn add_name(names: &mut Vec<Box<str>>, name: &str) -> Result<(), AuthorizationServiceError> {
    HeaderEdits::default().remove(name)?;
    if names.len() >= AUTHORIZATION_HEADERS_MAX {
        return Err(AuthorizationServiceError::TooManyHeaders);
    }
    if !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        names.push(name.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> AuthorizationService {
        let mut service = AuthorizationService::new("auth.test:9000", "/verify?a=b").unwrap();
        service.copy_header("X-User").unwrap();
        service.copy_header("X-Groups").unwrap();
        service
    }

    #[test]
    fn service_that_cannot_be_asked_is_refused() {
        for (host, path, why) in [
            ("", "/", AuthorizationServiceError::Host),
            ("a b", "/", AuthorizationServiceError::Host),
            ("a", "", AuthorizationServiceError::Path),
            ("a", "verify", AuthorizationServiceError::Path),
            ("a", "/a b", AuthorizationServiceError::Path),
            ("a", "/\r\nX: y", AuthorizationServiceError::Path),
            ("a", "/a#b", AuthorizationServiceError::Path),
            ("a", &format!("/{}", "a".repeat(AUTHORIZATION_PATH_BYTES_MAX)), AuthorizationServiceError::Path),
        ] {
            assert_eq!(AuthorizationService::new(host, path).unwrap_err(), why, "{host} {path}");
        }
        let mut service = service();
        for name in ["", "a b", "Host", "Content-Length", "X-Forwarded-For", "Connection"] {
            assert!(matches!(service.copy_header(name), Err(AuthorizationServiceError::Header(_))), "{name}");
            assert!(matches!(service.forward_header(name), Err(AuthorizationServiceError::Header(_))), "{name}");
        }
        for number in 0..AUTHORIZATION_HEADERS_MAX {
            service.forward_header(&format!("X-{number}")).unwrap();
        }
        assert_eq!(service.forward_header("X-More"), Err(AuthorizationServiceError::TooManyHeaders));
        for timeout in [Duration::ZERO, AUTHORIZATION_TIMEOUT_MAX + Duration::from_millis(1)] {
            assert_eq!(service.set_timeout(timeout), Err(AuthorizationServiceError::Timeout));
        }
    }

    #[test]
    fn service_is_told_all_headers_or_those_that_are_named() {
        let mut service = service();
        assert!(service.forwards(b"cookie") && service.forwards(b"x-any"));
        service.forward_header("Cookie").unwrap();
        assert!(service.forwards(b"cookie") && !service.forwards(b"x-any"));
    }

    #[test]
    fn headers_of_the_response_replace_those_of_the_client() {
        let service = service();
        let values = |name: &str| match name {
            "X-User" => vec![b"ann".as_slice()],
            "X-Groups" => vec![b"staff".as_slice(), b"dev"],
            _ => Vec::new(),
        };
        let edits = service.edits(Some(&values)).unwrap();
        assert_eq!(
            edits.headers().collect::<Vec<_>>(),
            [("X-User", "ann"), ("X-Groups", "staff"), ("X-Groups", "dev")]
        );
        assert!(edits.replaces(b"x-user") && edits.replaces(b"x-groups") && !edits.replaces(b"cookie"));
    }

    /// Neither a silent service nor a permitting one without the header lets a client say who it is.
    #[test]
    fn header_that_the_response_lacks_is_removed_from_the_request() {
        let service = service();
        for edits in [service.edits(None), service.edits(Some(&|_: &str| Vec::new()))] {
            let edits = edits.unwrap();
            assert!(edits.replaces(b"x-user") && edits.headers().next().is_none());
        }
    }

    #[test]
    fn response_that_cannot_be_copied_is_an_error() {
        let service = service();
        let long = vec![b'a'; AUTHORIZATION_COPIED_BYTES_MAX];
        for (value, why) in
            [(long.as_slice(), AuthorizationServiceError::TooManyBytes), (b"\xff", AuthorizationServiceError::NotText)]
        {
            let values = |_: &str| vec![value];
            assert_eq!(service.edits(Some(&values)).unwrap_err(), why);
        }
    }
}
