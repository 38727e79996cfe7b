#![forbid(unsafe_code)]
//! The data plane of one core: HTTP proxying, the pending queue, event ingress and delivery.
//!
//! Knows hosts, backends, streams and subscribers ([`table`]) and reports demand ([`signal`]), but no Service or
//! Trigger.

pub mod access_log;
pub mod connection_query;
pub mod core;
pub mod counters;
pub mod events;
pub mod fair_queue;
pub mod h2;
mod hex;
pub mod http;
pub mod load;
pub mod proxy;
pub mod request_histograms;
pub mod service_names;
pub mod signal;
pub mod spans;
pub mod table;
pub mod table_publisher;
pub mod target_policy;
pub mod tls;

// For crates that do not depend on `ring`: the process runtime attaches cgroup port programs to instances, the others
// keep memory small.
pub use ring::{allocator, cgroup_ports, code_pages};
