//! SPDY/3.1, the part that a server of `exec` and `port-forward` needs: a codec without I/O, and a connection over it.
//!
//! Clients of Kubernetes (moby/spdystream) send no WINDOW_UPDATE and expect none, so there is no flow control but TCP's: unread
//! data stays in the socket.

pub mod codec;
pub(crate) mod connection;
mod error;
mod header_block;

/// A control frame's payload. Clients send three short headers.
pub const CONTROL_BYTES_MAX: usize = 32 * 1024;
/// A header block after decompression; its compressed form says nothing about its size.
pub const HEADER_BLOCK_BYTES_MAX: usize = 16 * 1024;
/// Headers in a block.
pub const HEADERS_MAX: usize = 32;
/// Streams that a client may have open: two for each forwarded connection.
pub(crate) const STREAMS_MAX: usize = 256;
