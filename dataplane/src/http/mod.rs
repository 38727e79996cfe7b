//! HTTP/1.1: a codec without I/O, the heads that leave, and the two kinds of connection.
//!
//! [`codec`] decides what bytes mean, strictly: a message that two parsers could read differently is
//! refused, because every request here passes at least two of them. [`headers`] writes the heads
//! that leave, `lines` the fields that go on as they came. [`buffers`] is a socket's two directions, [`relay`] carries a body from one to another. [`client`] and [`pool`]
//! are connections to instances, [`server`] serves small whole messages (events). [`websocket`] is what a tunnel has to know.
//! [`date`] has the time for answers. [`trace`] puts spans of our own between a client's and an instance's.

pub mod body_budget;
pub mod buffer_cache;
pub mod buffers;
pub mod client;
pub mod codec;
pub mod connection_tracker;
pub mod date;
mod field_copier;
pub mod headers;
pub mod limits;
pub mod local_response;
pub mod pool;
pub mod relay;
pub mod server;
pub mod trace;
pub mod websocket;
