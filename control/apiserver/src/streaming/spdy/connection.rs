//! A SPDY connection over the bytes of an upgraded connection, or over the messages of a WebSocket (kubectl's tunnel of
//! port-forward, from 1.31 on).

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};

use bytes::BytesMut;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;

use super::super::UpgradedIo;
use super::super::limits::{CHUNK_BYTES, CLOSE_TIMEOUT};
use super::super::websocket::{self, WebSocket, broken};
use super::codec::{self, Decoder, Encoder, Frame, SpdyError};

enum SpdyTransport {
    Bytes(UpgradedIo),
    Tunnel(Box<WebSocket>),
}

pub(crate) struct SpdyConnection {
    transport: SpdyTransport,
    decoder: Decoder,
    encoder: Encoder,
    /// Frames that are not written yet.
    output: BytesMut,
    pings: u32,
}

impl SpdyConnection {
    pub(crate) fn new(io: UpgradedIo) -> Self {
        Self::over(SpdyTransport::Bytes(io))
    }

    pub(crate) async fn tunnel(io: UpgradedIo) -> Self {
        Self::over(SpdyTransport::Tunnel(Box::new(websocket::accept(io).await)))
    }

    fn over(transport: SpdyTransport) -> Self {
        let (decoder, encoder) = (Decoder::default(), Encoder::default());
        Self { transport, decoder, encoder, output: BytesMut::new(), pings: 0 }
    }

    /// The next frame; `None`: the client has closed the connection. Answers pings. Can be cancelled without loss.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<Frame>> {
        loop {
            match self.decoder.next_frame().map_err(malformed)? {
                // Those with even numbers answer our own.
                Some(Frame::Ping { id }) if id % 2 == 1 => codec::ping(&mut self.output, id),
                Some(Frame::Ping { .. }) => {}
                Some(frame) => return Ok(Some(frame)),
                None => {
                    self.flush().await?;
                    if !self.read().await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn read(&mut self) -> io::Result<bool> {
        match &mut self.transport {
            SpdyTransport::Bytes(io) => {
                let buffer = self.decoder.buffer();
                buffer.reserve(CHUNK_BYTES);
                Ok(io.read_buf(buffer).await? > 0)
            }
            SpdyTransport::Tunnel(socket) => match socket.next().await {
                Some(Ok(Message::Close(_))) | None => Ok(false),
                Some(Ok(message)) => {
                    if message.is_binary() {
                        self.decoder.push(&message.into_data());
                    }
                    Ok(true)
                }
                Some(Err(why)) => Err(broken(why)),
            },
        }
    }

    pub(crate) fn accept(&mut self, stream: u32) -> io::Result<()> {
        self.encoder.syn_reply(&mut self.output, stream).map_err(malformed)
    }

    pub(crate) fn refuse(&mut self, stream: u32) {
        codec::refuse_stream(&mut self.output, stream);
    }

    pub(crate) fn data(&mut self, stream: u32, bytes: &[u8], fin: bool) {
        codec::data(&mut self.output, stream, bytes, fin);
    }

    pub(crate) fn ping(&mut self) {
        self.pings = self.pings.wrapping_add(2);
        codec::ping(&mut self.output, self.pings);
    }

    /// Writes all frames. Can be cancelled without loss.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match &mut self.transport {
            SpdyTransport::Bytes(io) => {
                while !self.output.is_empty() {
                    if io.write_buf(&mut self.output).await? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                io.flush().await
            }
            SpdyTransport::Tunnel(socket) => {
                let output = &mut self.output;
                poll_fn(|context| {
                    if !output.is_empty() {
                        ready!(socket.poll_ready_unpin(context)).map_err(broken)?;
                        socket.start_send_unpin(Message::Binary(output.split().freeze())).map_err(broken)?;
                    }
                    Poll::Ready(ready!(socket.poll_flush_unpin(context)).map_err(broken))
                })
                .await
            }
        }
    }

    /// Writes what is left, and waits for the client to close the connection.
    pub(crate) async fn close(mut self) {
        let closing = async {
            self.flush().await?;
            if let SpdyTransport::Tunnel(socket) = &mut self.transport {
                WebSocket::close(socket, Some(websocket::normal_closure())).await.map_err(broken)?;
            }
            while self.receive().await?.is_some() {}
            Ok::<_, io::Error>(())
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await; // the client may be gone
    }
}

fn malformed(why: SpdyError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
