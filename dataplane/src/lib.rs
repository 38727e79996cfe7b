//! The data plane of one core: HTTP proxying, the pending queue, event ingress and delivery.
//!
//! [`core`] composes the crates below it, which are re-exported here: the [`contract`] with control, the formats
//! ([`codec`]), the protocols ([`tls`], [`http`], [`h2`]), the [`proxy`] and the [`broker`]. They know hosts, backends,
//! streams and subscribers ([`table`]) and report demand ([`signal`]), but no Service or Trigger.
#![forbid(unsafe_code)]

pub mod core;

pub use broker;
pub use codec;
pub use codec::{cloudevent, encode, record};
pub use contract;
pub use contract::{
    abandoned, access_token, client_address, cold_starts, connection_query, core_relay, counters, event_types,
    fair_queue, filter, host_address, listener_sockets, load, post_error, request_histograms, request_log,
    service_names, signal, spans, stream_admission, table, table_publisher, target_policy, trusted_proxies,
};
pub use protocol::{h2, http, tls};
pub use proxy;
pub use proxy::access_log;
pub use ring::{allocator, cgroup_ports, code_pages};
