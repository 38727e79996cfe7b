//! Processes of the kernel.

pub(crate) mod child;
pub(crate) mod host_processes;
pub(crate) mod precise_sleep;
