//! Resources that all instances of this host share: ports, control groups, and prefork processes.

mod context;
mod port_allocator;
pub(crate) mod prefork_pool;

pub use context::HostConfig;
pub(crate) use context::HostContext;
