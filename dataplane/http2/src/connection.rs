//! One end of a connection: what the peer's frames mean.
//!
//! Sending is in `connection/sending.rs`. Header sections are in `connection/heads.rs`, with the requests that a server
//! receives; what only a client does is in `connection/client.rs`.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{ConnectionFault, ErrorCode, StreamFault};
use crate::field_block::{FieldBlock, MalformedFields};
use crate::frame::{self, FrameHeader, PREFACE, u31};
use crate::frame_allowances::{FloodKind, FrameAllowances};
use crate::frame_reader::{FramePart, FrameReader, PayloadPlace};
use crate::hpack::HpackDecoder;
use crate::limits::WINDOW_BYTES_DEFAULT;
use crate::output::{FieldSection, FrameOutput};
use crate::priority::ResponsePriority;
use crate::refusals::StreamAllowance;
use crate::settings::{self, PeerSettings};
use crate::stream_table::{SendingState, StreamKey, StreamTable, grow};

mod client;
mod heads;
mod sending;

/// The payload of the PING that follows the first GOAWAY of a graceful shutdown.
const SHUTDOWN_PING: [u8; 8] = *b"shutdown";
/// The last stream of the first GOAWAY: all that are on their way are served.
const ANY_STREAM: u32 = (1 << 31) - 1;

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionConfig {
    /// Concurrent streams. A client has no more, even if the server allows them.
    pub streams_max: u32,
    /// Streams in memory: those that are open, and those that have ended and are still attached.
    pub slots_max: usize,
    /// Bytes that the peer may send on one stream before they are released.
    pub stream_window: u32,
    /// The same for all streams together.
    pub connection_window: u32,
    /// The size of the fields of one head.
    pub header_list_bytes_max: u32,
    /// Bytes to send that are buffered before no more DATA is accepted.
    pub output_bytes_max: usize,
    /// A server allows extended CONNECT (RFC 8441).
    pub tunnels: bool,
}

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionRole {
    Server,
    Client,
}

/// What the peer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request of a client, or the final head of a response; [`Connection::fields`] has it. `ends`: it has no body.
    /// [`Connection::detach`] the stream when it is done.
    Head { stream: StreamKey, ends: bool },
    /// The head of an interim response, which [`Connection::fields`] has.
    Interim { stream: StreamKey },
    /// Content of a message: a range of the input. [`Connection::release`] it when it was forwarded.
    Data { stream: StreamKey, bytes: Range<usize> },
    /// A message has ended.
    Ended { stream: StreamKey },
    /// A message has ended with trailers, which [`Connection::fields`] has.
    Trailers { stream: StreamKey, malformed: Option<MalformedFields> },
    /// The stream has ended early: the peer reset it (`by_peer`), or made a mistake on it.
    Reset { stream: StreamKey, code: ErrorCode, by_peer: bool },
    /// More can be sent on this stream, or on any.
    WindowGrew { stream: Option<StreamKey> },
    /// A server takes no more streams. It did not process those with higher numbers than `last`, which are closed.
    GoAway { last: u32, code: ErrorCode },
}

/// How far a graceful shutdown is (RFC 9113 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownState {
    No,
    /// The client was told, and its streams on their way are still served.
    Announced,
    /// Later streams than this one are ignored.
    Last(u32),
}

/// HEADERS whose block is not complete.
#[derive(Debug, Clone, Copy)]
struct OpenBlock {
    stream: u32,
    ends: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    role: ConnectionRole,
    config: ConnectionConfig,
    /// Bytes of the client's preface that were received.
    preface: usize,
    reader: FrameReader,
    settings_received: bool,
    peer: PeerSettings,
    /// Of a client.
    allowance: StreamAllowance,
    decoder: HpackDecoder,
    fields: FieldBlock,
    open_block: Option<OpenBlock>,
    /// The pieces of `open_block`.
    block: Vec<u8>,
    streams: StreamTable,
    /// The highest stream that the client has opened.
    last_stream: u32,
    /// The last stream that the server serves, after its GOAWAY.
    peer_last: Option<u32>,
    /// The stream of the DATA frame that is being read, and whether it is the last one. `None` if it is ignored.
    data: Option<(StreamKey, bool)>,
    send_window: i64,
    receive_window: u32,
    /// Bytes that were released and not announced to the peer.
    unannounced: u32,
    allowances: FrameAllowances,
    shutdown: ShutdownState,
    output: FrameOutput,
}

impl Connection {
    /// The server of a connection whose preface has not been read. `now` is the time since any fixed point.
    #[must_use]
    pub fn server(config: ConnectionConfig, now: Duration) -> Self {
        Self::new(ConnectionRole::Server, config, FrameAllowances::of_client(now))
    }

    /// The client of a connection. Requests can be sent at once.
    #[must_use]
    pub fn client(config: ConnectionConfig, now: Duration) -> Self {
        Self::new(ConnectionRole::Client, config, FrameAllowances::of_server(now))
    }

    fn new(role: ConnectionRole, config: ConnectionConfig, allowances: FrameAllowances) -> Self {
        let mut connection = Self {
            role,
            preface: 0,
            reader: FrameReader::default(),
            settings_received: false,
            peer: PeerSettings::default(),
            allowance: StreamAllowance::default(),
            decoder: HpackDecoder::default(),
            fields: FieldBlock::new(config.header_list_bytes_max as usize),
            open_block: None,
            block: Vec::new(),
            streams: StreamTable::new(config.slots_max),
            last_stream: 0,
            peer_last: None,
            data: None,
            send_window: i64::from(WINDOW_BYTES_DEFAULT),
            receive_window: WINDOW_BYTES_DEFAULT,
            unannounced: 0,
            allowances,
            shutdown: ShutdownState::No,
            output: FrameOutput::default(),
            config,
        };
        connection.announce();
        connection
    }

    /// Tells the peer the limits.
    fn announce(&mut self) {
        let ConnectionConfig { streams_max, stream_window, header_list_bytes_max, tunnels, .. } = self.config;
        let first = match self.role {
            ConnectionRole::Server => (settings::MAX_CONCURRENT_STREAMS, streams_max),
            ConnectionRole::Client => (settings::ENABLE_PUSH, 0),
        };
        if self.role == ConnectionRole::Client {
            self.output.preface();
        }
        let values = [
            first,
            (settings::INITIAL_WINDOW_SIZE, stream_window),
            (settings::MAX_HEADER_LIST_SIZE, header_list_bytes_max),
            (settings::ENABLE_CONNECT_PROTOCOL, 1),
        ];
        self.output.settings(if tunnels { &values } else { &values[..3] });
        if let Some(more) = self.config.connection_window.checked_sub(self.receive_window).filter(|more| *more > 0) {
            self.receive_window += more;
            self.output.window_update(0, more);
        }
    }

    /// Reads from `input` at `at` up to the next event, and advances `at`. `None`: all of it was read. After a fault,
    /// [`Connection::fail`] tells the peer, and nothing more is read.
    pub fn receive(&mut self, input: &[u8], at: &mut usize, now: Duration) -> Result<Option<Event>, ConnectionFault> {
        self.allowances.refill(now);
        if self.role == ConnectionRole::Server && self.preface < PREFACE.len() {
            let expected = &PREFACE[self.preface..];
            let taken = expected.len().min(input.len() - *at);
            if input[*at..*at + taken] != expected[..taken] {
                return Err(ConnectionFault::Preface);
            }
            self.preface += taken;
            *at += taken;
        }
        loop {
            let event = match self.reader.next(input, at)? {
                FramePart::NeedBytes => return Ok(None),
                FramePart::Frame(header, PayloadPlace::Input(range)) => self.frame(header, &input[range])?,
                FramePart::Frame(header, PayloadPlace::Collected) => {
                    let collected = self.reader.take_collected();
                    let event = self.frame(header, collected.payload())?;
                    self.reader.put_back(collected);
                    event
                }
                FramePart::DataBegins { header, padding } => {
                    self.frame_allowed(header.kind)?;
                    self.data_begins(header, padding)?
                }
                FramePart::Content(bytes) => self.content(bytes),
                FramePart::DataEnds => self.data_ends(),
                FramePart::Unknown => {
                    self.frame_allowed(u8::MAX)?;
                    self.allowances.count(FloodKind::Ignored)?;
                    None
                }
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// The head or the trailers of the last event.
    #[must_use]
    pub fn fields(&self) -> &FieldBlock {
        &self.fields
    }

    /// The order in which the client wants its responses.
    #[must_use]
    pub fn priority(&self, stream: StreamKey) -> ResponsePriority {
        self.streams.get(stream).map(|stream| stream.priority).unwrap_or_default()
    }

    /// Streams that are not closed.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.open_count()
    }

    /// The bytes that are to be sent.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Takes what is to be sent.
    pub fn take_output(&mut self) -> Bytes {
        self.allowances.sent(self.output.len());
        self.output.take()
    }

    /// Whether a frame of this type may come now.
    fn frame_allowed(&self, kind: u8) -> Result<(), ConnectionFault> {
        if self.open_block.is_some() && kind != frame::CONTINUATION {
            return Err(ConnectionFault::ContinuationExpected);
        }
        if !self.settings_received && kind != frame::SETTINGS {
            return Err(ConnectionFault::SettingsExpected);
        }
        Ok(())
    }

    fn frame(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        self.frame_allowed(header.kind)?;
        match header.kind {
            frame::HEADERS => self.headers(header, payload),
            frame::CONTINUATION => self.continuation(header, payload),
            frame::SETTINGS => self.settings(header, payload),
            frame::WINDOW_UPDATE => self.window_update(header.stream, payload),
            frame::RST_STREAM => self.reset_received(header.stream, payload),
            frame::PING => self.ping(header, payload).map(|()| None),
            frame::GOAWAY if self.role == ConnectionRole::Client => self.goaway_received(header, payload).map(Some),
            frame::PRIORITY | frame::GOAWAY | frame::PRIORITY_UPDATE => self.ignored(header, payload).map(|()| None),
            _ => Err(ConnectionFault::PushPromise),
        }
    }

    fn settings(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        if header.stream != 0 {
            return Err(ConnectionFault::StreamId);
        }
        if header.has(frame::ACK) {
            return Ok(None);
        }
        self.settings_received = true;
        self.allowances.count(FloodKind::Settings)?;
        let before = self.peer.initial_window;
        let encoder = &mut self.output.encoder;
        self.peer.update(payload, |bytes| encoder.set_table_bytes(bytes))?;
        if self.role == ConnectionRole::Client && self.peer.pushes {
            return Err(ConnectionFault::SettingValue);
        }
        let change = i64::from(self.peer.initial_window) - i64::from(before);
        let mut fits = true;
        if change != 0 {
            self.streams.for_each_open(|stream| fits &= grow(&mut stream.send_window, change));
        }
        if !fits {
            return Err(ConnectionFault::WindowOverflow);
        }
        self.output.settings_ack();
        Ok((change > 0).then_some(Event::WindowGrew { stream: None }))
    }

    fn window_update(&mut self, stream: u32, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        let increment = first_u31(payload);
        self.allowances.count(FloodKind::WindowUpdates)?;
        if increment == 0 {
            return Err(ConnectionFault::WindowIncrement);
        }
        if stream == 0 {
            return match grow(&mut self.send_window, i64::from(increment)) {
                true => Ok(Some(Event::WindowGrew { stream: None })),
                false => Err(ConnectionFault::WindowOverflow),
            };
        }
        self.opened(stream)?;
        let Some(key) = self.streams.find(stream) else { return Ok(None) };
        let Some(state) = self.streams.get_mut(key) else { return Ok(None) };
        match grow(&mut state.send_window, i64::from(increment)) {
            true => Ok(Some(Event::WindowGrew { stream: Some(key) })),
            false => self.stream_fault(key, StreamFault::WindowOverflow).map(Some),
        }
    }

    fn reset_received(&mut self, stream: u32, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        self.opened(stream)?;
        let key = self.streams.find(stream);
        let is_late = self.role == ConnectionRole::Client && key.is_none();
        self.allowances.count(if is_late { FloodKind::Ignored } else { FloodKind::Resets })?;
        let Some(key) = key else { return Ok(None) };
        let code = ErrorCode::from_wire(first_u32(payload));
        if let Some(state) = self.streams.get_mut(key) {
            state.reset = Some(code);
        }
        self.streams.settle(key);
        if code == ErrorCode::RefusedStream {
            self.allowance.refused(self.streams.open_count());
        }
        Ok(Some(Event::Reset { stream: key, code, by_peer: true }))
    }

    fn ping(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ConnectionFault> {
        if header.stream != 0 {
            return Err(ConnectionFault::StreamId);
        }
        if !header.has(frame::ACK) {
            self.allowances.count(FloodKind::Pings)?;
            self.output.ping(frame::ACK, payload);
        } else if self.shutdown == ShutdownState::Announced && payload == SHUTDOWN_PING {
            self.shutdown = ShutdownState::Last(self.last_stream);
            self.output.goaway(self.last_stream, ErrorCode::NoError);
        } else {
            self.allowances.count(FloodKind::Ignored)?;
        }
        Ok(())
    }

    /// Frames that change nothing, except the order of responses.
    fn ignored(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ConnectionFault> {
        self.allowances.count(FloodKind::Ignored)?;
        if (header.stream == 0) == (header.kind == frame::PRIORITY) {
            return Err(ConnectionFault::StreamId);
        }
        match header.kind {
            frame::PRIORITY if first_u31(payload) == header.stream => return Err(ConnectionFault::SelfDependency),
            frame::PRIORITY_UPDATE => {
                let key = self.streams.find(first_u31(payload));
                if let Some(state) = key.and_then(|key| self.streams.get_mut(key)) {
                    state.priority = ResponsePriority::parse(payload.get(4..).unwrap_or_default());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn data_begins(&mut self, header: FrameHeader, padding: usize) -> Result<Option<Event>, ConnectionFault> {
        let ends = header.has(frame::END_STREAM);
        let (length, content) = (header.length as u32, (header.length - padding) as u32);
        self.data = None;
        self.opened(header.stream)?;
        if content == 0 && !ends {
            self.allowances.count(FloodKind::EmptyData)?;
        }
        self.receive_window = self.receive_window.checked_sub(length).ok_or(ConnectionFault::WindowExceeded)?;
        let Some(key) = self.streams.find(header.stream) else {
            self.release_connection(length);
            return self.frame_on_closed(header.stream).map(|()| None);
        };
        let Some(state) = self.streams.get_mut(key) else { return Ok(None) };
        let fault = if !state.receiving {
            Some(StreamFault::Closed)
        } else if !state.head_received {
            Some(StreamFault::HeadMissing)
        } else if length > state.receive_window {
            Some(StreamFault::WindowExceeded)
        } else {
            state.receive_window -= length;
            let left = state.length_left.map(|left| left.checked_sub(u64::from(content)));
            state.length_left = left.flatten();
            let is_wrong = matches!(left, Some(None)) || ends && state.length_left.is_some_and(|left| left > 0);
            is_wrong.then_some(StreamFault::ContentLength)
        };
        if let Some(fault) = fault {
            self.release_connection(length);
            return self.stream_fault(key, fault).map(Some);
        }
        state.unreleased += length;
        self.data = Some((key, ends));
        self.release(key, padding);
        Ok(None)
    }

    /// Content of the DATA frame that is being read. Its stream may have been reset since the frame began.
    fn content(&self, bytes: Range<usize>) -> Option<Event> {
        let (stream, _) = self.data?;
        let state = self.streams.get(stream)?;
        (state.attached && state.reset.is_none()).then_some(Event::Data { stream, bytes })
    }

    fn data_ends(&mut self) -> Option<Event> {
        let (stream, ends) = self.data.take()?;
        let state = self.streams.get_mut(stream).filter(|state| ends && state.reset.is_none())?;
        state.receiving = false;
        self.streams.settle(stream);
        Some(Event::Ended { stream })
    }

    /// DATA on a stream that is closed. It may have been on its way when this end reset the stream.
    fn frame_on_closed(&mut self, stream: u32) -> Result<(), ConnectionFault> {
        if self.is_ignored(stream) || self.streams.was_reset(stream) {
            return Ok(());
        }
        if self.role == ConnectionRole::Client {
            self.allowances.count(FloodKind::Ignored)?;
        }
        self.refuse(stream, StreamFault::Closed)
    }

    /// Whether the stream was opened: all others are idle, where only HEADERS and PRIORITY may come.
    fn opened(&self, stream: u32) -> Result<(), ConnectionFault> {
        match stream {
            0 => Err(ConnectionFault::StreamId),
            stream if stream > self.last_stream || stream.is_multiple_of(2) => Err(ConnectionFault::IdleStream),
            _ => Ok(()),
        }
    }

    /// Whether the stream came after the last one of a graceful shutdown, of this server or of the peer.
    fn is_ignored(&self, stream: u32) -> bool {
        let of_peer = self.peer_last.is_some_and(|last| stream > last);
        of_peer || matches!(self.shutdown, ShutdownState::Last(last) if stream > last)
    }

    /// Resets a stream because of the peer.
    fn stream_fault(&mut self, key: StreamKey, fault: StreamFault) -> Result<Event, ConnectionFault> {
        if let Some(state) = self.streams.get_mut(key) {
            state.reset = Some(fault.code());
        }
        self.streams.settle(key);
        self.refuse(key.id(), fault)?;
        Ok(Event::Reset { stream: key, code: fault.code(), by_peer: false })
    }

    /// Resets a stream that is not open, because of the peer.
    fn refuse(&mut self, stream: u32, fault: StreamFault) -> Result<(), ConnectionFault> {
        self.output.reset(stream, fault.code());
        self.streams.remember_reset(stream);
        Ok(self.allowances.count(FloodKind::MadeResets)?)
    }
}

fn first_u32(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn first_u31(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u31(*bytes))
}
