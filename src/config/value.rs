//! Settings with a grammar of their own, parsed once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use control::kinds::eventing::jetstream::server_url;
use control::kinds::{duration, quantity};
use control::names::is_dns1123_label;
use dataplane::target_policy::AllowedTarget;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use ureq::http::Uri;
use ureq::http::uri::Authority;

/// `REF=COMMAND`: an image that is a command of this host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ImageRule {
    pub(crate) image: String,
    /// Program and arguments, split like a shell does.
    pub(crate) command: Vec<String>,
}

/// `CIDR[:PORT]`: addresses that users may name as targets although the target policy rejects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct AllowedTargetRule(pub(crate) AllowedTarget);

impl FromStr for AllowedTargetRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

/// `UID[:GID]`: the user of instances. Without a group it has the user's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct UserRule {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Whether manifests may start programs of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProcessRule {
    Deny,
    AllowList,
    Allow,
}

/// A user id has 31 bits (Kubernetes' bound).
const ID_MAX: u32 = 2_147_483_647;

/// `HOST=CERT,KEY`: the files of a server certificate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct CertificateRule {
    /// Lower case; `*.` and a parent for every name one label below it, `*` for any.
    pub(crate) host: String,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// An amount like `10Gi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ByteSize(pub(crate) u64);

/// A time to wait, like `90s` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Wait(pub(crate) Duration);

impl Default for Wait {
    /// For `core-stall-timeout`: a thousand times the slowest filter, and less than the timeout of a
    /// liveness probe.
    fn default() -> Self {
        Self(Duration::from_secs(2))
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wait = duration::parse_go(text);
        wait.map(Self).ok_or_else(|| format!("{text:?} is not a duration like 90s, 5m or 0"))
    }
}

/// `NAMESPACE=BYTES`: limit of its undelivered events.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct QuotaRule {
    /// `*` for each that is not named.
    pub(crate) namespace: String,
    pub(crate) bytes: ByteSize,
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        quantity::bytes(text).map(Self).ok_or_else(|| format!("{text:?} is not an amount of bytes, like 10Gi"))
    }
}

/// The URL of a server of NATS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct NatsServerUrl(pub(crate) String);

impl FromStr for NatsServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        server_url(text).map(Self)
    }
}

impl FromStr for QuotaRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, bytes) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAMESPACE=BYTES"))?;
        if namespace != "*" && !is_dns1123_label(namespace) {
            return Err(format!("{namespace:?} is not a namespace's name"));
        }
        Ok(Self { namespace: namespace.to_owned(), bytes: bytes.parse()? })
    }
}

/// `CERT,KEY`: the files of the API's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct FilePair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl FromStr for FilePair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(',') {
            Some((certificate, key)) if !certificate.is_empty() && !key.is_empty() => {
                Ok(Self { certificate: certificate.into(), key: key.into() })
            }
            _ => Err(format!("{text:?} is not CERT,KEY")),
        }
    }
}

impl FromStr for ImageRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (image, command) = text.split_once('=').ok_or_else(|| format!("{text:?} is not REF=COMMAND"))?;
        if image.is_empty() || image.contains(char::is_whitespace) {
            return Err(format!("{image:?} is not an image reference"));
        }
        let command = shlex::split(command).ok_or_else(|| format!("{command:?} has an open quote"))?;
        if command.is_empty() {
            return Err(format!("{text:?} names no command"));
        }
        Ok(Self { image: image.to_owned(), command })
    }
}

impl FromStr for UserRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        let id = |text: &str| text.parse().ok().filter(|id| *id <= ID_MAX);
        match (id(user), id(group)) {
            (Some(user), Some(group)) => Ok(Self { user, group }),
            _ => Err(format!("{text:?} is not UID[:GID], numbers up to {ID_MAX}")),
        }
    }
}

impl FromStr for CertificateRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(host, files)| Some((host, files.split_once(',')?)));
        let Some((host, (certificate, key))) = parts else {
            return Err(format!("{text:?} is not HOST=CERT,KEY"));
        };
        let host = host.to_ascii_lowercase();
        if host != "*" && !is_domain(host.strip_prefix("*.").unwrap_or(&host)) {
            return Err(format!("{host:?} is neither a DNS name nor *.PARENT nor *"));
        }
        if certificate.is_empty() || key.is_empty() {
            return Err(format!("{text:?} names one file, and needs a certificate and a key"));
        }
        Ok(Self { host, certificate: certificate.into(), key: key.into() })
    }
}

/// A name by which clients may call a listener: a DNS name, `*.PARENT` or an address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct AllowedHostRule(pub(crate) String);

impl FromStr for AllowedHostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_string()));
        }
        if is_domain(text.strip_prefix("*.").unwrap_or(text)) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(format!("{text:?} is neither a DNS name nor *.PARENT nor an address; it has no port"))
    }
}

/// The host and port of a URL, as other programs reach a listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct AdvertisedHost(pub(crate) String);

impl FromStr for AdvertisedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not HOST or HOST:PORT, like events.example.com or 192.0.2.1:8081");
        let authority: Authority = text.parse().map_err(|_| bad())?;
        let host = authority.host();
        let is_address = host.parse::<IpAddr>().is_ok()
            || host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'))
                .is_some_and(|host| host.parse::<IpAddr>().is_ok());
        // What follows the host is a port that is a number, or nothing: no user and no empty port.
        let port = text.strip_prefix(host).ok_or_else(bad)?;
        let has_port = port.is_empty() || authority.port_u16().is_some_and(|port| port > 0);
        if !(is_address || is_domain(host)) || !has_port {
            return Err(bad());
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// A listening address: `127.0.0.1:8080`, `localhost:8080`, or `:8080` for all addresses of this host.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let bad = || {
        format!(
            "{text:?} is not an address and a port, like 127.0.0.1:8080, localhost:8080, [::]:8080 or :8080 (all addresses)"
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port: u16 = port.parse().map_err(|_| bad())?;
    if host.is_empty() {
        return Ok(SocketAddr::new(any_address(), port));
    }
    if !is_domain(host) || host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(bad());
    }
    let resolved: Vec<_> =
        (host, port).to_socket_addrs().map_err(|why| format!("the name {host} cannot be resolved: {why}"))?.collect();
    // `localhost` is often both; clients try 127.0.0.1 sooner or later, and many only that.
    let first = resolved.iter().find(|address| address.is_ipv4()).or(resolved.first());
    first.copied().ok_or_else(|| format!("the name {host} has no address"))
}

/// All addresses of this host: of both families where the kernel has IPv6.
fn any_address() -> IpAddr {
    let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    if UdpSocket::bind((any, 0)).is_ok() { any } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The same in the config file.
pub(super) fn file_address<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(input)?;
    text.map(|text| address(&text).map_err(D::Error::custom)).transpose()
}

/// A number without a sign.
pub(crate) fn whole<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "it must be a whole number, like 4".to_owned())
}

/// Whether it begins with `http://` and names a host.
pub(crate) fn is_http_url(text: &str) -> bool {
    text.parse::<Uri>().is_ok_and(|url| url.scheme_str() == Some("http") && url.authority().is_some())
}

/// RFC 1123 labels, 253 characters at most.
pub(crate) fn is_domain(name: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// In a config file they are strings, parsed as on the command line.
macro_rules! from_string {
    ($($rule:ty),+) => {$(
        impl TryFrom<String> for $rule {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )+};
}

from_string!(
    NatsServerUrl,
    AllowedTargetRule,
    CertificateRule,
    ImageRule,
    ByteSize,
    QuotaRule,
    FilePair,
    UserRule,
    Wait,
    AllowedHostRule,
    AdvertisedHost
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_host_is_name_wildcard_or_address() {
        for (text, host) in [
            ("Gate.example.com", "gate.example.com"),
            ("*.lan", "*.lan"),
            ("10.0.0.5", "10.0.0.5"),
            ("2001:DB8:0::1", "2001:db8::1"),
        ] {
            assert_eq!(text.parse(), Ok(AllowedHostRule(host.to_owned())));
        }
        for bad in ["", "*", "*.", "gate:8001", "http://gate", "gate.", "a b", "[::1]"] {
            assert!(bad.parse::<AllowedHostRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn advertised_host_is_name_or_address_with_port() {
        for (text, host) in [
            (
                "sluicegate-events.knative-serving.svc.cluster.local",
                "sluicegate-events.knative-serving.svc.cluster.local",
            ),
            ("Events.example.com:8081", "events.example.com:8081"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(text.parse(), Ok(AdvertisedHost(host.to_owned())));
        }
        for bad in ["", ":80", "http://a", "a/b", "u@a", "a:", "a:0", "a:99999", "2001:db8::1", "a b", "a?b"] {
            assert!(bad.parse::<AdvertisedHost>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn user_is_number_with_group() {
        for (text, user, group) in [("65532", 65_532, 65_532), ("1000:7", 1000, 7), ("0:0", 0, 0)] {
            assert_eq!(text.parse(), Ok(UserRule { user, group }));
        }
        for bad in ["", "nobody", "-1", "1:", ":1", "1:2:3", "4294967295"] {
            assert!(bad.parse::<UserRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn wait_is_parsed_in_go_duration_format() {
        for (text, ms) in [("2s", 2000), ("500ms", 500), ("1.5s", 1500), ("2m", 120_000), ("0", 0), ("0s", 0)] {
            assert_eq!(text.parse(), Ok(Wait(Duration::from_millis(ms))), "{text}");
        }
        for bad in ["", "2", "s", "-1s", "2 s"] {
            assert!(bad.parse::<Wait>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn collector_is_plain_http_host() {
        assert!(is_http_url("http://127.0.0.1:4318/v1/traces") && is_http_url("http://collector"));
        for bad in ["", "http://", "http:///v1", "http://a b/", "https://a/", "a:4318", "/v1/traces"] {
            assert!(!is_http_url(bad), "{bad}");
        }
    }

    #[test]
    fn certificate_names_host_and_two_files() {
        let rule: CertificateRule = "*.Example.com=/a=b/c.pem,/k.pem".parse().unwrap();
        assert_eq!((rule.host.as_str(), rule.certificate.to_str()), ("*.example.com", Some("/a=b/c.pem")));
        assert!("*=c,k".parse::<CertificateRule>().is_ok());
        for bad in ["", "a", "a=c", "a=c,", "a=,k", "=c,k", "*.=c,k", "a*=c,k", "a.*.b=c,k"] {
            assert!(bad.parse::<CertificateRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn image_rule_splits_command_like_shell() {
        let rule: ImageRule = "ghcr.io/acme/hello:1=/bin/echo 'a b' c=d".parse().unwrap();
        assert_eq!(rule.image, "ghcr.io/acme/hello:1");
        assert_eq!(rule.command, ["/bin/echo", "a b", "c=d"]);
        for bad in ["", "a", "a=", "=b", "a='open"] {
            assert!(bad.parse::<ImageRule>().is_err(), "{bad:?}");
        }
    }
}
