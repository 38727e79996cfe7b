//! The system calls that a container may make: Docker's and containerd's default profile (RT-ISO-04).
//!
//! An allow-list with its conditional rules: what a capability allows, namespaces by `clone` only with `SYS_ADMIN`, and
//! `clone3`, whose flags a filter cannot read, fails as if the kernel did not have it, so that libc falls back to `clone`. All other
//! calls fail with `EPERM`. Calls of other architectures fail as unknown: 32-bit programs do not run.

mod bpf;
mod profile;

use std::io;
use std::sync::OnceLock;

use rustix::thread::CapabilitySet;
use seccompiler::BpfProgram;

/// A filter in the kernel's terms.
#[derive(Debug, Clone)]
pub struct SeccompFilter(BpfProgram);

impl SeccompFilter {
    /// The filter for a process that has at most `capabilities`.
    #[must_use]
    pub fn for_capabilities(capabilities: CapabilitySet) -> Self {
        Self(bpf::assemble(&profile::rules(capabilities)))
    }

    /// The filter of most containers, assembled once in a process.
    pub fn of_defaults() -> &'static Self {
        static DEFAULT: OnceLock<SeccompFilter> = OnceLock::new();
        DEFAULT.get_or_init(|| Self::for_capabilities(crate::capabilities::DEFAULTS))
    }

    /// Installs the filter for this process and its later children, which then gain no privilege by starting programs.
    pub fn install(&self) -> io::Result<()> {
        seccompiler::apply_filter(&self.0).map_err(|why| io::Error::other(why.to_string()))
    }
}
