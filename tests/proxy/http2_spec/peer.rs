//! A client that sends exactly the bytes of a case, and reads until the server's reaction is clear.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use kit::TIMEOUT;
use kit::http2::{frame, get_block, opening};

pub(crate) const HOST: &str = "app.example.com";

pub(crate) const DATA: u8 = 0x0;
pub(crate) const HEADERS: u8 = 0x1;
pub(crate) const PRIORITY: u8 = 0x2;
pub(crate) const RST_STREAM: u8 = 0x3;
pub(crate) const SETTINGS: u8 = 0x4;
pub(crate) const PUSH_PROMISE: u8 = 0x5;
pub(crate) const PING: u8 = 0x6;
pub(crate) const GOAWAY: u8 = 0x7;
pub(crate) const WINDOW_UPDATE: u8 = 0x8;
pub(crate) const CONTINUATION: u8 = 0x9;

pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;
/// A whole request without a body.
pub(crate) const WHOLE: u8 = END_STREAM | END_HEADERS;

pub(crate) const PROTOCOL_ERROR: u32 = 0x1;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 0x3;
pub(crate) const STREAM_CLOSED: u32 = 0x5;
pub(crate) const FRAME_SIZE_ERROR: u32 = 0x6;
pub(crate) const REFUSED_STREAM: u32 = 0x7;
pub(crate) const COMPRESSION_ERROR: u32 = 0x9;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 0xb;

/// What the server has to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expect {
    /// End the connection with one of these codes.
    Connection(&'static [u32]),
    /// Reset stream 1 (or the one that is named), or end the connection, with one of these codes.
    Stream(u32, &'static [u32]),
    /// Reset some stream, or end the connection, with one of these codes.
    AnyStream(&'static [u32]),
    /// A request whose body or trailers are wrong, which an instance has seen the head of: reset, answered with an
    /// error, or the connection's end.
    BrokenBody,
    /// An invalid request: reset with PROTOCOL_ERROR, or answered 400; no instance sees it.
    Malformed,
    /// Answer stream 1 with 200.
    Answer,
    /// Answer a PING that is sent behind the frames: they are taken, or ignored.
    Pong,
    /// Acknowledge our SETTINGS twice: those of the opening, and those of the case.
    SettingsAcked,
    /// The first DATA frames on stream 1 have these lengths.
    Data(&'static [usize]),
    /// Not HTTP/2: an answer of HTTP/1, or just the end.
    NotHttp2,
}

#[derive(Debug, Clone)]
pub(crate) struct Http2Case {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    /// Behind the opening.
    pub(crate) bytes: Vec<u8>,
    pub(crate) expect: Expect,
}

pub(crate) fn case(section: &'static str, name: &'static str, frames: &[Vec<u8>], expect: Expect) -> Http2Case {
    Http2Case { section, name, bytes: frames.concat(), expect }
}

/// HEADERS of `GET /` on a stream.
pub(crate) fn get(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags, stream, &get_block(HOST, "/"))
}

/// The head of a request with a body that is sent back.
pub(crate) fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &post_block())
}

pub(crate) fn post_block() -> Vec<u8> {
    let mut block = get_block(HOST, "/mirror");
    block[0] = 0x83; // :method POST
    block
}

/// A field without compression, never indexed.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0x10, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

/// HEADERS of a whole request: `GET /` with `further` fields behind.
pub(crate) fn get_with(further: &[Vec<u8>]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &[get_block(HOST, "/"), further.concat()].concat())
}

pub(crate) fn setting(identifier: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[identifier.to_be_bytes().as_slice(), &value.to_be_bytes()].concat())
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub(crate) const PONG: &[u8; 8] = b"h2 table";

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn number(&self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }
}

/// Says it, and judges what comes back.
pub(crate) fn play(to: SocketAddr, case: &Http2Case) -> Result<(), String> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut said = match case.expect {
        Expect::NotHttp2 => Vec::new(),
        _ => opening(),
    };
    said.extend_from_slice(&case.bytes);
    if matches!(case.expect, Expect::Pong) {
        said.extend_from_slice(&frame(PING, 0, 0, PONG));
    }
    // The server may close before it has read all: what it said still counts.
    let _ = stream.write_all(&said);
    if let Expect::NotHttp2 = case.expect {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text); // a reset is an end too
        let fits = text.is_empty() || text.starts_with(b"HTTP/1.1 400") || text.starts_with(b"HTTP/1.1 505");
        return if fits { Ok(()) } else { Err(String::from_utf8_lossy(&text).into_owned()) };
    }
    let mut judge = Judge { expect: case.expect, seen: Vec::new(), acks: 0, data: Vec::new() };
    loop {
        match read_frame(&mut stream) {
            Ok(Some(frame)) => {
                if let Some(verdict) = judge.hear(&frame) {
                    return verdict.map_err(|why| format!("{why} after {:?}", judge.seen));
                }
                judge.seen.push((frame.kind, frame.stream));
            }
            Ok(None) => return Err(format!("the connection ended after {:?}", judge.seen)),
            Err(ErrorKind::WouldBlock) => {
                return Err(format!("silence after {:?}", judge.seen));
            }
            Err(why) => return Err(format!("{why} after {:?}", judge.seen)),
        }
    }
}

struct Judge {
    expect: Expect,
    /// Kinds and streams of frames that decided nothing.
    seen: Vec<(u8, u32)>,
    acks: usize,
    data: Vec<usize>,
}

impl Judge {
    /// `None`: go on reading.
    fn hear(&mut self, frame: &Frame) -> Option<Result<(), String>> {
        let one_of = |codes: &[u32], code: u32, what: &str| match codes.contains(&code) {
            true => Ok(()),
            false => Err(format!("{what} with code {code}, not {codes:?}")),
        };
        match (frame.kind, self.expect) {
            (GOAWAY, Expect::Connection(codes) | Expect::Stream(_, codes) | Expect::AnyStream(codes)) => {
                Some(one_of(codes, frame.number(4)?, "GOAWAY"))
            }
            (GOAWAY, Expect::Malformed | Expect::BrokenBody) => {
                Some(one_of(&[PROTOCOL_ERROR], frame.number(4)?, "GOAWAY"))
            }
            (GOAWAY, _) => Some(Err(format!("GOAWAY with code {:?}", frame.number(4)))),
            (RST_STREAM, Expect::Stream(stream, codes)) if frame.stream == stream => {
                Some(one_of(codes, frame.number(0)?, "RST_STREAM"))
            }
            (RST_STREAM, Expect::AnyStream(codes)) => Some(one_of(codes, frame.number(0)?, "RST_STREAM")),
            (RST_STREAM, Expect::Malformed | Expect::BrokenBody) => {
                Some(one_of(&[PROTOCOL_ERROR], frame.number(0)?, "RST_STREAM"))
            }
            (RST_STREAM, Expect::Answer | Expect::Data(_)) => {
                Some(Err(format!("RST_STREAM with code {:?}", frame.number(0))))
            }
            (HEADERS, Expect::Answer) if frame.stream == 1 => Some(is_status(frame, 0x88)),
            (HEADERS, Expect::Malformed) => Some(is_status(frame, 0x8c)),
            // An answer that had begun is cut by a reset behind it.
            (HEADERS, Expect::BrokenBody) => (!has_status(frame, 0x88)).then(|| is_status(frame, 0x8c)),
            (PING, Expect::Pong) if frame.flags & ACK != 0 => {
                let own = frame.payload == PONG;
                Some(if own { Ok(()) } else { Err("a PING came back changed".to_owned()) })
            }
            (SETTINGS, Expect::SettingsAcked) if frame.flags & ACK != 0 => {
                self.acks += 1;
                (self.acks == 2).then_some(Ok(()))
            }
            (DATA, Expect::Data(lengths)) if frame.stream == 1 => {
                self.data.push(frame.payload.len());
                let declared =
                    (lengths.get(..self.data.len()) == Some(&self.data[..]), self.data.len() == lengths.len());
                match declared {
                    (false, _) => Some(Err(format!("DATA of {:?} bytes", self.data))),
                    (true, true) => Some(Ok(())),
                    (true, false) => None,
                }
            }
            _ => None,
        }
    }
}

/// The status, which stands first in a block, by its index in the static table.
fn is_status(frame: &Frame, indexed: u8) -> Result<(), String> {
    if has_status(frame, indexed) { Ok(()) } else { Err(format!("an answer of {:02x?}", frame.payload)) }
}

fn has_status(frame: &Frame, indexed: u8) -> bool {
    // Behind a change of the table's size, if there is one.
    frame.payload.iter().find(|byte| **byte & 0xe0 != 0x20) == Some(&indexed)
}

fn read_frame(stream: &mut TcpStream) -> Result<Option<Frame>, ErrorKind> {
    let mut head = [0; 9];
    if let Err(why) = stream.read_exact(&mut head) {
        return match why.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Ok(None),
            kind => Err(kind),
        };
    }
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).map_err(|why| why.kind())?;
    let stream_id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    Ok(Some(Frame { kind: head[3], flags: head[4], stream: stream_id, payload }))
}
