//! `--route`: a host whose requests go to given addresses.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use control::publish::RouteFilterRule;
use dataplane::table::{OwnTimeout, Protocol, ProxyProtocolVersion, RequestTimeouts};
use serde::Deserialize;

use super::route_authentication::{AUTHENTICATION_OPTIONS, AuthenticationOptions, AuthenticationRule};
use super::route_filters::{self, FILTER_OPTIONS};
use super::route_forward_auth::{FORWARD_AUTH_OPTIONS, ForwardAuthOptions, ForwardAuthRule};
use super::route_target::RouteTarget;
use super::value::{Wait, is_domain};

/// `HOST=[SCHEME://]ADDR[,ADDR...][?OPTION[&OPTION...]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct RouteRule {
    /// Lower case; `*.` and a parent for every name one label below it, `*` for any host.
    pub(crate) host: String,
    /// The protocol of all addresses.
    pub(crate) protocol: Protocol,
    pub(crate) targets: Vec<RouteTarget>,
    /// They use it over TLS.
    pub(crate) tls: Option<TlsRule>,
    pub(crate) timeouts: RouteTimeouts,
    /// Connections begin with this header about the client.
    pub(crate) proxy_protocol: Option<ProxyProtocolVersion>,
    /// The path of requests by which the addresses are checked.
    pub(crate) health_check: Option<String>,
    /// What happens to requests and responses.
    pub(crate) filters: Option<Arc<RouteFilterRule>>,
    /// The credentials that clients need.
    pub(crate) authentication: Option<AuthenticationRule>,
    /// A service that is asked about each request.
    pub(crate) forward_auth: Option<ForwardAuthRule>,
    /// All options as they were given, in their order.
    pub(crate) options: Vec<(String, String)>,
}

/// The timeouts that a route names; zero: no timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RouteTimeouts {
    connect: Option<Duration>,
    response_start: Option<Duration>,
    idle: Option<Duration>,
    request: Option<Duration>,
    request_body: Option<Duration>,
    stream_idle: Option<Duration>,
}

impl RouteTimeouts {
    /// With the defaults; `stream_idle` is that of the appliance, and the default of the time between two bytes of a response.
    pub(crate) fn resolve(self, stream_idle: Duration) -> RequestTimeouts {
        let external = RequestTimeouts::EXTERNAL;
        RequestTimeouts {
            total: self.request.unwrap_or(external.total),
            response_start: self.response_start.unwrap_or(external.response_start),
            idle: self.idle.or(self.stream_idle).unwrap_or(stream_idle),
            request_body: OwnTimeout::new(self.request_body),
            stream_idle: OwnTimeout::new(self.stream_idle),
            connect: OwnTimeout::new(self.connect),
            ..external
        }
    }
}

/// TLS verification of a route's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsRule {
    /// PEM, with the trusted CAs.
    pub(crate) authorities: PathBuf,
    pub(crate) name: String,
}

impl FromStr for RouteRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, list) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not HOST=[SCHEME://]ADDR[,ADDR...]"))?;
        let host = host.to_ascii_lowercase();
        if host != "*" && !is_domain(host.strip_prefix("*.").unwrap_or(&host)) {
            return Err(format!("{host:?} is neither a DNS name nor *.PARENT nor *"));
        }
        let (list, options) = list.split_once('?').unwrap_or((list, ""));
        let (scheme, list) = match list.split_once("://") {
            Some((scheme, rest)) if !scheme.contains("unix") => (scheme, rest),
            _ => ("http", list), // `unix:///path` is an address
        };
        let (protocol, by_tls) = match scheme {
            "http" => (Protocol::Http1, false),
            "h2c" => (Protocol::H2c, false),
            "https" => (Protocol::Http1, true),
            "h2" => (Protocol::H2c, true),
            other => return Err(format!("{other:?} is neither http, https, h2c nor h2")),
        };
        let given = options.split('&').filter_map(|option| option.split_once('='));
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let options = RouteOptions::parse(options)?;
        let RouteOptions { timeouts, proxy_protocol, .. } = options;
        let health_check = options.health_check.clone();
        let authentication = options.authentication.clone().rule()?;
        let forward_auth = options.forward_auth.clone().rule()?;
        let filters = options.filters.clone();
        let filters = (filters != RouteFilterRule::default()).then(|| Arc::new(filters));
        if proxy_protocol.is_some() && protocol == Protocol::H2c {
            return Err(
                "proxy-protocol is for http:// and https://: connections of HTTP/2 are shared by clients".to_owned()
            );
        }
        if health_check.is_some() && scheme != "http" {
            return Err("health-check is for http:// only".to_owned());
        }
        let tls = options.tls_rule(&host, by_tls)?;
        let targets = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self {
            host,
            protocol,
            targets,
            tls,
            timeouts,
            proxy_protocol,
            health_check,
            filters,
            authentication,
            forward_auth,
            options: given,
        })
    }
}

/// The options after `?`.
#[derive(Default)]
struct RouteOptions {
    authorities: Option<PathBuf>,
    name: Option<String>,
    timeouts: RouteTimeouts,
    proxy_protocol: Option<ProxyProtocolVersion>,
    health_check: Option<String>,
    filters: RouteFilterRule,
    authentication: AuthenticationOptions,
    forward_auth: ForwardAuthOptions,
}

/// The options that a route may have.
const ROUTE_OPTIONS: &str = "ca=FILE, name=NAME, connect-timeout=WAIT, response-start-timeout=WAIT, idle-timeout=WAIT, \
     request-timeout=WAIT, request-body-timeout=WAIT, stream-idle-timeout=WAIT, proxy-protocol=v1|v2, health-check=PATH";

impl RouteOptions {
    fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for option in text.split('&').filter(|option| !option.is_empty()) {
            let wait = |text: &str| text.parse::<Wait>().map(|Wait(wait)| Some(wait));
            match option.split_once('=') {
                Some(("ca", file)) if !file.is_empty() => options.authorities = Some(PathBuf::from(file)),
                Some(("name", name)) if !name.is_empty() => options.name = Some(name.to_owned()),
                Some(("connect-timeout", text)) => {
                    options.timeouts.connect = wait(text)?;
                    if options.timeouts.connect == Some(Duration::ZERO) {
                        return Err("connect-timeout: 0 would fail each connection".to_owned());
                    }
                }
                Some(("response-start-timeout", text)) => options.timeouts.response_start = wait(text)?,
                Some(("idle-timeout", text)) => options.timeouts.idle = wait(text)?,
                Some(("request-timeout", text)) => options.timeouts.request = wait(text)?,
                Some(("request-body-timeout", text)) => options.timeouts.request_body = wait(text)?,
                Some(("stream-idle-timeout", text)) => options.timeouts.stream_idle = wait(text)?,
                Some(("proxy-protocol", "v1")) => options.proxy_protocol = Some(ProxyProtocolVersion::V1),
                Some(("proxy-protocol", "v2")) => options.proxy_protocol = Some(ProxyProtocolVersion::V2),
                Some(("health-check", path)) if is_request_path(path) => options.health_check = Some(path.to_owned()),
                Some((name, value)) if route_filters::add_option(&mut options.filters, name, value)? => {}
                Some((name, value)) if options.authentication.add(name, value)? => {}
                Some((name, value)) if options.forward_auth.add(name, value)? => {}
                _ => {
                    return Err(format!(
                        "{option:?} is not one of {ROUTE_OPTIONS}, {FILTER_OPTIONS}, {AUTHENTICATION_OPTIONS}, \
                         {FORWARD_AUTH_OPTIONS}"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// The name is the host's, unless that is a wildcard.
    fn tls_rule(self, host: &str, by_tls: bool) -> Result<Option<TlsRule>, String> {
        if !by_tls {
            return match (self.authorities, self.name) {
                (None, None) => Ok(None),
                _ => Err("ca and name are for https:// and h2://".to_owned()),
            };
        }
        let authorities = self.authorities.ok_or("TLS to an address needs ?ca=FILE, the trusted CA certificates")?;
        let name = match self.name {
            Some(name) => name,
            None if host.starts_with('*') => {
                return Err(format!("{host:?} is not a server name; give &name=NAME"));
            }
            None => host.to_owned(),
        };
        Ok(Some(TlsRule { authorities, name }))
    }
}

/// A path that can stand in a request line.
fn is_request_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic())
}

impl TryFrom<String> for RouteRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_names_host_and_addresses() {
        let rule: RouteRule = "App.Example.com=127.0.0.1:1,[::1]:2".parse().unwrap();
        assert_eq!((rule.host.as_str(), rule.targets.len()), ("app.example.com", 2));
        assert_eq!(rule.protocol, Protocol::Http1);
        assert!("*.example.com=127.0.0.1:1".parse::<RouteRule>().is_ok());
        let rule: RouteRule = "a=h2c://127.0.0.1:1,127.0.0.1:2".parse().unwrap();
        assert_eq!((rule.protocol, rule.targets.len(), rule.tls), (Protocol::H2c, 2, None));
        let rule: RouteRule = "a.test=https://127.0.0.1:1?ca=/ca.pem".parse().unwrap();
        let tls = rule.tls.unwrap();
        assert_eq!((rule.protocol, tls.name.as_str()), (Protocol::Http1, "a.test"));
        let rule: RouteRule = "*=h2://127.0.0.1:1,127.0.0.1:2?ca=/ca.pem&name=b.test".parse().unwrap();
        let tls = rule.tls.unwrap();
        assert_eq!((rule.protocol, rule.targets.len(), tls.name.as_str()), (Protocol::H2c, 2, "b.test"));
        assert_eq!(tls.authorities.to_str(), Some("/ca.pem"));
        for bad in [
            "",
            "a",
            "a=",
            "a=host",
            "a=host:0",
            "a=ho st:1",
            "a=127.0.0.256:1",
            "a=h2c://",
            "a=ftp://127.0.0.1:1",
            "a=https://127.0.0.1:1",
            "*=https://127.0.0.1:1?ca=/f",
            "a=https://127.0.0.1:1?ca=",
            "a=https://127.0.0.1:1?ca=/f&what=x",
            "a=h2c://127.0.0.1:1?ca=/f",
            "a=127.0.0.1:1?ca=/f",
            "a=127.0.0.1",
            "a=unix:run/app.sock",
            "a=unix://run/app.sock",
            "a=unix:",
            "a=ftp://unix:/run/app.sock",
            "a b=127.0.0.1:1",
            "-a=127.0.0.1:1",
            "*.=127.0.0.1:1",
            "a.*=127.0.0.1:1",
        ] {
            assert!(bad.parse::<RouteRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn route_to_unix_sockets_has_their_paths() {
        let rule: RouteRule =
            "a=h2c://unix:/run/a.sock,127.0.0.1:1,unix:///run/b.sock?stream-idle-timeout=1h".parse().unwrap();
        let shown: Vec<_> = rule.targets.iter().map(ToString::to_string).collect();
        assert_eq!(
            (rule.protocol, shown.join(" ")),
            (Protocol::H2c, "unix:/run/a.sock 127.0.0.1:1 unix:/run/b.sock".to_owned())
        );
        let plain: RouteRule = "a=unix:///run/b.sock".parse().unwrap();
        assert_eq!((plain.protocol, plain.targets.len()), (Protocol::Http1, 1));
        let why = "a=unix:app.sock".parse::<RouteRule>().unwrap_err();
        assert!(why.contains("not absolute"), "{why}");
        let why = format!("a=unix:/{}", "a".repeat(200)).parse::<RouteRule>().unwrap_err();
        assert!(why.contains("at most 107"), "{why}");
    }

    #[test]
    fn route_without_timeouts_has_the_defaults() {
        let rule: RouteRule = "a=127.0.0.1:1".parse().unwrap();
        let timeouts = rule.timeouts.resolve(Duration::from_secs(300));
        assert_eq!(timeouts, RequestTimeouts::EXTERNAL);
        let rule: RouteRule =
            "a=127.0.0.1:1?connect-timeout=1s&response-start-timeout=2s&idle-timeout=0&request-timeout=1m&proxy-protocol=v2&health-check=/ok"
                .parse()
                .unwrap();
        let timeouts = rule.timeouts.resolve(Duration::from_secs(300));
        assert_eq!(timeouts.connect.get(), Some(Duration::from_secs(1)));
        assert_eq!((timeouts.response_start, timeouts.idle), (Duration::from_secs(2), Duration::ZERO));
        assert_eq!((timeouts.total, timeouts.after_request), (Duration::from_secs(60), true));
        assert_eq!((rule.proxy_protocol, rule.health_check.as_deref()), (Some(ProxyProtocolVersion::V2), Some("/ok")));
        for bad in [
            "a=127.0.0.1:1?connect-timeout=0",
            "a=127.0.0.1:1?conect-timeout=1s",
            "a=127.0.0.1:1?proxy-protocol=v3",
            "a=h2c://127.0.0.1:1?proxy-protocol=v1",
            "a=127.0.0.1:1?health-check=ok",
            "a=h2c://127.0.0.1:1?health-check=/ok",
        ] {
            assert!(bad.parse::<RouteRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn route_has_names_and_timeouts_of_its_own() {
        let rule: RouteRule =
            "a=h2c://LocalHost:9100,127.0.0.1:1?stream-idle-timeout=1h&request-body-timeout=0".parse().unwrap();
        let named = RouteTarget::Name("localhost".to_owned(), 9100);
        assert_eq!(rule.targets, [named, RouteTarget::Address(([127, 0, 0, 1], 1).into())]);
        let timeouts = rule.timeouts.resolve(Duration::from_secs(7));
        assert_eq!(timeouts.stream_idle.get(), Some(Duration::from_secs(3600)));
        assert_eq!(timeouts.request_body.get(), Some(Duration::ZERO));
        assert_eq!(timeouts.idle, Duration::from_secs(3600));
        assert!("a=127.0.0.1:1?stream-idle-timeout=5".parse::<RouteRule>().is_err());
    }
}
