//! HTTP/2 on the ring.
//!
//! Connections of clients use our codec ([`http2`]): [`server`] feeds it, and [`stream`] is one of its streams.
//! Connections to instances use the `h2` crate: [`client`] keeps them, and [`io`] adapts a ring socket to it. [`heads`]
//! translates heads to HTTP/1 and back, so that requests are checked in one place, [`buffered`] serves small messages
//! whole, and [`grpc`] writes local replies for gRPC clients. The limits are in [`limits`].

pub mod buffered;
pub mod client;
pub mod grpc;
pub mod heads;
pub mod io;
pub mod limits;
mod response_trailers;
pub mod server;
pub mod stream;
mod trailer_scan;
pub mod trailers;

pub use http2::{ErrorCode, FieldBlock, FloodKind, StreamGone};
