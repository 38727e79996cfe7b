//! Events of one core: received by the ingress, stored in the log, delivered to each subscriber.
//!
//! [`ingress`] checks a request and answers 202 only when its events are durable; [`log_writer`] owns the
//! log on the ring; [`delivery`] has one loop for each subscriber. [`engine::BrokerEngine`] combines them
//! for a core, [`server`] runs them on a core, [`sender`] sends the requests. An event's formats
//! on the wire and on disk are in `codec`.
#![forbid(unsafe_code)]

pub mod auth;
mod busy_poll;
mod deduplication;
pub mod delivery;
pub mod delivery_log;
mod delivery_log_writer;
pub mod dns;
mod durable_requests;
pub mod engine;
mod event_sinks;
pub mod events_service;
pub mod extension_headers;
mod feed;
pub mod filter_index;
mod flush_retry;
pub mod ingress;
pub mod limits;
pub mod log_writer;
mod preallocator;
pub mod progress;
mod readahead;
mod request_index;
mod request_scan;
pub mod sender;
pub mod server;
pub mod stalled;
mod store_publisher;
mod stored_message;
pub mod trace;
mod wall_clock;

#[cfg(test)]
mod tests;
