//! Settings with a fixed set of values.

use clap::ValueEnum;
use control::kinds::workloads::WorkloadKinds;
use serde::Deserialize;

/// Format of a line in the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AccessFormat {
    #[default]
    Off,
    Common,
    Json,
}

/// The interface of the kernel that the cores use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum IoDriverRule {
    /// io_uring where it is allowed, and otherwise epoll.
    #[default]
    Auto,
    IoUring,
    Epoll,
}

/// Which responses carry `Server-Timing`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ServerTiming {
    /// Those to requests that waited for an instance.
    #[default]
    Cold,
    Off,
}

/// A version of TLS, by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
pub(crate) enum TlsVersion {
    #[default]
    #[value(name = "1.2")]
    #[serde(rename = "1.2")]
    V12,
    #[value(name = "1.3")]
    #[serde(rename = "1.3")]
    V13,
}

/// Which workloads clients may write beside Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WorkloadRule {
    #[default]
    All,
    ServicesOnly,
}

impl WorkloadRule {
    pub(crate) fn kinds(self) -> WorkloadKinds {
        match self {
            Self::All => WorkloadKinds::All,
            Self::ServicesOnly => WorkloadKinds::ServicesOnly,
        }
    }
}
