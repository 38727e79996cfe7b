//! The contract between control and the cores: what control gives to them, and what they report.
//!
//! [`table`] is what a core must know, with what it carries: filters ([`filter`]), admission ([`stream_admission`]),
//! certificates and trust ([`tls`]), the log template ([`request_log`]), names ([`service_names`]) and counters that
//! outlive a table ([`load`]). [`table_publisher`] swaps it. [`listener_sockets`] hands over the sockets of listeners that are
//! opened at run time. Cores report by [`signal`], [`counters`], [`spans`],
//! [`abandoned`] and [`event_types`]; [`connection_query`] and [`core_relay`] ask them. Both use streams in external stores
//! by [`event_store`]. [`target_policy`] is the rule for
//! addresses that both sides connect to.
//!
//! No I/O and no event loop: the machinery is in the crates above.
#![forbid(unsafe_code)]

pub mod abandoned;
pub mod access_token;
pub mod client_address;
pub mod cold_starts;
pub mod compression_counters;
pub mod connection_query;
pub mod core_relay;
pub mod counters;
pub mod event_response;
pub mod event_store;
pub mod event_types;
pub mod fair_queue;
pub mod filter;
pub mod forwarded_chain;
pub mod host_address;
pub mod initial_offset;
pub mod limits;
pub mod listener_sockets;
pub mod load;
pub mod post_error;
pub mod relay_counters;
pub mod relay_gauge;
pub mod request_histograms;
pub mod request_log;
pub mod service_names;
pub mod signal;
pub mod spans;
pub mod stream_admission;
pub mod table;
pub mod table_publisher;
pub mod target_policy;
pub mod tls;
pub mod trusted_proxies;

// For crates that do not depend on `ring`: the process runtime attaches cgroup port programs to instances, the others
// keep memory small.
pub use ring::{allocator, cgroup_ports, code_pages, idmapped_mount};
