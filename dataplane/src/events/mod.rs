//! Events of one core: taken in at the door, kept in the log, delivered to each subscriber.
//!
//! [`ingress`] judges a request and answers 202 only when its events are durable; [`keeper`] owns the
//! log on the ring; [`delivery`] has one loop for each subscriber. [`house::Events`] puts them
//! together for a core, [`service`] is how a core runs them, [`sender`] how requests leave. What an event is, and its forms on the wire and on disk: [`cloudevent`],
//! [`record`], [`encode`].

pub mod admission;
pub mod cloudevent;
pub mod companions;
pub mod delivery;
pub mod encode;
mod feed;
pub mod filter;
mod hand;
pub mod house;
pub mod ingress;
pub mod journal;
pub mod keeper;
pub mod left_behind;
pub mod limits;
mod pager;
pub mod record;
pub mod relay;
pub mod resolve;
pub mod sender;
pub mod service;
pub mod stalled;
pub mod trace;
pub mod types;
mod vigil;

pub use crate::http::answer::Answer;

#[cfg(test)]
mod tests;
