//! The remote command protocol over a WebSocket: the first byte of each message is its channel.

use std::io;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};

use super::client_event::{ClientEvent, OutputChannel, ResizeParser};
use super::instance_streams::RequestedStdio;
use super::limits::CLOSE_TIMEOUT;
use super::websocket::{WebSocket, broken, normal_closure};

const STDIN: u8 = 0;
const RESIZE: u8 = 4;
/// From `v5.channel.k8s.io` on: the client closes the channel that the next byte names.
const CLOSE: u8 = 255;

/// The channels of one client.
pub(crate) struct WebSocketChannels {
    socket: WebSocket,
    resize: ResizeParser,
    stdio: RequestedStdio,
}

impl WebSocketChannels {
    pub(super) fn new(socket: WebSocket, stdio: RequestedStdio) -> Self {
        Self { socket, resize: ResizeParser::default(), stdio }
    }

    /// Can be cancelled without loss.
    pub(super) async fn receive(&mut self) -> io::Result<ClientEvent> {
        loop {
            let message = match self.socket.next().await {
                Some(Ok(Message::Close(_))) | None => return Ok(ClientEvent::Left),
                Some(Ok(message)) if message.is_binary() || message.is_text() => message.into_data(),
                Some(Ok(_)) => continue, // pings are answered by the library
                Some(Err(why)) => return Err(broken(why)),
            };
            match message.first() {
                Some(&STDIN) if message.len() > 1 => return Ok(ClientEvent::Stdin(message.slice(1..))),
                Some(&RESIZE) => {
                    if let Some(size) = self.resize.push(&message[1..])? {
                        return Ok(ClientEvent::Resize(size));
                    }
                }
                Some(&CLOSE) if message.get(1) == Some(&STDIN) => return Ok(ClientEvent::StdinClosed),
                _ => {}
            }
        }
    }

    pub(super) async fn send(&mut self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        let is_wanted = match channel {
            OutputChannel::Stdout => self.stdio.stdout,
            OutputChannel::Stderr => self.stdio.stderr,
            OutputChannel::Error => true,
        };
        if !is_wanted {
            return Ok(());
        }
        let mut message = Vec::with_capacity(1 + bytes.len());
        message.push(match channel {
            OutputChannel::Stdout => 1,
            OutputChannel::Stderr => 2,
            OutputChannel::Error => 3,
        });
        message.extend_from_slice(bytes);
        self.socket.send(Message::Binary(message.into())).await.map_err(broken)
    }

    pub(super) async fn ping(&mut self) -> io::Result<()> {
        self.socket.send(Message::Ping(Bytes::new())).await.map_err(broken)
    }

    pub(super) async fn close(mut self) {
        let closing = async {
            self.socket.close(Some(normal_closure())).await?;
            while self.socket.next().await.transpose()?.is_some() {}
            Ok::<_, Error>(())
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await; // the client may be gone
    }
}
