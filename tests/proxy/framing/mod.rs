//! RFC 9112 case by case, through the built binary by raw sockets: what is one message to us is the same
//! message to the peer behind, and an ambiguous message is forwarded in neither direction.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cases;
mod peers;
mod requests;
mod responses;
