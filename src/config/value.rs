//! Settings with a grammar of their own, parsed once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use control::kinds::names::is_dns1123_label;
use control::kinds::quantity;
use dataplane::table::Protocol;
use serde::Deserialize;
use ureq::http::Uri;

/// `REF=COMMAND`: an image that is a command of this host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ImageRule {
    pub(crate) image: String,
    /// Program and arguments, split as a shell splits words.
    pub(crate) command: Vec<String>,
}

/// `UID[:GID]`: who instances are. Without a group it has the user's number.
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

/// `HOST=[SCHEME://]ADDR[,ADDR...][?ca=FILE[&name=NAME]]`: a host whose requests go to given addresses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct RouteRule {
    /// Lower case; `*.` and a parent for every name right below it, `*` for any host.
    pub(crate) host: String,
    /// What all of the addresses speak.
    pub(crate) protocol: Protocol,
    pub(crate) addresses: Vec<SocketAddr>,
    /// They speak it by TLS.
    pub(crate) tls: Option<TlsRule>,
}

/// Whom the addresses of a route have to prove to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsRule {
    /// PEM, with the authorities that are believed.
    pub(crate) authorities: PathBuf,
    pub(crate) name: String,
}

/// `HOST=CERT,KEY`: the files that prove who we are.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct CertificateRule {
    /// Lower case; `*.` and a parent for every name right below it, `*` for any.
    pub(crate) host: String,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// An amount like `10Gi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Bytes(pub(crate) u64);

/// `NAMESPACE=BYTES`: how much of its events may wait.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct QuotaRule {
    /// `*` for each that is not named.
    pub(crate) namespace: String,
    pub(crate) bytes: Bytes,
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        quantity::bytes(text).map(Self).ok_or_else(|| format!("{text:?} is no amount of bytes, like 10Gi"))
    }
}

impl FromStr for QuotaRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, bytes) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not NAMESPACE=BYTES"))?;
        if namespace != "*" && !is_dns1123_label(namespace) {
            return Err(format!("{namespace:?} is not a namespace's name"));
        }
        Ok(Self { namespace: namespace.to_owned(), bytes: bytes.parse()? })
    }
}

/// `CERT,KEY`: the files that prove who the API is.
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

impl FromStr for RouteRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, list) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not HOST=[SCHEME://]ADDR[,ADDR...]"))?;
        let host = host.to_ascii_lowercase();
        if host != "*" && !is_domain(host.strip_prefix("*.").unwrap_or(&host)) {
            return Err(format!("{host:?} is neither a DNS name nor *.PARENT nor *"));
        }
        let (scheme, list) = list.split_once("://").unwrap_or(("http", list));
        let (protocol, by_tls) = match scheme {
            "http" => (Protocol::Http1, false),
            "h2c" => (Protocol::H2c, false),
            "https" => (Protocol::Http1, true),
            "h2" => (Protocol::H2c, true),
            other => return Err(format!("{other:?} is neither http, https, h2c nor h2")),
        };
        let (list, options) = list.split_once('?').unwrap_or((list, ""));
        let tls = tls_rule(&host, by_tls, options)?;
        let addresses = list
            .split(',')
            .map(|one| match one.trim().parse::<SocketAddr>() {
                Ok(address) if address.port() != 0 => Ok(address),
                _ => Err(format!("{one:?} is not an address like 127.0.0.1:9100")),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { host, protocol, addresses, tls })
    }
}

/// `ca=FILE&name=NAME`. The name is the host's, unless that is none.
fn tls_rule(host: &str, by_tls: bool, options: &str) -> Result<Option<TlsRule>, String> {
    let (mut authorities, mut name) = (None, None);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("ca", file)) if !file.is_empty() => authorities = Some(PathBuf::from(file)),
            Some(("name", given)) if !given.is_empty() => name = Some(given.to_owned()),
            _ => return Err(format!("{option:?} is neither ca=FILE nor name=NAME")),
        }
    }
    if !by_tls {
        return match options {
            "" => Ok(None),
            _ => Err(format!("{options:?} is for https:// and h2://")),
        };
    }
    let authorities = authorities.ok_or("TLS to an address needs ?ca=FILE: whose word counts")?;
    let name = match name {
        Some(name) => name,
        None if host.starts_with('*') => {
            return Err(format!("{host:?} is no server's name; give &name=NAME"));
        }
        None => host.to_owned(),
    };
    Ok(Some(TlsRule { authorities, name }))
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

/// Where something listens.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "it has to be an address and a port, like 127.0.0.1:8080 or [::]:8080".to_owned())
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

/// In a config file they are strings, read as on the command line.
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

from_string!(RouteRule, CertificateRule, ImageRule, Bytes, QuotaRule, FilePair, UserRule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_and_has_a_group() {
        for (text, user, group) in [("65532", 65_532, 65_532), ("1000:7", 1000, 7), ("0:0", 0, 0)] {
            assert_eq!(text.parse(), Ok(UserRule { user, group }));
        }
        for bad in ["", "nobody", "-1", "1:", ":1", "1:2:3", "4294967295"] {
            assert!(bad.parse::<UserRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_collector_is_a_host_in_the_clear() {
        assert!(is_http_url("http://127.0.0.1:4318/v1/traces") && is_http_url("http://collector"));
        for bad in ["", "http://", "http:///v1", "http://a b/", "https://a/", "a:4318", "/v1/traces"] {
            assert!(!is_http_url(bad), "{bad}");
        }
    }

    #[test]
    fn a_route_names_a_host_and_its_addresses() {
        let rule: RouteRule = "App.Example.com=127.0.0.1:1,[::1]:2".parse().unwrap();
        assert_eq!((rule.host.as_str(), rule.addresses.len()), ("app.example.com", 2));
        assert_eq!(rule.protocol, Protocol::Http1);
        assert!("*.example.com=127.0.0.1:1".parse::<RouteRule>().is_ok());
        let rule: RouteRule = "a=h2c://127.0.0.1:1,127.0.0.1:2".parse().unwrap();
        assert_eq!((rule.protocol, rule.addresses.len(), rule.tls), (Protocol::H2c, 2, None));
        let rule: RouteRule = "a.test=https://127.0.0.1:1?ca=/ca.pem".parse().unwrap();
        let tls = rule.tls.unwrap();
        assert_eq!((rule.protocol, tls.name.as_str()), (Protocol::Http1, "a.test"));
        let rule: RouteRule = "*=h2://127.0.0.1:1,127.0.0.1:2?ca=/ca.pem&name=b.test".parse().unwrap();
        let tls = rule.tls.unwrap();
        assert_eq!((rule.protocol, rule.addresses.len(), tls.name.as_str()), (Protocol::H2c, 2, "b.test"));
        assert_eq!(tls.authorities.to_str(), Some("/ca.pem"));
        for bad in [
            "",
            "a",
            "a=",
            "a=host:1",
            "a=h2c://",
            "a=ftp://127.0.0.1:1",
            "a=https://127.0.0.1:1",
            "*=https://127.0.0.1:1?ca=/f",
            "a=https://127.0.0.1:1?ca=",
            "a=https://127.0.0.1:1?ca=/f&what=x",
            "a=h2c://127.0.0.1:1?ca=/f",
            "a=127.0.0.1:1?ca=/f",
            "a=127.0.0.1",
            "a b=127.0.0.1:1",
            "-a=127.0.0.1:1",
            "*.=127.0.0.1:1",
            "a.*=127.0.0.1:1",
        ] {
            assert!(bad.parse::<RouteRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_certificate_names_its_host_and_two_files() {
        let rule: CertificateRule = "*.Example.com=/a=b/c.pem,/k.pem".parse().unwrap();
        assert_eq!((rule.host.as_str(), rule.certificate.to_str()), ("*.example.com", Some("/a=b/c.pem")));
        assert!("*=c,k".parse::<CertificateRule>().is_ok());
        for bad in ["", "a", "a=c", "a=c,", "a=,k", "=c,k", "*.=c,k", "a*=c,k", "a.*.b=c,k"] {
            assert!(bad.parse::<CertificateRule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_image_rule_splits_its_command_as_a_shell_does() {
        let rule: ImageRule = "ghcr.io/acme/hello:1=/bin/echo 'a b' c=d".parse().unwrap();
        assert_eq!(rule.image, "ghcr.io/acme/hello:1");
        assert_eq!(rule.command, ["/bin/echo", "a b", "c=d"]);
        for bad in ["", "a", "a=", "=b", "a='open"] {
            assert!(bad.parse::<ImageRule>().is_err(), "{bad:?}");
        }
    }
}
