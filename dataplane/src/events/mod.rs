//! Events of one core: received by the ingress, stored in the log, delivered to each subscriber.
//!
//! [`ingress`] checks a request and answers 202 only when its events are durable; [`log_writer`] owns the
//! log on the ring; [`delivery`] has one loop for each subscriber. [`engine::BrokerEngine`] combines them
//! for a core, [`server`] runs them on a core, [`sender`] sends the requests. An event and its formats on
//! the wire and on disk: [`cloudevent`], [`record`], [`encode`].

pub mod abandoned;
pub mod auth;
mod busy_poll;
pub mod cloudevent;
pub mod core_relay;
pub mod delivery;
pub mod delivery_log;
pub mod dns;
pub mod encode;
pub mod engine;
pub mod event_types;
pub mod extension_headers;
mod feed;
pub mod filter;
mod flush_retry;
pub mod ingress;
pub mod limits;
pub mod log_writer;
mod preallocator;
mod readahead;
pub mod record;
pub mod sender;
pub mod server;
pub mod stalled;
pub mod trace;

pub use crate::http::local_response::LocalResponse;

#[cfg(test)]
mod tests;
