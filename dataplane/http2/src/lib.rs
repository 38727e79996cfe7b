//! HTTP/2 (RFC 9113), as server and as client, without I/O and without a clock.
//!
//! [`Connection`] is one end of the protocol: [`receive`](Connection::receive) takes the bytes of the peer and returns one
//! [`Event`] at a time, and what has to be sent collects in one buffer that
//! [`take_output`](Connection::take_output) hands out, so that the frames of many streams leave in one send. The
//! caller owns the socket, the clock and the bodies.
//!
//! [`frame`] and [`frame_reader`] know frames, [`hpack`] header compression (RFC 7541), [`field_block`] the rules of a
//! header section, [`settings`] and [`priority`] what their names say, [`stream_table`] the streams and their windows,
//! [`frame_allowances`] how many frames of a kind a peer may send. Each mistake of a peer is a value of [`error`]
//! with its error code. The limits are in [`limits`] and [`ConnectionConfig`].
#![forbid(unsafe_code)]

pub mod connection;
pub mod error;
pub mod field_block;
pub mod frame;
pub mod frame_allowances;
pub mod frame_reader;
pub mod hpack;
pub mod limits;
mod output;
pub mod priority;
mod refusals;
pub mod settings;
pub mod stream_table;

pub use connection::{Connection, ConnectionConfig, Event};
pub use error::{ConnectionFault, ErrorCode, StreamFault, StreamGone};
pub use field_block::FieldBlock;
pub use frame_allowances::FloodKind;
pub use stream_table::StreamKey;
