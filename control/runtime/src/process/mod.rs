//! Processes as the kernel has them.

pub(crate) mod child;
pub(crate) mod host_processes;
pub(crate) mod precise_sleep;
