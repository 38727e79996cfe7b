//! HTTP/2 on the ring: the `h2` crate implements the protocol, and these modules connect, bound and translate it.
//!
//! [`io`] adapts a ring socket to h2, [`flood_guard`] counts frames that cost a peer nothing, [`heads`] translates
//! heads to HTTP/1 and back, so that requests are checked in one place, [`client`] keeps connections to instances,
//! [`server`] those of clients, [`buffered`] serves small messages whole, and [`grpc`] writes local replies for gRPC
//! clients. The limits are in [`limits`].

pub mod buffered;
pub mod client;
pub mod flood_guard;
pub mod grpc;
pub mod heads;
pub mod io;
pub mod limits;
mod response_trailers;
pub mod server;
mod trailer_scan;
pub mod trailers;
