//! The peer of a [`Connection`], frame by frame: a client of a server, or a server of a client.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

pub(crate) mod messages;

use std::time::Duration;

use sluicegate_http2::frame::{self, FrameHeader, PREFACE};
use sluicegate_http2::hpack::{HpackDecoder, RequestPseudoFields};
use sluicegate_http2::{Connection, ConnectionConfig, ConnectionFault, Event, StreamKey};

pub(crate) const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 8,
    slots_max: 16,
    stream_window: 1000,
    connection_window: 70_000,
    header_list_bytes_max: 4000,
    output_bytes_max: 64 * 1024,
    tunnels: true,
};

pub(crate) const END: u8 = frame::END_STREAM;
pub(crate) const WHOLE: u8 = frame::END_HEADERS;
/// `GET http://app/`.
pub(crate) const GET: &[u8] = b"\x82\x86\x84\x41\x03app";
/// `POST http://app/`.
pub(crate) const POST: &[u8] = b"\x83\x86\x84\x41\x03app";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { length: payload.len(), kind, flags, stream };
    [&header.encode(), payload].concat()
}

/// A literal field without indexing.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// A frame that the connection sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl SentFrame {
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == frame::GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

pub(crate) struct TestClient {
    pub(crate) server: Connection,
    pub(crate) decoder: HpackDecoder,
    /// How many bytes the server gets at a time.
    pub(crate) piece: usize,
}

impl TestClient {
    /// A connection whose preface and settings were exchanged.
    pub(crate) fn open() -> Self {
        Self::open_with(CONFIG, usize::MAX)
    }

    pub(crate) fn open_with(config: ConnectionConfig, piece: usize) -> Self {
        let server = Connection::server(config, Duration::ZERO);
        let mut client = Self { server, decoder: HpackDecoder::default(), piece };
        let opening = [&PREFACE[..], &frame(frame::SETTINGS, 0, 0, &[])].concat();
        assert_eq!(client.send(&opening), Ok(vec![]));
        let sent = client.sent();
        assert_eq!(sent[0].kind, frame::SETTINGS);
        assert!(sent.contains(&SentFrame { kind: frame::SETTINGS, flags: frame::ACK, stream: 0, payload: vec![] }));
        client
    }

    /// Sends bytes, and returns the events. Content is checked to be all `x`.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ConnectionFault> {
        receive(&mut self.server, self.piece, bytes)
    }

    /// Sends a request, and returns its stream.
    pub(crate) fn request(&mut self, stream: u32, block: &[u8], flags: u8) -> StreamKey {
        match self.send(&frame(frame::HEADERS, flags | WHOLE, stream, block)).unwrap()[..] {
            [Event::Head { stream, .. }] => stream,
            ref events => panic!("{events:?}"),
        }
    }

    /// What the server sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<SentFrame> {
        frames(&self.server.take_output())
    }

    /// The fields of a header section that the server sent, as text.
    pub(crate) fn decode(&mut self, sent: &SentFrame) -> String {
        decode(&mut self.decoder, sent)
    }
}

pub(crate) const REQUEST: RequestPseudoFields<'_> =
    RequestPseudoFields { method: b"GET", scheme: b"http", authority: b"app", path: b"/" };
pub(crate) const NO_FIELDS: [(&[u8], &[u8]); 0] = [];

/// The server of a client.
pub(crate) struct TestServer {
    pub(crate) client: Connection,
    pub(crate) decoder: HpackDecoder,
    /// How many bytes the client gets at a time.
    pub(crate) piece: usize,
}

impl TestServer {
    /// A connection whose settings were exchanged.
    pub(crate) fn open() -> Self {
        Self::open_with(usize::MAX, &[])
    }

    /// `settings`: the payload of the server's SETTINGS.
    pub(crate) fn open_with(piece: usize, settings: &[u8]) -> Self {
        let mut server = Self::unopened(piece);
        server.send(&frame(frame::SETTINGS, 0, 0, settings)).unwrap();
        assert!(server.sent().contains(&SentFrame {
            kind: frame::SETTINGS,
            flags: frame::ACK,
            stream: 0,
            payload: vec![]
        }));
        server
    }

    /// A connection that has sent its preface, and received nothing.
    pub(crate) fn unopened(piece: usize) -> Self {
        let config = ConnectionConfig { tunnels: false, ..CONFIG };
        let mut client = Connection::client(config, Duration::ZERO);
        let opening = client.take_output();
        let settings = opening.strip_prefix(PREFACE.as_slice()).unwrap();
        assert_eq!(FrameHeader::parse(settings[..frame::HEADER_BYTES].try_into().unwrap()).kind, frame::SETTINGS);
        Self { client, decoder: HpackDecoder::default(), piece }
    }

    /// The client opens a stream.
    pub(crate) fn request(&mut self, ends: bool) -> StreamKey {
        self.client.send_request(REQUEST, NO_FIELDS.into_iter(), ends).unwrap()
    }

    /// Sends bytes, and returns the events.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ConnectionFault> {
        receive(&mut self.client, self.piece, bytes)
    }

    /// What the client sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<SentFrame> {
        frames(&self.client.take_output())
    }

    /// The fields of a header section that the client sent, as text.
    pub(crate) fn decode(&mut self, sent: &SentFrame) -> String {
        decode(&mut self.decoder, sent)
    }
}

fn receive(connection: &mut Connection, piece: usize, bytes: &[u8]) -> Result<Vec<Event>, ConnectionFault> {
    let mut events = Vec::new();
    for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
        let mut at = 0;
        while let Some(event) = connection.receive(piece, &mut at, Duration::ZERO)? {
            if let Event::Data { bytes, .. } = &event {
                assert!(piece[bytes.clone()].iter().all(|byte| *byte == b'x'));
            }
            events.push(event);
        }
        assert_eq!(at, piece.len());
    }
    Ok(events)
}

fn frames(bytes: &[u8]) -> Vec<SentFrame> {
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while let Some((header, after)) = rest.split_first_chunk::<{ frame::HEADER_BYTES }>() {
        let FrameHeader { length, kind, flags, stream } = FrameHeader::parse(*header);
        frames.push(SentFrame { kind, flags, stream, payload: after[..length].to_vec() });
        rest = &after[length..];
    }
    assert!(rest.is_empty());
    frames
}

fn decode(decoder: &mut HpackDecoder, sent: &SentFrame) -> String {
    let mut text = String::new();
    let each = |name: &[u8], value: &[u8]| {
        text += &format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
    };
    decoder.decode(&sent.payload, 1 << 20, each).unwrap();
    text
}
