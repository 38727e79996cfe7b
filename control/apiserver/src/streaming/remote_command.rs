//! The client of an `exec` or `attach`, whichever protocol it speaks.

use std::collections::VecDeque;
use std::io;

use tokio::time::timeout;

use super::UpgradedIo;
use super::client_event::{ClientEvent, OutputChannel, ResizeParser};
use super::instance_streams::RequestedStdio;
use super::limits::{EARLY_EVENTS_MAX, OPEN_TIMEOUT};
use super::spdy::codec::Frame;
use super::spdy::connection::SpdyConnection;
use super::websocket;
use super::websocket_channels::WebSocketChannels;

/// A client with its channels.
pub(crate) enum RemoteCommandClient {
    Spdy(Box<SpdyChannels>),
    WebSocket(Box<WebSocketChannels>),
}

impl RemoteCommandClient {
    /// Waits for the client's streams.
    pub(crate) async fn spdy(io: UpgradedIo, stdio: RequestedStdio) -> io::Result<Self> {
        let mut channels = SpdyChannels::new(SpdyConnection::new(io), stdio);
        timeout(OPEN_TIMEOUT, channels.open()).await??;
        Ok(Self::Spdy(Box::new(channels)))
    }

    pub(crate) async fn websocket(io: UpgradedIo, stdio: RequestedStdio) -> io::Result<Self> {
        let mut channels = WebSocketChannels::new(websocket::accept(io).await, stdio);
        // Clients wait for the first message, which is empty, on the first channel that is written to.
        let first = match stdio {
            RequestedStdio { stdout: true, .. } => OutputChannel::Stdout,
            RequestedStdio { stderr: true, .. } => OutputChannel::Stderr,
            _ => OutputChannel::Error,
        };
        channels.send(first, b"").await?;
        Ok(Self::WebSocket(Box::new(channels)))
    }

    /// Can be cancelled without loss.
    pub(crate) async fn receive(&mut self) -> io::Result<ClientEvent> {
        match self {
            Self::Spdy(channels) => channels.receive().await,
            Self::WebSocket(channels) => channels.receive().await,
        }
    }

    pub(crate) async fn send(&mut self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Spdy(channels) => channels.send(channel, bytes).await,
            Self::WebSocket(channels) => channels.send(channel, bytes).await,
        }
    }

    /// Finds out whether the client is there.
    pub(crate) async fn ping(&mut self) -> io::Result<()> {
        match self {
            Self::Spdy(channels) => {
                channels.connection.ping();
                channels.connection.flush().await
            }
            Self::WebSocket(channels) => channels.ping().await,
        }
    }

    /// Sends the status and closes the connection.
    pub(crate) async fn finish(mut self, status: &serde_json::Value) {
        if self.send(OutputChannel::Error, status.to_string().as_bytes()).await.is_err() {
            return;
        }
        match self {
            Self::Spdy(channels) => channels.close().await,
            Self::WebSocket(channels) => channels.close().await,
        }
    }
}

/// The streams of a SPDY client, by what they are for; `Some` once they are open.
pub(crate) struct SpdyChannels {
    connection: SpdyConnection,
    channels: Vec<SpdyChannel>,
    resize: ResizeParser,
    /// Input that came before all streams were open, and further events of one frame.
    pending: VecDeque<ClientEvent>,
}

#[derive(Debug)]
struct SpdyChannel {
    kind: &'static str,
    stream: Option<u32>,
}

const ERROR: &str = "error";
const STDIN: &str = "stdin";
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";
const RESIZE: &str = "resize";
const STREAM_TYPE: &str = "streamtype";

impl SpdyChannels {
    fn new(connection: SpdyConnection, stdio: RequestedStdio) -> Self {
        let wanted =
            [(ERROR, true), (STDIN, stdio.stdin), (STDOUT, stdio.stdout), (STDERR, stdio.stderr), (RESIZE, stdio.tty)];
        let channels = wanted.into_iter().filter(|(_, is_wanted)| *is_wanted);
        Self {
            connection,
            channels: channels.map(|(kind, _)| SpdyChannel { kind, stream: None }).collect(),
            resize: ResizeParser::default(),
            pending: VecDeque::new(),
        }
    }

    async fn open(&mut self) -> io::Result<()> {
        while self.channels.iter().any(|channel| channel.stream.is_none()) {
            match self.connection.receive().await? {
                Some(frame) => self.handle(frame)?,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            if self.pending.len() > EARLY_EVENTS_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "input before the streams are open"));
            }
        }
        self.connection.flush().await
    }

    async fn receive(&mut self) -> io::Result<ClientEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            match self.connection.receive().await? {
                Some(frame) => self.handle(frame)?,
                None => return Ok(ClientEvent::Left),
            }
        }
    }

    fn handle(&mut self, frame: Frame) -> io::Result<()> {
        match frame {
            Frame::SynStream { stream, fin, headers } => {
                let kind = headers.iter().find(|(name, _)| name == STREAM_TYPE).map_or("", |(_, value)| value);
                let mut open = self.channels.iter_mut().filter(|channel| channel.stream.is_none());
                match open.find(|channel| channel.kind == kind) {
                    Some(channel) => {
                        channel.stream = Some(stream);
                        self.connection.accept(stream)?;
                        self.pending.extend((fin && kind == STDIN).then_some(ClientEvent::StdinClosed));
                    }
                    None => self.connection.refuse(stream),
                }
            }
            Frame::Data { stream, fin, bytes } => match self.kind(stream) {
                Some(STDIN) => {
                    self.pending.extend((!bytes.is_empty()).then_some(ClientEvent::Stdin(bytes)));
                    self.pending.extend(fin.then_some(ClientEvent::StdinClosed));
                }
                Some(RESIZE) => self.pending.extend(self.resize.push(&bytes)?.map(ClientEvent::Resize)),
                _ => {}
            },
            Frame::Headers { stream, fin: true } | Frame::Reset { stream } => match self.kind(stream) {
                Some(STDIN) => self.pending.push_back(ClientEvent::StdinClosed),
                Some(RESIZE) | None => {}
                Some(_) => self.pending.push_back(ClientEvent::Left),
            },
            Frame::GoAway => self.pending.push_back(ClientEvent::Left),
            Frame::Headers { .. } | Frame::Ping { .. } => {}
        }
        Ok(())
    }

    fn kind(&self, stream: u32) -> Option<&'static str> {
        self.channels.iter().find(|channel| channel.stream == Some(stream)).map(|channel| channel.kind)
    }

    fn stream(&self, kind: &str) -> Option<u32> {
        self.channels.iter().find(|channel| channel.kind == kind)?.stream
    }

    async fn send(&mut self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        let kind = match channel {
            OutputChannel::Stdout => STDOUT,
            OutputChannel::Stderr => STDERR,
            OutputChannel::Error => ERROR,
        };
        if let Some(stream) = self.stream(kind) {
            self.connection.data(stream, bytes, false);
        }
        self.connection.flush().await
    }

    async fn close(mut self) {
        for kind in [STDOUT, STDERR, RESIZE, STDIN, ERROR] {
            if let Some(stream) = self.stream(kind) {
                self.connection.data(stream, b"", true);
            }
        }
        self.connection.close().await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::io::AsyncWriteExt as _;

    use super::super::spdy::codec::{self, Encoder};
    use super::super::test_connection::upgraded_pair;
    use super::*;

    #[tokio::test]
    async fn input_before_all_streams_are_open_is_bounded() {
        let (io, mut peer) = upgraded_pair(64 * 1024).await;
        let mut bytes = BytesMut::new();
        Encoder::default().syn_stream(&mut bytes, 1, &[(STREAM_TYPE, STDIN)]).unwrap();
        for _ in 0..=EARLY_EVENTS_MAX {
            codec::data(&mut bytes, 1, b"x", false);
        }
        peer.write_all(&bytes).await.unwrap();
        let stdio = RequestedStdio { stdin: true, stdout: true, ..RequestedStdio::default() };
        let refused = RemoteCommandClient::spdy(io, stdio).await.err().unwrap();
        assert!(refused.to_string().contains("before the streams are open"), "{refused}");
    }
}
