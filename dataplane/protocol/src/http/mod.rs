//! HTTP/1.1 on connections: head writers, and the client and server connections. The parsers are in `codec`.
//!
//! [`headers`] writes heads, [`authorization_request`] those for authorization services, `field_copier` copies unchanged fields.
//! [`buffers`] holds the two directions of a socket, and [`relay`] copies a body from one to another. [`client`] and
//! [`pool`] are connections to instances, [`server`] serves small whole messages (events). [`websocket`] tracks frames
//! for tunnels. [`date`] formats the time for responses. [`trace`] puts the gateway's spans between those of a client
//! and an instance.

pub mod authorization_request;
pub mod body_budget;
pub mod buffer_cache;
pub mod buffers;
pub mod client;
pub mod connection_tracker;
pub mod date;
mod field_copier;
pub mod headers;
pub mod limits;
pub mod pool;
pub mod relay;
pub mod server;
pub mod trace;
pub mod websocket;
