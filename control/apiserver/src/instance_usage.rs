//! The interface of the runtime for `kubectl top`.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// What is used, on average over `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredUsage {
    /// Billionths of a processor.
    pub nanocores: u64,
    pub memory_bytes: u64,
    pub window: Duration,
}

/// What this host uses, and each of its instances by their ids.
#[derive(Debug, Clone, Default)]
pub struct UsageReport {
    pub host: Option<MeasuredUsage>,
    pub instances: HashMap<u64, MeasuredUsage>,
}

/// Measures.
pub trait UsageSource: fmt::Debug + Send + Sync {
    fn measure(&self) -> BoxFuture<'static, UsageReport>;
}
