//! TLS, for clients and towards instances: rustls, fed bytes from the ring.
//!
//! A [`Door`] turns an accepted connection into a [`TlsStream`]: it waits for the hello, takes its turn
//! (`turnstile`), and answers by the [`Terms`] that all cores share. Which certificate a name gets is in
//! the table ([`certificates`]). [`Trust`] says which instance or subscriber is believed. From there on [`Wire`] is all the proxy sees.
//! Deliberately absent: what is said inside (HTTP), and where certificates come from (files, control).

pub mod certificates;
mod door;
mod hello;
mod limits;
mod outcome;
mod stream;
mod terms;
mod trust;
mod turnstile;
mod wire;

pub use certificates::{Certificates, Identity, IdentityError};
pub use door::Door;
pub use limits::TlsLimits;
pub use outcome::Outcome;
pub use stream::TlsStream;
pub use terms::{Oldest, Own, Terms};
pub use trust::{Authorities, Trust, TrustError};
pub use wire::{Pipe, Wire};
