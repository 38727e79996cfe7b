//! Why an image is not available. Each variant is one condition reason of Knative or the kubelet.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::digest::Digest;

/// Cloned to every caller that waits for the same layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    InvalidReference(String),
    #[error("{image}: not found at {registry}{detail}; check the name and the tag")]
    NotFound { image: String, registry: String, detail: String },
    #[error(
        "{image}: {registry} denies access{detail}; check imagePullSecrets, and that the repository exists (registries answer the same for both)"
    )]
    Unauthorized { image: String, registry: String, detail: String },
    #[error("{image}: no image for {wanted}; it exists for {available}")]
    NoMatchingPlatform { image: String, wanted: String, available: String },
    #[error("{image}: {part} {digest} is corrupt: {detail}; push the image again")]
    Corrupt { image: String, part: &'static str, digest: Digest, detail: String },
    #[error("{image}: unusable image: {detail}")]
    Unsupported { image: String, detail: String },
    #[error("{registry}: {detail}; check the address, the network, and whether the registry speaks HTTPS")]
    Unreachable { registry: String, detail: String },
    #[error("{registry}: too many requests{}; pull with credentials, or from a mirror", retry_text(*retry_after))]
    RateLimited { registry: String, retry_after: Option<Duration> },
    #[error("{path}: no space left for {what}; free some, or run `sluicegate image prune`")]
    DiskFull { path: String, what: String },
    #[error("{registry}: {what} took longer than {limit:?}; check the network and the registry")]
    Timeout { registry: String, what: String, limit: Duration },
    #[error("{image}: {what} is larger than the limit of {limit}; make the image smaller")]
    TooLarge { image: String, what: String, limit: u64 },
    #[error("{0} is not on this host, and the pull policy is Never; import or pull it first")]
    Absent(String),
    #[error("{what}: {detail}")]
    Credentials { what: String, detail: String },
    #[error("{what}: {detail}")]
    Storage { what: String, detail: String },
    #[error("{0}: the pull was cancelled; pull again")]
    Cancelled(String),
}

fn retry_text(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |pause| format!(", it asks to wait {} s", pause.as_secs()))
}

impl Error {
    /// An error of the file system: a full disk apart from all others.
    #[must_use]
    pub fn storage(path: &Path, what: &str, cause: &io::Error) -> Self {
        if is_disk_full(cause) {
            return Self::DiskFull { path: path.display().to_string(), what: what.to_owned() };
        }
        Self::Storage { what: format!("{what}: {}", path.display()), detail: cause.to_string() }
    }

    /// The reason that Knative's and the kubelet's conditions give.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidReference(_) => "InvalidImageName",
            Self::NotFound { .. } | Self::NoMatchingPlatform { .. } => "ContainerMissing",
            Self::Absent(_) => "ErrImageNeverPull",
            Self::Unreachable { .. } => "RegistryUnavailable",
            _ => "ErrImagePull",
        }
    }

    /// True if the same request may succeed later without any change to the image or its credentials.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::RateLimited { .. }
                | Self::DiskFull { .. }
                | Self::Timeout { .. }
                | Self::Storage { .. }
                | Self::Cancelled(_)
        )
    }
}

/// ENOSPC, or a quota that is used up.
#[must_use]
pub fn is_disk_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_differs_from_other_errors() {
        let full = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let error = Error::storage(Path::new("/data"), "a layer", &full);
        assert!(matches!(&error, Error::DiskFull { path, .. } if path == "/data"), "{error}");
        assert!(error.is_temporary());
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(matches!(Error::storage(Path::new("/data"), "a layer", &denied), Error::Storage { .. }));
    }

    #[test]
    fn missing_image_has_upstreams_reason() {
        let error = Error::NotFound { image: "a:b".into(), registry: "r".into(), detail: String::new() };
        assert_eq!(error.reason(), "ContainerMissing");
        assert_eq!(error.to_string(), "a:b: not found at r; check the name and the tag");
    }
}
