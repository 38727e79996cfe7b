//! The formats of bytes on the wire and on disk: HTTP/1.1 messages ([`http`]), CloudEvents ([`cloudevent`]), the record of
//! an event in the log ([`record`]), the request that delivers it ([`encode`]), HTTP requests that are stored
//! ([`stored_request`]), the PROXY protocol ([`proxy_protocol`]) and the first message of a TLS client ([`client_hello`]).
//!
//! Values in, values out: no I/O, no clock, no state that is shared.
#![forbid(unsafe_code)]

pub mod client_hello;
pub mod cloudevent;
pub mod encode;
pub mod hex;
pub mod hop_fields;
pub mod http;
pub mod limits;
pub mod proxy_protocol;
pub mod record;
pub mod stored_request;
