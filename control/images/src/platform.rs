//! The platform of an image, and whether it runs on this host.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    pub(crate) fn rank(&self, offered: &Self) -> Option<u32> {
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
