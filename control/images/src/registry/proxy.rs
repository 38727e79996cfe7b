//! The proxies for connections to registries, by the environment variables that curl and docker know: `HTTPS_PROXY`,
//! `HTTP_PROXY` and `NO_PROXY`, also in lower case.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;

use super::loopback::is_loopback;

/// Entries of `NO_PROXY`; each is compared with the host of every new connection.
const EXCEPTIONS_MAX: usize = 1000;

/// Which connections go through a proxy.
#[derive(Debug, Clone, Default)]
pub struct ProxySettings {
    http: Option<ProxyServer>,
    https: Option<ProxyServer>,
    exceptions: Vec<ProxyException>,
}

/// A proxy that speaks HTTP without TLS.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ProxyServer {
    pub(super) host: String,
    pub(super) port: u16,
    /// `Basic …`
    pub(super) authorization: Option<String>,
}

impl std::fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port) // without its password
    }
}

/// Hosts that are reached without a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProxyException {
    All,
    /// The names below this one, and with `own` the name itself.
    Domain {
        name: String,
        own: bool,
        port: Option<u16>,
    },
    /// Addresses that begin with so many bits of this one.
    Network(IpAddr, u32),
}

impl ProxySettings {
    /// The settings of the process's environment.
    ///
    /// # Errors
    /// If a variable does not name a proxy.
    pub fn from_environment() -> Result<Self, String> {
        Self::new(|name| std::env::var(name).ok())
    }

    /// The same of the variables that `get` has. `HTTP_PROXY` may come from a request in a CGI program, which this is not.
    ///
    /// # Errors
    /// If a variable does not name a proxy.
    pub fn new(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let value = |name: &str| {
            let both = [get(name), get(&name.to_ascii_lowercase())];
            both.into_iter().flatten().map(|text| text.trim().to_owned()).find(|text| !text.is_empty())
        };
        let server = |name: &str| value(name).map(|text| ProxyServer::parse(name, &text)).transpose();
        let exceptions = value("NO_PROXY").unwrap_or_default();
        let exceptions: Vec<&str> = exceptions.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
        if exceptions.len() > EXCEPTIONS_MAX {
            return Err(format!("NO_PROXY has {} entries, limit {EXCEPTIONS_MAX}; name domains", exceptions.len()));
        }
        let exceptions = exceptions.into_iter().map(ProxyException::parse).collect();
        Ok(Self { http: server("HTTP_PROXY")?, https: server("HTTPS_PROXY")?, exceptions })
    }

    /// The proxy for a host. This host is never reached through one.
    pub(super) fn server(&self, host: &str, port: u16, is_tls: bool) -> Option<&ProxyServer> {
        let server = if is_tls { self.https.as_ref() } else { self.http.as_ref() }?;
        let is_exempt = is_this_host(host) || self.exceptions.iter().any(|exception| exception.matches(host, port));
        (!is_exempt).then_some(server)
    }
}

fn is_this_host(host: &str) -> bool {
    is_loopback(host) || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl ProxyServer {
    fn parse(variable: &str, text: &str) -> Result<Self, String> {
        // The text may hold a password, so an error does not repeat it.
        let wrong = || format!("{variable} is not the URL of a proxy; use http://[USER:PASSWORD@]HOST[:PORT]");
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = with_scheme.parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") {
            let scheme = uri.scheme_str().unwrap_or_default();
            return Err(format!("{variable}: proxies with {scheme} are not supported; use http://HOST[:PORT]"));
        }
        let authority = uri.authority().ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // The parser drops a port that is no number of 16 bits, and another one would be used.
        let has_port = authority.as_str().rsplit('@').next() != Some(authority.host());
        if host.is_empty() || (has_port && authority.port_u16().is_none()) {
            return Err(wrong());
        }
        let login = authority.as_str().rsplit_once('@').map(|(login, _)| login);
        let authorization = login.map(|login| unescape(login).map(|login| format!("Basic {}", STANDARD.encode(login))));
        let authorization = authorization.map(|login| login.ok_or_else(wrong)).transpose()?;
        Ok(Self { host, port: authority.port_u16().unwrap_or(80), authorization })
    }
}

/// Resolves `%XX` in a login.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        // The standard library would accept a sign, as in `%+1`.
        let digits =
            std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = more;
    }
    Some(out)
}

impl ProxyException {
    fn parse(entry: &str) -> Self {
        if entry == "*" {
            return Self::All;
        }
        if let Ok(address) = entry.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Self::Network(address, if address.is_ipv4() { 32 } else { 128 });
        }
        if let Some((address, bits)) = entry.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse(), bits.parse())
        {
            return Self::Network(address, bits);
        }
        let (name, port) = match entry.rsplit_once(':') {
            Some((name, port)) => (name, port.parse().ok()),
            None => (entry, None),
        };
        let below = name.strip_prefix("*.").or_else(|| name.strip_prefix('.'));
        Self::Domain { name: below.unwrap_or(name).to_ascii_lowercase(), own: below.is_none(), port }
    }

    fn matches(&self, host: &str, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Domain { name, own, port: only } => {
                let host = host.to_ascii_lowercase();
                let is_below = || host.strip_suffix(name.as_str()).is_some_and(|start| start.ends_with('.'));
                only.is_none_or(|only| only == port) && ((*own && host == *name) || is_below())
            }
            Self::Network(network, bits) => match (host.parse::<IpAddr>(), network) {
                (Ok(IpAddr::V4(host)), IpAddr::V4(network)) => {
                    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(*bits)).unwrap_or(0);
                    u32::from(host) & mask == u32::from(*network) & mask
                }
                (Ok(IpAddr::V6(host)), IpAddr::V6(network)) => {
                    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(*bits)).unwrap_or(0);
                    u128::from(host) & mask == u128::from(*network) & mask
                }
                _ => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<ProxySettings, String> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        ProxySettings::new(find)
    }

    #[test]
    fn proxy_depends_on_the_scheme_and_the_exceptions() {
        let all = settings(&[
            ("HTTPS_PROXY", "http://me:p%40ss@proxy.lan:3128"),
            ("http_proxy", "plain.lan"),
            ("NO_PROXY", "ghcr.io, .corp.lan,10.0.0.0/8, one.lan:5000 ,192.168.7.7"),
        ])
        .unwrap();
        let tls = all.server("docker.io", 443, true).unwrap();
        assert_eq!((tls.host.as_str(), tls.port), ("proxy.lan", 3128));
        assert_eq!(tls.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        assert_eq!(format!("{tls:?}"), "proxy.lan:3128");
        assert_eq!(all.server("docker.io", 80, false).unwrap().port, 80);
        for (host, port, is_proxied) in [
            ("ghcr.io", 443, false),
            ("pkg.GHCR.io", 443, false),
            ("myghcr.io", 443, true),
            ("corp.lan", 443, true),
            ("r.corp.lan", 443, false),
            ("10.9.8.7", 443, false),
            ("11.9.8.7", 443, true),
            ("192.168.7.7", 443, false),
            ("one.lan", 5000, false),
            ("one.lan", 443, true),
            ("localhost", 5000, false),
            ("127.0.0.1", 5000, false),
            ("::1", 5000, false),
        ] {
            assert_eq!(all.server(host, port, true).is_some(), is_proxied, "{host}:{port}");
        }
        assert!(settings(&[("HTTPS_PROXY", "p:1"), ("no_proxy", "*")]).unwrap().server("a", 443, true).is_none());
        assert!(settings(&[]).unwrap().server("a", 443, true).is_none());
    }

    #[test]
    fn variable_that_names_no_proxy_is_refused_without_its_password() {
        for value in [
            "https://u:secret@p:1",
            "socks5://u:secret@p:1",
            "http://u:secret@",
            "http://u:sec%zzret@p",
            "http://u:sec%+1ret@p",
            "http://u:secret@p:99999",
        ] {
            let why = settings(&[("HTTPS_PROXY", value)]).unwrap_err();
            assert!(why.starts_with("HTTPS_PROXY") && !why.contains("secret"), "{why}");
        }
    }
}
