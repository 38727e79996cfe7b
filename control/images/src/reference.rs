//! Image references, read as docker/distribution reads them.
//!
//! `nginx` is `docker.io/library/nginx:latest`; `host:5000/a/b@sha256:…` names a registry, a repository and a digest.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;
use crate::error::Error;
use crate::limits::{REPOSITORY_BYTES_MAX, TAG_BYTES_MAX};

const DEFAULT_REGISTRY: &str = "docker.io";
/// The name under which docker's configuration has it.
const LEGACY_DEFAULT_REGISTRY: &str = "index.docker.io";
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";
const DEFAULT_TAG: &str = "latest";

/// A reference with everything filled in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The registry as users write it: `docker.io`, `ghcr.io`, `localhost:5000`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The host, and port if any, that serves this registry's API.
    #[must_use]
    pub fn registry_host(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_REGISTRY_HOST } else { &self.registry }
    }

    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; none if a digest was given without one.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Registry and repository, without tag and digest.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The name of a manifest in requests: the digest if there is one, as it cannot move.
    #[must_use]
    pub fn manifest_name(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// The same repository by digest only.
    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self { tag: None, digest: Some(digest), ..self.clone() }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|why| Error::InvalidReference(format!("image reference {text:?}: {why}")))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn parse(text: &str) -> Result<Reference, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    if text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("64 hexadecimal digits are an identifier, not a name".into());
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse::<Digest>()?)),
        None => (text, None),
    };
    // A colon before the last slash belongs to a port.
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[last..].find(':') {
        Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
        None => (rest, None),
    };
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    let (registry, path) = split_registry(name);
    let repository =
        if registry == DEFAULT_REGISTRY && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
    check_registry(registry)?;
    check_repository(&repository)?;
    if registry.len() + 1 + repository.len() > REPOSITORY_BYTES_MAX {
        return Err(format!("the name is longer than {REPOSITORY_BYTES_MAX} bytes"));
    }
    let tag = match (tag, &digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, Some(_)) => None,
        (None, None) => Some(DEFAULT_TAG.to_owned()),
    };
    Ok(Reference { registry: registry.to_owned(), repository, tag, digest })
}

/// The first part is a registry if it has a dot or a port, is `localhost`, or has a capital letter, which no repository has.
fn split_registry(name: &str) -> (&str, &str) {
    let Some((first, rest)) = name.split_once('/') else { return (DEFAULT_REGISTRY, name) };
    let is_registry =
        first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|byte| byte.is_ascii_uppercase());
    match first {
        LEGACY_DEFAULT_REGISTRY => (DEFAULT_REGISTRY, rest),
        _ if is_registry => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    }
}

fn check_registry(registry: &str) -> Result<(), String> {
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("the registry's address lacks its `]`")?;
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("registry [{address}] is not an IPv6 address"));
            }
            (None, port.strip_prefix(':').or(if port.is_empty() { None } else { Some("") }))
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(registry), None),
        },
    };
    if let Some(port) = port
        && (port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) || port.parse::<u16>().is_err())
    {
        return Err(format!("registry {registry:?} has an invalid port"));
    }
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    match host {
        Some(host) if !host.split('.').all(is_label) => Err(format!("registry {registry:?} is not a host name")),
        _ => Ok(()),
    }
}

/// Components of lower-case letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn check_repository(repository: &str) -> Result<(), String> {
    if repository.is_empty() {
        return Err("it names no repository".into());
    }
    if repository.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("a repository name is in lower case".into());
    }
    for component in repository.split('/') {
        if !is_path_component(component.as_bytes()) {
            return Err(format!("{component:?} is not a valid part of a repository name"));
        }
    }
    Ok(())
}

fn is_path_component(component: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
    if !component.first().is_some_and(is_word) || !component.last().is_some_and(is_word) {
        return false;
    }
    component.split(is_word).all(|separator| match separator {
        [] | [b'.'] | [b'_'] | [b'_', b'_'] => true,
        dashes => dashes.iter().all(|byte| *byte == b'-'),
    })
}

fn check_tag(tag: &str) -> Result<(), String> {
    let bytes = tag.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let first = bytes.first().is_some_and(is_word);
    if !first || bytes.len() > TAG_BYTES_MAX || !bytes.iter().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-')) {
        return Err(format!("{tag:?} is not a valid tag"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn short_names_are_completed_as_docker_does() {
        for (text, whole) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("me/app", "docker.io/me/app:latest"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
            ("docker.io/nginx", "docker.io/library/nginx:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:v1", "localhost:5000/app:v1"),
            ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("gcr.io/a/b.c_d__e---f:T_1.x-y", "gcr.io/a/b.c_d__e---f:T_1.x-y"),
            ("Registry/app", "Registry/app:latest"),
            ("host:80/x", "host:80/x:latest"),
        ] {
            let reference: Reference = text.parse().expect(text);
            assert_eq!(reference.to_string(), whole);
        }
    }

    #[test]
    fn digest_wins_over_tag() {
        let reference: Reference = format!("a.b/c:v1@{SHA}").parse().expect("valid");
        assert_eq!((reference.tag(), reference.manifest_name().as_str()), (Some("v1"), SHA));
        let reference: Reference = format!("a.b/c@{SHA}").parse().expect("valid");
        assert_eq!((reference.tag(), reference.to_string()), (None, format!("a.b/c@{SHA}")));
    }

    #[test]
    fn docker_hub_is_served_by_its_own_host() {
        let reference: Reference = "nginx".parse().expect("valid");
        assert_eq!((reference.registry(), reference.registry_host()), ("docker.io", "registry-1.docker.io"));
    }

    #[test]
    fn malformed_references_are_refused() {
        let long = format!("a.b/{}", "x".repeat(260));
        let tag = format!("a:{}", "x".repeat(129));
        for text in [
            "",
            "a:",
            ":a",
            "/a",
            "a//b",
            "a/",
            "A/b/../c",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "UPPER",
            "a.b/Upper",
            "a@sha256:00",
            "a@",
            "a:tag:tag",
            "host:99999/a",
            "host:/a",
            "[::1/a",
            "[zz]:1/a",
            "http://a.b/c",
            "a b",
            "a:.b",
            "a\n",
            "ä",
            long.as_str(),
            tag.as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_survives_a_round_trip(text in ".{0,80}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let again: Reference = reference.to_string().parse().expect("its own text");
                prop_assert_eq!(again, reference);
            }
        }

        #[test]
        fn likely_text_is_refused_or_survives_a_round_trip(text in "[a-zA-Z0-9.:/@_\\[\\]-]{1,40}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert!(!reference.repository().contains(".."));
                let again: Reference = reference.to_string().parse().expect("its own text");
                prop_assert_eq!(again, reference);
            }
        }
    }
}
