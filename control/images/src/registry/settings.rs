//! Endpoints of registries: mirrors, certificates, plain HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use super::loopback::is_loopback;
use super::proxy::ProxySettings;
use crate::limits::{MIRRORS_MAX, RequestLimits};
use crate::reference::Reference;

/// The content of a registry configuration file, and what flags add to it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistrySettings {
    /// Registries whose certificate is not verified, and that may speak plain HTTP.
    pub insecure_registries: BTreeSet<String>,
    /// Settings by the name in references, such as `docker.io` or `registry.lan:5000`.
    pub registry: BTreeMap<String, RegistryEntry>,
    #[serde(skip)]
    pub limits: RequestLimits,
    #[serde(skip)]
    pub proxy: ProxySettings,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryEntry {
    /// Tried in order before the registry itself: `HOST[:PORT]` or a URL.
    pub mirrors: Vec<String>,
    /// CA certificates (PEM) for this registry, besides those of the system.
    pub ca_file: Option<PathBuf>,
}

/// Transport security of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Security {
    /// HTTPS with a verified certificate.
    Verified,
    /// HTTPS with any certificate, and plain HTTP if the host does not speak TLS.
    Insecure,
    /// HTTP.
    Plain,
}

/// One host that serves a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegistryEndpoint {
    /// `HOST[:PORT]`
    pub authority: String,
    pub security: Security,
    /// The name in credentials and errors.
    pub name: String,
    /// A mirror serves another registry's content. If it fails, the next endpoint is tried.
    pub is_mirror: bool,
}

impl RegistrySettings {
    /// # Errors
    /// If a bound is passed, or the name of a registry or mirror is not an address.
    pub fn check(&self) -> Result<(), String> {
        for name in &self.insecure_registries {
            if !is_authority(name) {
                return Err(format!(
                    "insecure registry {name:?} is not HOST[:PORT]; name it without scheme and path, as images do"
                ));
            }
        }
        for (name, entry) in &self.registry {
            if entry.mirrors.len() > MIRRORS_MAX {
                return Err(format!("registry {name:?} has {} mirrors, limit {MIRRORS_MAX}", entry.mirrors.len()));
            }
            for mirror in &entry.mirrors {
                let rest = mirror.strip_prefix("https://").or_else(|| mirror.strip_prefix("http://")).unwrap_or(mirror);
                let rest = rest.trim_end_matches('/');
                if !is_authority(rest) {
                    return Err(format!(
                        "mirror {mirror:?} of registry {name:?} is not HOST[:PORT] or a URL without a path"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The endpoints for `reference`, in order: mirrors, then the registry.
    #[must_use]
    pub fn endpoints(&self, reference: &Reference) -> Vec<RegistryEndpoint> {
        let mirrors = self.registry.get(reference.registry()).map(|entry| entry.mirrors.as_slice()).unwrap_or_default();
        let mut endpoints: Vec<RegistryEndpoint> = mirrors.iter().map(|mirror| self.mirror(mirror)).collect();
        endpoints.push(RegistryEndpoint {
            authority: reference.registry_host().to_owned(),
            security: self.security(reference.registry()),
            name: reference.registry().to_owned(),
            is_mirror: false,
        });
        endpoints
    }

    fn mirror(&self, address: &str) -> RegistryEndpoint {
        let address = address.trim_end_matches('/');
        let (authority, security) = match address.split_once("://") {
            Some(("http", authority)) => (authority, Security::Plain),
            Some((_, authority)) if self.insecure_registries.contains(authority) => (authority, Security::Insecure),
            Some((_, authority)) => (authority, Security::Verified),
            None => (address, self.security(address)),
        };
        RegistryEndpoint { authority: authority.to_owned(), security, name: authority.to_owned(), is_mirror: true }
    }

    /// A loopback registry speaks plain HTTP, unless a certificate is configured for it.
    fn security(&self, name: &str) -> Security {
        if self.insecure_registries.contains(name) {
            Security::Insecure
        } else if is_loopback(name) && self.ca_file(name).is_none() {
            Security::Plain
        } else {
            Security::Verified
        }
    }

    #[must_use]
    pub fn ca_file(&self, name: &str) -> Option<&PathBuf> {
        self.registry.get(name).and_then(|entry| entry.ca_file.as_ref())
    }
}

/// `HOST[:PORT]`.
fn is_authority(text: &str) -> bool {
    let has_valid_port = |name: http::uri::Authority| name.host() == text || name.port_u16().is_some();
    !text.contains(['/', '@']) && text.parse().is_ok_and(has_valid_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(settings: &RegistrySettings, reference: &str) -> Vec<(String, Security)> {
        let reference: Reference = reference.parse().expect("valid");
        settings.endpoints(&reference).into_iter().map(|place| (place.authority, place.security)).collect()
    }

    #[test]
    fn loopback_registry_speaks_plain_http() {
        let settings = RegistrySettings::default();
        for (reference, security) in [
            ("localhost:5000/a", Security::Plain),
            ("127.8.0.1:5000/a", Security::Plain),
            ("[::1]:5000/a", Security::Plain),
            ("ghcr.io/a", Security::Verified),
            ("127.0.0.1.evil.example/a", Security::Verified),
        ] {
            assert_eq!(endpoints(&settings, reference)[0].1, security, "{reference}");
        }
    }

    #[test]
    fn mirrors_come_before_the_registry() {
        let mut settings = RegistrySettings::default();
        settings.insecure_registries.insert("m2.lan".into());
        let mirrors = vec!["https://m1.lan/".into(), "m2.lan".into(), "http://m3.lan:80".into()];
        settings.registry.insert("docker.io".into(), RegistryEntry { mirrors, ca_file: None });
        assert_eq!(settings.check(), Ok(()));
        let expected = [
            ("m1.lan", Security::Verified),
            ("m2.lan", Security::Insecure),
            ("m3.lan:80", Security::Plain),
            ("registry-1.docker.io", Security::Verified),
        ];
        assert_eq!(endpoints(&settings, "nginx"), expected.map(|(host, security)| (host.to_owned(), security)));
    }

    #[test]
    fn insecure_registry_that_is_no_address_is_refused() {
        let check = |name: &str| {
            let insecure_registries = [name.to_owned()].into();
            RegistrySettings { insecure_registries, ..RegistrySettings::default() }.check()
        };
        for name in ["r.lan", "r.lan:5000", "10.0.0.5:5000", "[::1]:5000"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "http://r.lan", "r.lan/app", "me@r.lan", "r.lan:x"] {
            assert!(check(name).is_err_and(|why| why.contains("is not HOST[:PORT]")), "{name}");
        }
    }

    #[test]
    fn mirror_with_a_path_is_refused() {
        let mut settings = RegistrySettings::default();
        let mirrors = vec!["https://m.lan/proxy".into()];
        settings.registry.insert("docker.io".into(), RegistryEntry { mirrors, ca_file: None });
        assert!(settings.check().is_err_and(|why| why.contains("without a path")));
    }
}
