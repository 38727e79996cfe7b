//! The resource limits of an instance.

/// The resources of an instance; 0 = unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    pub memory_bytes_max: u64,
    pub cpu_milli_max: u64,
    /// Its weight against others, when processors are short.
    pub cpu_milli_request: u64,
}

impl ResourceLimits {
    /// The sum of two containers' resources: unlimited if one of them is.
    #[must_use]
    pub fn sum(self, other: Self) -> Self {
        let both = |one: u64, two: u64| if one == 0 || two == 0 { 0 } else { one.saturating_add(two) };
        Self {
            memory_bytes_max: both(self.memory_bytes_max, other.memory_bytes_max),
            cpu_milli_max: both(self.cpu_milli_max, other.cpu_milli_max),
            cpu_milli_request: self.cpu_milli_request.saturating_add(other.cpu_milli_request),
        }
    }

    /// Limits that are enough for either of two that do not run at the same time: unlimited if one of them is.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let larger = |one: u64, two: u64| if one == 0 || two == 0 { 0 } else { one.max(two) };
        Self {
            memory_bytes_max: larger(self.memory_bytes_max, other.memory_bytes_max),
            cpu_milli_max: larger(self.cpu_milli_max, other.cpu_milli_max),
            cpu_milli_request: self.cpu_milli_request.max(other.cpu_milli_request),
        }
    }

    pub(crate) fn is_limited(self) -> bool {
        self != Self::default()
    }
}
