//! Settings of certificates by ACME.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::value::is_domain;

/// Let's Encrypt's production directory.
pub(crate) const DEFAULT_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// RFC 5321, section 4.5.3.1.3: a path with its brackets has 256.
const EMAIL_BYTES_MAX: usize = 254;

/// The settings, checked. They exist if `--acme-email` is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcmeConfig {
    pub(crate) email: String,
    /// An `https://` URL.
    pub(crate) directory: String,
    /// PEM, with the CAs that are trusted for the directory; `None`: the system's.
    pub(crate) ca: Option<PathBuf>,
    /// Empty: every public host.
    pub(crate) hosts: Vec<HostPattern>,
}

/// `NAME`, or `*.PARENT` for every name below it, with any number of labels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct HostPattern(String);

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        if !is_domain(text.strip_prefix("*.").unwrap_or(&text)) {
            return Err(format!("{text:?} is neither a DNS name nor *.PARENT"));
        }
        Ok(Self(text))
    }
}

impl TryFrom<String> for HostPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl HostPattern {
    fn matches(&self, host: &str) -> bool {
        match self.0.strip_prefix('*') {
            Some(parent) => host.len() > parent.len() && host.ends_with(parent),
            None => self.0 == host,
        }
    }
}

impl AcmeConfig {
    /// `None` without an e-mail address: ACME is off.
    pub(super) fn new(
        email: Option<String>,
        directory: Option<String>,
        ca: Option<PathBuf>,
        hosts: Vec<HostPattern>,
    ) -> Result<Option<Self>, String> {
        let Some(email) = email else {
            let given = [("directory", directory.is_some()), ("ca", ca.is_some()), ("hosts", !hosts.is_empty())];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => Err(format!("acme-{name}: give --acme-email too, which turns ACME on")),
                None => Ok(None),
            };
        };
        let is_email = email.split_once('@').is_some_and(|(user, domain)| {
            !user.is_empty() && is_domain(domain) && email.bytes().all(|byte| byte.is_ascii_graphic())
        });
        if !is_email || email.len() > EMAIL_BYTES_MAX {
            return Err(format!("acme-email: {email:?} is not an e-mail address like admin@example.com"));
        }
        let directory = directory.unwrap_or_else(|| DEFAULT_DIRECTORY.to_owned());
        let url = directory.parse::<http::Uri>().ok();
        if url.is_none_or(|url| url.scheme_str() != Some("https") || url.host().is_none_or(str::is_empty)) {
            return Err(format!("acme-directory: {directory:?} is not an https:// URL"));
        }
        Ok(Some(Self { email, directory, ca, hosts }))
    }

    /// Whether certificates may be ordered for `host`, a name in lower case.
    pub(crate) fn allows(&self, host: &str) -> bool {
        is_orderable(host) && (self.hosts.is_empty() || self.hosts.iter().any(|pattern| pattern.matches(host)))
    }
}

/// Names of special use (RFC 6761, RFC 6762, RFC 9476, and `internal` by ICANN): no public authority issues certificates for them.
const SPECIAL_DOMAINS: [&str; 9] =
    ["localhost", "local", "internal", "invalid", "test", "example", "alt", "onion", "arpa"];

/// No addresses, no wildcards, and no names that only this host or its network knows.
fn is_orderable(host: &str) -> bool {
    let Some((_, last)) = host.rsplit_once('.') else { return false };
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    // `svc` is the last label of cluster-local names in short.
    is_domain(host) && !is_number && last != "svc" && !SPECIAL_DOMAINS.contains(&last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(hosts: &[&str]) -> AcmeConfig {
        let hosts = hosts.iter().map(|text| text.parse().unwrap()).collect();
        AcmeConfig::new(Some("a@example.com".into()), None, None, hosts).unwrap().unwrap()
    }

    #[test]
    fn only_public_names_that_a_pattern_matches_are_allowed() {
        let (all, some) = (config(&[]), config(&["a.example.com", "*.shop.example.com"]));
        for (host, by_all, by_some) in [
            ("a.example.com", true, true),
            ("b.example.com", true, false),
            ("x.shop.example.com", true, true),
            ("y.x.shop.example.com", true, true),
            ("shop.example.com", true, false),
            ("evilshop.example.com", true, false),
            ("*.shop.example.com", false, false),
            ("10.0.0.1", false, false),
            ("hello.default.svc.cluster.local", false, false),
            ("hello.default.svc", false, false),
            ("hello.default.localhost", false, false),
            ("localhost", false, false),
        ] {
            assert_eq!((all.allows(host), some.allows(host)), (by_all, by_some), "{host}");
        }
    }

    #[test]
    fn settings_are_checked() {
        let new = |email: Option<&str>, directory: Option<&str>, ca: Option<&str>| {
            AcmeConfig::new(email.map(str::to_owned), directory.map(str::to_owned), ca.map(Into::into), Vec::new())
        };
        assert_eq!(new(None, None, None), Ok(None));
        assert_eq!(new(Some("a@b.org"), None, None).unwrap().unwrap().directory, DEFAULT_DIRECTORY);
        for (given, key) in [
            (new(None, Some("https://a/dir"), None), "acme-directory: give --acme-email"),
            (new(None, None, Some("/ca")), "acme-ca: give --acme-email"),
            (new(Some("a"), None, None), "acme-email"),
            (new(Some("a b@c.org"), None, None), "acme-email"),
            (new(Some("a@c.org"), Some("http://a.org/dir"), None), "acme-directory"),
            (new(Some("a@c.org"), Some("directory"), None), "acme-directory"),
        ] {
            let why = given.unwrap_err();
            assert!(why.starts_with(key), "{why}");
        }
        assert!("*".parse::<HostPattern>().is_err() && "a.*.org".parse::<HostPattern>().is_err());
    }
}
