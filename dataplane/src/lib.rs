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
mod hex;
pub mod http;
pub mod inquiry;
pub mod line;
pub mod load;
pub mod names;
pub mod outcomes;
pub mod proxy;
pub mod publish;
pub mod signal;
pub mod spans;
pub mod table;
pub mod target_policy;
pub mod tls;

// For those above, which have no arrow to `ring`: the process runtime seats instances with one, the others keep memory small.
pub use ring::{code, group_port, heap};
