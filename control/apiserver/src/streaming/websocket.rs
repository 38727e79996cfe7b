//! WebSockets on upgraded connections.

use std::io;

use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Utf8Bytes};

use super::UpgradedIo;
use super::limits::WEBSOCKET_MESSAGE_BYTES_MAX;

pub(super) type WebSocket = WebSocketStream<UpgradedIo>;

pub(super) async fn accept(io: UpgradedIo) -> WebSocket {
    let config = WebSocketConfig::default()
        .max_message_size(Some(WEBSOCKET_MESSAGE_BYTES_MAX))
        .max_frame_size(Some(WEBSOCKET_MESSAGE_BYTES_MAX));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// Clients take any other end for a failure, also one without a code.
pub(super) fn normal_closure() -> CloseFrame {
    CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() }
}

pub(super) fn broken(why: Error) -> io::Error {
    match why {
        Error::Io(why) => why,
        why => io::Error::other(why),
    }
}
