//! The options of `--route` that ask an authorization service about each request.

use std::path::PathBuf;
use std::sync::Arc;

use control::kinds::gateway_policies::ext_auth::ExtAuthUrl;
use dataplane::table::{AuthorizationFailureMode, AuthorizationService};

use super::route_target::RouteTarget;
use super::value::Wait;

/// These options, for messages.
pub(super) const FORWARD_AUTH_OPTIONS: &str = "forward-auth=URL, forward-auth-headers=NAME[,NAME...], \
     forward-auth-response-headers=NAME[,NAME...], forward-auth-timeout=WAIT, forward-auth-failure-mode=503|403|allow, \
     forward-auth-ca=FILE";

/// An authorization service, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForwardAuthRule {
    pub(crate) target: RouteTarget,
    /// For `https`.
    pub(crate) tls: Option<ForwardAuthTls>,
    pub(crate) service: Arc<AuthorizationService>,
}

/// TLS verification of an authorization service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForwardAuthTls {
    /// PEM, with the trusted CAs.
    pub(crate) authorities: PathBuf,
    pub(crate) name: String,
}

/// The options as they come, in any order.
#[derive(Debug, Clone, Default)]
pub(super) struct ForwardAuthOptions {
    url: Option<String>,
    headers: Vec<String>,
    response_headers: Vec<String>,
    timeout: Option<Wait>,
    failure_mode: Option<AuthorizationFailureMode>,
    authorities: Option<PathBuf>,
}

impl ForwardAuthOptions {
    /// Adds an option. Returns `false` if it is another option.
    pub(super) fn add(&mut self, name: &str, value: &str) -> Result<bool, String> {
        if !FORWARD_AUTH_OPTIONS.split(", ").any(|known| known.split('=').next() == Some(name)) {
            return Ok(false);
        }
        if value.is_empty() {
            return Err(format!("{name}: a value is missing"));
        }
        let list = || value.split(',').map(|item| item.trim().to_owned());
        match name {
            "forward-auth" => self.url = Some(value.to_owned()),
            "forward-auth-headers" => self.headers.extend(list()),
            "forward-auth-response-headers" => self.response_headers.extend(list()),
            "forward-auth-timeout" => self.timeout = Some(value.parse().map_err(|why| format!("{name}: {why}"))?),
            "forward-auth-failure-mode" => self.failure_mode = Some(failure_mode(name, value)?),
            _ => self.authorities = Some(PathBuf::from(value)),
        }
        Ok(true)
    }

    /// The rule, unless there is none.
    pub(super) fn rule(self) -> Result<Option<ForwardAuthRule>, String> {
        let Self { url, headers, response_headers, timeout, failure_mode, authorities } = self;
        let Some(url) = url else {
            let is_empty = headers.is_empty()
                && response_headers.is_empty()
                && timeout.is_none()
                && failure_mode.is_none()
                && authorities.is_none();
            return if is_empty { Ok(None) } else { Err("options forward-auth-… need forward-auth=URL".to_owned()) };
        };
        let ExtAuthUrl { host, port, by_tls, authority, path } =
            ExtAuthUrl::parse(&url).map_err(|why| format!("forward-auth: {why}"))?;
        let refused = |why: &dyn std::fmt::Display| format!("forward-auth: {url:?} {why}");
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let target = target.parse().map_err(|why: String| refused(&why))?;
        let mut service = AuthorizationService::new(&authority, &path).map_err(|why| refused(&why))?;
        for header in headers {
            service.forward_header(&header).map_err(|why| format!("forward-auth-headers: {header:?} {why}"))?;
        }
        for header in response_headers {
            service.copy_header(&header).map_err(|why| format!("forward-auth-response-headers: {header:?} {why}"))?;
        }
        if let Some(Wait(timeout)) = timeout {
            service.set_timeout(timeout).map_err(|why| format!("forward-auth-timeout: {timeout:?} {why}"))?;
        }
        service.failure_mode = failure_mode.unwrap_or_default();
        let tls = match (by_tls, authorities) {
            (false, None) => None,
            (false, Some(_)) => return Err("forward-auth-ca is for https://".to_owned()),
            (true, None) => {
                return Err("forward-auth: https:// needs forward-auth-ca=FILE, the trusted CA certificates".to_owned());
            }
            (true, Some(authorities)) => Some(ForwardAuthTls { authorities, name: host }),
        };
        Ok(Some(ForwardAuthRule { target, tls, service: Arc::new(service) }))
    }
}

fn failure_mode(name: &str, value: &str) -> Result<AuthorizationFailureMode, String> {
    match value {
        "503" => Ok(AuthorizationFailureMode::Unavailable),
        "403" => Ok(AuthorizationFailureMode::Forbidden),
        "allow" => Ok(AuthorizationFailureMode::Allow),
        _ => Err(format!("{name}: {value:?} is none of 503, 403 and allow")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rule(options: &[(&str, &str)]) -> Result<Option<ForwardAuthRule>, String> {
        let mut all = ForwardAuthOptions::default();
        for (name, value) in options {
            assert!(all.add(name, value)?, "{name}");
        }
        all.rule()
    }

    #[test]
    fn options_in_any_order_become_a_rule() {
        assert_eq!(rule(&[]), Ok(None));
        let made = rule(&[
            ("forward-auth-response-headers", "Remote-User, Remote-Groups"),
            ("forward-auth-failure-mode", "403"),
            ("forward-auth-timeout", "2s"),
            ("forward-auth-headers", "Cookie"),
            ("forward-auth", "http://Auth.test:9091/api/verify?rd=x"),
        ]);
        let made = made.unwrap().unwrap();
        assert_eq!(made.target, RouteTarget::Name("auth.test".to_owned(), 9091));
        assert_eq!((made.service.host(), made.service.path()), ("auth.test:9091", "/api/verify?rd=x"));
        assert_eq!(made.service.timeout(), Duration::from_secs(2));
        assert_eq!(made.service.failure_mode, AuthorizationFailureMode::Forbidden);
        assert!(made.service.forwards(b"cookie") && !made.service.forwards(b"accept"));

        let made = rule(&[("forward-auth", "https://[::1]"), ("forward-auth-ca", "/ca.pem")]).unwrap().unwrap();
        assert_eq!(made.target, RouteTarget::Address("[::1]:443".parse().unwrap()));
        assert_eq!((made.service.host(), made.service.path()), ("[::1]", "/"));
        assert_eq!(made.tls, Some(ForwardAuthTls { authorities: "/ca.pem".into(), name: "::1".to_owned() }));
    }

    /// An option alone would look as if the route were protected.
    #[test]
    fn incomplete_or_invalid_options_are_refused() {
        for options in [
            &[("forward-auth-headers", "Cookie")][..],
            &[("forward-auth-response-headers", "X-User")],
            &[("forward-auth-failure-mode", "allow")],
            &[("forward-auth-timeout", "1s")],
            &[("forward-auth-ca", "/ca.pem")],
            &[("forward-auth", "")],
            &[("forward-auth", "auth:9091")],
            &[("forward-auth", "ftp://auth/")],
            &[("forward-auth", "http://ann:x@auth/")],
            &[("forward-auth", "http://auth:0/")],
            &[("forward-auth", "https://auth/")],
            &[("forward-auth", "http://auth/"), ("forward-auth-ca", "/ca.pem")],
            &[("forward-auth", "http://auth/"), ("forward-auth-response-headers", "Host")],
            &[("forward-auth", "http://auth/"), ("forward-auth-headers", "a b")],
            &[("forward-auth", "http://auth/"), ("forward-auth-timeout", "2m")],
            &[("forward-auth", "http://auth/"), ("forward-auth-timeout", "0")],
            &[("forward-auth", "http://auth/"), ("forward-auth-failure-mode", "500")],
        ] {
            let why = rule(options).unwrap_err();
            assert!(why.contains("forward-auth"), "{why}");
        }
        assert_eq!(ForwardAuthOptions::default().add("allow", "x"), Ok(false));
    }
}
