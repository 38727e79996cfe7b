#![forbid(unsafe_code)]
//! The data plane of one core: HTTP proxying, the pending queue, event ingress and delivery.
//!
//! Knows hosts, backends, streams and subscribers ([`table`]) and reports demand ([`signal`]), but no Service or
//! Trigger.

pub mod access_log;
pub mod core;
pub mod events;
pub mod h2;
pub mod http;
pub mod proxy;
pub mod tls;

// For crates that do not depend on `ring`: the process runtime attaches cgroup port programs to instances, the others
// keep memory small.
pub use codec;
pub use codec::{cloudevent, encode, record};
pub use contract;
pub use contract::{
    abandoned, access_token, client_address, connection_query, core_relay, counters, event_types, fair_queue, filter,
    host_address, load, post_error, request_histograms, request_log, service_names, signal, spans, stream_admission,
    table, table_publisher, target_policy,
};
pub use ring::{allocator, cgroup_ports, code_pages};
