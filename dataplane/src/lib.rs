#![forbid(unsafe_code)]
//! One core's work: HTTP proxying, the waiting room, event ingress and delivery.
//!
//! Knows hosts, backends, streams and subscribers ([`table`]); reports what it needs ([`signal`]);
//! never a Service or a Trigger.

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

// For those above, which have no arrow to `ring`: the process runtime seats instances with one, the others keep memory small.
pub use ring::{allocator, cgroup_ports, code_pages};
