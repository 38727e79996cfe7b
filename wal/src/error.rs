//! Errors of the log, with numbers and what to do next.

use std::io;
use std::path::PathBuf;

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{folder}: another process has this log open; stop it or choose another data folder")]
    InUse { folder: PathBuf },
    #[error("{file}: not a segment of this log (it begins with {found:02x?}); move it away")]
    Foreign { file: PathBuf, found: [u8; 8] },
    #[error(
        "{file}: log format {found}, this program reads up to {readable}; \
         start the version that wrote it"
    )]
    Format { file: PathBuf, found: u32, readable: u32 },
    #[error("{first} and {second} both claim position {base}; move the copy away")]
    Twice { first: PathBuf, second: PathBuf, base: u64 },
    #[error("{option} is {value}, it must be {min} to {max}")]
    Option { option: &'static str, value: u64, min: u64, max: u64 },
    #[error("{path}: {doing}: {source}")]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, doing, source }
    }
}

/// The log rejects the append; its contents are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Temporary: resolves when consumers make progress or the disk gets space. Try again later.
    #[error("the log is full: {used} of {max}, see {limit}")]
    Full { limit: &'static str, used: u64, max: u64 },
    /// Permanent: this record can never fit.
    #[error("{bytes} bytes are too large, limit {max}, see {limit}")]
    TooLarge { bytes: u64, max: u64, limit: &'static str },
    /// A flush failed: the contents of the disk are unknown until the log is reopened.
    #[error("the log failed and rejects appends until it is reopened: {reason}")]
    Poisoned { reason: Box<str> },
    /// The stream was never declared, or it was deleted.
    #[error("stream {stream} is not declared")]
    UnknownStream { stream: u32 },
}

impl AppendError {
    pub(crate) fn full(limit: &'static str, used: u64, max: u64) -> Self {
        Self::Full { limit, used, max }
    }
}
