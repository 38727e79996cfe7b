//! HTTP/2 on the ring: the `h2` crate speaks it, these rooms feed it, bound it and translate it.
//!
//! [`io`] is a socket of the ring as h2 wants one, [`flood_guard`] counts the frames that cost a peer
//! nothing, [`heads`] turns heads into HTTP/1's and back, so that every rule about a request is judged
//! in one place, [`client`] keeps connections to instances, [`server`] those of clients, [`buffered`] serves small
//! messages whole, [`grpc`] is what gRPC's clients are told by us. Numbers are in [`limits`].

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
