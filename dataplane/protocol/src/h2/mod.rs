//! HTTP/2 on the ring.
//!
//! The protocol is our codec ([`http2`]). [`server`] feeds it with the connections of clients, and [`stream`] is one of
//! their streams. [`client`] keeps the connections to instances, and [`instance_stream`] is a request on one. [`io`] sends
//! the frames of both. [`heads`] translates heads to HTTP/1 and back, so that requests are checked in one place,
//! [`buffered`] serves small messages whole, and [`grpc`] writes local replies for gRPC clients. The limits are in
//! [`limits`].

pub mod buffered;
pub mod client;
pub mod grpc;
pub mod heads;
mod instance_connection;
pub mod instance_stream;
pub mod io;
pub mod limits;
pub mod server;
mod shared_streams;
pub mod stream;
pub mod trailers;

pub use http2::{ErrorCode, FieldBlock, FloodKind, StreamGone};
pub use shared_streams::{MessagePart, ReceivedHead, StreamFailure};
