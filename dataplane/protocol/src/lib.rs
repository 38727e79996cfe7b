//! The protocols of connections: TLS ([`tls`]), HTTP/1.1 ([`http`]) and HTTP/2 ([`h2`]), each on the one before.
//!
//! Everything above sees heads and plain bytes; what they mean is decided in the crates above.
#![forbid(unsafe_code)]

pub mod h2;
pub mod http;
pub mod tls;
