//! Which image of an index runs on this host.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::manifest::Descriptor;

/// Operating system, architecture and variant by the names of Go, as indexes have them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// This host's.
    #[must_use]
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", Some("v8")),
            "x86" => ("386", None),
            "arm" => ("arm", Some("v7")),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Self { architecture: architecture.into(), os: "linux".into(), variant: variant.map(Into::into) }
    }

    /// How well an image for `offered` runs here; less is better, none if it does not run.
    fn rank(&self, offered: &Self) -> Option<u32> {
        if offered.os != self.os || offered.architecture != self.architecture {
            return None;
        }
        let offered_variant = offered.variant.as_deref().filter(|variant| !variant.is_empty());
        match (self.variant.as_deref(), offered_variant) {
            (wanted, offered) if wanted == offered => Some(0),
            // v8 is what arm64 means without a variant.
            (_, None) => Some(1),
            // An older variant runs on a newer machine: v6 on v7, v1 on v3.
            (Some(wanted), Some(offered)) if number(offered) <= number(wanted) => {
                Some(2 + number(wanted) - number(offered))
            }
            // Every amd64 runs v1; more is not known of this host.
            (None, Some("v1")) => Some(2),
            _ => None,
        }
    }

    /// The best entry of an index. Attestations have the platform `unknown/unknown` and never match.
    #[must_use]
    pub fn choose<'d>(&self, entries: &'d [Descriptor]) -> Option<&'d Descriptor> {
        let rank = |entry: &Descriptor| entry.platform.as_ref().and_then(|platform| self.rank(platform));
        let best = entries.iter().filter_map(|entry| Some((rank(entry)?, entry))).min_by_key(|(rank, _)| *rank);
        // An index of one image without a platform is what some builders write for one architecture.
        best.map(|(_, entry)| entry).or_else(|| match entries {
            [entry] if entry.platform.is_none() => Some(entry),
            _ => None,
        })
    }

    /// As [`Platform::choose`]; the error lists what `image` is available for.
    ///
    /// # Errors
    /// If no entry runs here.
    pub fn choose_or_error<'d>(&self, image: &str, entries: &'d [Descriptor]) -> Result<&'d Descriptor, Error> {
        self.choose(entries).ok_or_else(|| Error::NoMatchingPlatform {
            image: image.to_owned(),
            wanted: self.to_string(),
            available: list(entries),
        })
    }

    /// True if a configuration for `offered` runs here. Empty fields are those of old builders.
    #[must_use]
    pub fn runs(&self, offered: &Self) -> bool {
        (offered.os.is_empty() || offered.os == self.os)
            && (offered.architecture.is_empty() || offered.architecture == self.architecture)
    }
}

fn number(variant: &str) -> u32 {
    variant.trim_start_matches('v').parse().unwrap_or(u32::MAX)
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().filter(|variant| !variant.is_empty()).map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// What an index offers, for an error that says so.
#[must_use]
pub fn list(entries: &[Descriptor]) -> String {
    let names: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .filter(|platform| platform.os != "unknown")
        .map(ToString::to_string)
        .collect();
    if names.is_empty() { "no platform".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn entry(platform: &str) -> Descriptor {
        let mut parts = platform.split('/').map(str::to_owned);
        let platform = Platform {
            os: parts.next().unwrap_or_default(),
            architecture: parts.next().unwrap_or_default(),
            variant: parts.next(),
        };
        Descriptor { platform: Some(platform), ..Descriptor::new("m", Digest::of(b""), 0) }
    }

    fn chosen(host: &str, offered: &[&str]) -> Option<String> {
        let entries: Vec<Descriptor> = offered.iter().map(|platform| entry(platform)).collect();
        let host = entry(host).platform.expect("given");
        host.choose(&entries).and_then(|entry| entry.platform.as_ref()).map(ToString::to_string)
    }

    #[test]
    fn best_variant_of_an_index_is_chosen() {
        let some = |platform: &str| Some(platform.to_owned());
        assert_eq!(chosen("linux/amd64", &["linux/arm64", "linux/amd64"]), some("linux/amd64"));
        assert_eq!(chosen("linux/amd64", &["linux/amd64/v3", "linux/amd64/v1"]), some("linux/amd64/v1"));
        assert_eq!(chosen("linux/arm64/v8", &["linux/arm64"]), some("linux/arm64"));
        assert_eq!(chosen("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6"]), some("linux/arm/v6"));
        assert_eq!(chosen("linux/arm/v6", &["linux/arm/v7"]), None);
        assert_eq!(chosen("linux/amd64", &["windows/amd64", "unknown/unknown"]), None);
    }

    #[test]
    fn list_of_platforms_leaves_attestations_out() {
        assert_eq!(list(&[entry("linux/arm64"), entry("unknown/unknown")]), "linux/arm64");
    }
}
