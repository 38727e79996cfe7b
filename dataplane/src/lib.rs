#![forbid(unsafe_code)]
//! One core's work: HTTP proxying, the waiting room, event ingress and delivery.
//!
//! Knows hosts, backends, streams and subscribers ([`table`]); reports what it needs ([`signal`]);
//! never a Service or a Trigger.

pub mod access;
pub mod core;
pub mod counters;
pub mod events;
pub mod h2;
pub mod http;
pub mod inquiry;
pub mod load;
pub mod names;
pub mod proxy;
pub mod publish;
pub mod signal;
pub mod spans;
pub mod table;
pub mod tls;

// The process runtime above seats instances with it, and has no arrow to `ring`.
pub use ring::group_port;
