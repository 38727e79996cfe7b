//! What all instances of this host share: its ports, its control groups, and processes that wait for the next of them.

mod context;
mod port_allocator;
pub(crate) mod prefork_pool;

pub use context::HostConfig;
pub(crate) use context::HostContext;
