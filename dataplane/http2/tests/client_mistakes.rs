//! The mistakes of a server, in the order of RFC 9113: the cases of h2spec from the other side, and a few more.

mod support;

use std::time::Duration;

use sluicegate_http2::error::ErrorCode::{
    self, CompressionError, EnhanceYourCalm, FlowControlError, FrameSizeError, ProtocolError, StreamClosed,
};
use sluicegate_http2::frame::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    WITH_PRIORITY,
};
use sluicegate_http2::limits::{self, RateAllowance};
use sluicegate_http2::{ConnectionFault, Event};
use support::{END, TestServer, WHOLE, field, frame};

/// `:status: 200`.
const OK: &[u8] = b"\x88";

fn ok() -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, OK)
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// The code that ends a connection with a request on stream 1 after these frames.
fn connection_error(frames: &[Vec<u8>]) -> Option<ErrorCode> {
    let codes = [1, 7, usize::MAX].map(|piece| {
        let mut server = TestServer::open_with(piece, &[]);
        server.request(true);
        server.send(&frames.concat()).err().map(ConnectionFault::code)
    });
    assert!(codes.iter().all(|code| *code == codes[0]), "pieces change the outcome: {codes:?}");
    codes[0]
}

#[test]
fn mistakes_that_end_the_connection_have_their_code() {
    let priority = |on: u32| [&on.to_be_bytes()[..], &[1]].concat();
    for (frames, code) in [
        // 4.2: sizes
        (vec![frame(PING, 0, 0, &[0; 7])], FrameSizeError),
        (vec![frame(SETTINGS, 0, 0, &[0; 5])], FrameSizeError),
        (vec![frame(GOAWAY, 0, 0, &[0; 7])], FrameSizeError),
        (vec![ok(), frame(DATA, 0, 1, &[0; 16_385])], FrameSizeError),
        (vec![frame(HEADERS, WHOLE | PADDED, 1, &[])], FrameSizeError),
        // 4.3: header blocks
        (vec![frame(HEADERS, WHOLE, 1, &[0xbe])], CompressionError),
        (vec![frame(HEADERS, WHOLE, 1, &[0x3f, 0xe2, 0x1f])], CompressionError),
        (vec![frame(HEADERS, 0, 1, OK), frame(DATA, 0, 1, b"x")], ProtocolError),
        (vec![frame(HEADERS, 0, 1, OK), frame(CONTINUATION, WHOLE, 3, &[])], ProtocolError),
        (vec![frame(HEADERS, 0, 1, OK), frame(0xbe, 0, 0, &[])], ProtocolError),
        (vec![frame(CONTINUATION, WHOLE, 1, OK)], ProtocolError),
        // 5.1: states. The client has opened stream 1 only.
        (vec![frame(HEADERS, WHOLE, 3, OK)], ProtocolError),
        (vec![frame(DATA, 0, 3, b"x")], ProtocolError),
        (vec![frame(RST_STREAM, 0, 3, &[0; 4])], ProtocolError),
        (vec![frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1])], ProtocolError),
        (vec![frame(HEADERS, WHOLE | END, 1, OK), frame(HEADERS, WHOLE | END, 1, OK)], StreamClosed),
        // 5.1.1: numbers
        (vec![frame(HEADERS, WHOLE, 2, OK)], ProtocolError),
        (vec![frame(HEADERS, WHOLE, 0, OK)], ProtocolError),
        (vec![frame(DATA, 0, 2, b"x")], ProtocolError),
        (vec![frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[&priority(1), OK].concat())], ProtocolError),
        // 6
        (vec![frame(DATA, 0, 0, b"x")], ProtocolError),
        (vec![ok(), frame(DATA, PADDED, 1, &[3, 1, 1])], ProtocolError),
        (vec![frame(PRIORITY, 0, 0, &priority(1))], ProtocolError),
        (vec![frame(SETTINGS, 0, 1, &[])], ProtocolError),
        (vec![frame(PING, 0, 1, &[0; 8])], ProtocolError),
        (vec![frame(GOAWAY, 0, 1, &[0; 8])], ProtocolError),
        (vec![frame(SETTINGS, 0, 0, &setting(2, 1))], ProtocolError),
        (vec![frame(SETTINGS, 0, 0, &setting(2, 2))], ProtocolError),
        (vec![frame(SETTINGS, 0, 0, &setting(4, 1 << 31))], FlowControlError),
        (vec![frame(SETTINGS, 0, 0, &setting(5, 16_383))], ProtocolError),
        (vec![frame(WINDOW_UPDATE, 0, 0, &[0; 4])], ProtocolError),
        (vec![frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])], FlowControlError),
        // 8.4: the client has not allowed it
        (vec![frame(PUSH_PROMISE, WHOLE, 1, &[&[0, 0, 0, 2], OK].concat())], ProtocolError),
    ] {
        assert_eq!(connection_error(&frames), Some(code), "{frames:02x?}");
    }
}

#[test]
fn first_frame_of_a_server_is_settings() {
    for first in [frame(PING, 0, 0, &[0; 8]), frame(0xbe, 0, 0, &[]), frame(GOAWAY, 0, 0, &[0; 8])] {
        let fault = TestServer::unopened(usize::MAX).send(&first).unwrap_err();
        assert_eq!(fault, ConnectionFault::SettingsExpected, "{first:02x?}");
    }
    // A server that speaks HTTP/1.
    let text = TestServer::unopened(usize::MAX).send(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
    assert_eq!(text.code(), FrameSizeError);
}

#[test]
fn mistakes_that_end_one_stream_have_their_code() {
    let head = |block: &[u8], flags: u8| frame(HEADERS, WHOLE | flags, 1, block);
    let with = |name: &str, value: &str| head(&[OK, &field(name, value)].concat(), 0);
    let sized = |length: &str| head(&[OK, &field("content-length", length)].concat(), 0);
    for (frames, code) in [
        // 8.1 and 8.3.2: heads
        (vec![head(&[], 0)], ProtocolError),
        (vec![head(&field("a", "b"), 0)], ProtocolError),
        (vec![head(&field(":status", "abc"), 0)], ProtocolError),
        (vec![head(&field(":status", "20"), 0)], ProtocolError),
        (vec![head(&[OK, OK].concat(), 0)], ProtocolError),
        (vec![with(":path", "/")], ProtocolError),
        (vec![head(&[&field("a", "b"), OK].concat(), 0)], ProtocolError),
        (vec![with("connection", "close")], ProtocolError),
        (vec![with("transfer-encoding", "chunked")], ProtocolError),
        (vec![with("A", "b")], ProtocolError),
        (vec![with("a", "b\r\nc: d")], ProtocolError),
        (vec![head(&field(":status", "100"), END)], ProtocolError),
        (vec![head(&[OK, &field("a", &"v".repeat(100)).repeat(40)].concat(), 0)], ProtocolError),
        // 8.1: content
        (vec![frame(DATA, 0, 1, b"x")], ProtocolError),
        (vec![head(&field(":status", "100"), 0), frame(DATA, 0, 1, b"x")], ProtocolError),
        (vec![sized("2"), frame(DATA, END, 1, b"x")], ProtocolError),
        (vec![sized("0"), frame(DATA, 0, 1, b"x")], ProtocolError),
        (vec![head(&[OK, &field("content-length", "1")].concat(), END)], ProtocolError),
        (vec![sized("2"), frame(DATA, 0, 1, b"x"), head(&field("a", "b"), END)], ProtocolError),
        (vec![ok(), head(&field("a", "b"), 0)], ProtocolError),
        // 6.9
        (vec![ok(), frame(DATA, 0, 1, &[b'x'; 1001])], FlowControlError),
    ] {
        let mut server = TestServer::open();
        let stream = server.request(true);
        let events = server.send(&frames.concat()).unwrap();
        let failed = Event::Reset { stream, code, by_peer: false };
        assert_eq!(events.last(), Some(&failed), "{frames:02x?}");
        let sent = server.sent();
        let reset = sent.iter().find(|sent| sent.kind == RST_STREAM).unwrap();
        assert_eq!((reset.stream, reset.code()), (1, code as u32), "{frames:02x?}");
        assert_eq!(server.client.open_streams(), 0);
        // Other streams go on.
        let next = server.request(true);
        let events = server.send(&frame(HEADERS, WHOLE | END, 3, OK)).unwrap();
        assert_eq!(events, [Event::Head { stream: next, ends: true }]);
    }
}

#[test]
fn window_of_a_stream_cannot_overflow() {
    let mut server = TestServer::open();
    let stream = server.request(false);
    let events = server.send(&frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])).unwrap();
    assert_eq!(events, [Event::Reset { stream, code: FlowControlError, by_peer: false }]);
}

#[test]
fn content_after_the_end_is_refused() {
    let mut server = TestServer::open();
    let stream = server.request(true);
    server.send(&frame(HEADERS, WHOLE | END, 1, OK)).unwrap();
    server.sent();
    assert_eq!(server.send(&frame(DATA, 0, 1, b"x")), Ok(vec![]));
    let sent = server.sent();
    assert_eq!((sent[0].kind, sent[0].code()), (RST_STREAM, StreamClosed as u32));
    server.client.detach(stream);
}

/// Frames that cost the server nothing.
#[test]
fn floods_end_the_connection() {
    let empty_heads = [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 1, &[]).repeat(300)].concat();
    let burst = |allowance: RateAllowance| allowance.burst as usize + 1;
    for (name, start, flood, count) in [
        ("pings", vec![], frame(PING, 0, 0, &[0; 8]), burst(limits::PINGS)),
        ("settings", vec![], frame(SETTINGS, 0, 0, &[]), burst(limits::SETTINGS)),
        ("empty data", ok(), frame(DATA, 0, 1, &[]), burst(limits::SERVER_EMPTY_DATA)),
        ("continuations", vec![], empty_heads, 1),
        ("unknown", vec![], frame(0xbe, 0, 0, &[]), burst(limits::IGNORED)),
        ("goaway", vec![], frame(GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]), burst(limits::IGNORED)),
        ("window updates", vec![], frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), burst(limits::WINDOW_UPDATES)),
        ("late resets", frame(RST_STREAM, 0, 1, &[0; 4]), frame(RST_STREAM, 0, 1, &[0; 4]), burst(limits::IGNORED)),
        ("late data", frame(RST_STREAM, 0, 1, &[0; 4]), frame(DATA, 0, 1, &[]), burst(limits::SERVER_EMPTY_DATA)),
    ] {
        let mut server = TestServer::open();
        server.request(false);
        server.send(&start).unwrap();
        let ended = (0..2 * count).find_map(|_| {
            let fault = server.send(&flood).err();
            server.sent();
            fault
        });
        assert_eq!(ended.map(ConnectionFault::code), Some(EnhanceYourCalm), "{name}");
    }
}

/// The requests of many clients share the connection: instances may reset all, or answer all with mistakes.
#[test]
fn failed_responses_never_end_the_connection() {
    let mut server = TestServer::open();
    for number in 0..5_000_u32 {
        let stream = server.request(true);
        let id = 2 * number + 1;
        let answer = match number % 3 {
            0 => frame(RST_STREAM, 0, id, &[0, 0, 0, 7]),
            1 => frame(HEADERS, WHOLE, id, &field("a", "b")),
            _ => frame(HEADERS, WHOLE, id, &field(":status", "x")),
        };
        let events = server.send(&answer).unwrap();
        assert!(matches!(events[..], [Event::Reset { stream: ended, .. }] if ended == stream), "{events:?}");
        server.client.detach(stream);
        server.sent();
    }
}

#[test]
fn allowances_grow_with_time() {
    let mut server = TestServer::open();
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(limits::PINGS.burst as usize);
    server.send(&pings).unwrap();
    let mut at = 0;
    let second = server.client.receive(&pings, &mut at, Duration::from_secs(60));
    assert_eq!(second, Ok(None));
}
