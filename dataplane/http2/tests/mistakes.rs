//! The mistakes of a client, in the order of RFC 9113: the cases of h2spec and a few more.

mod support;

use sluicegate_http2::error::ErrorCode::{
    self, CompressionError, EnhanceYourCalm, FlowControlError, FrameSizeError, ProtocolError, RefusedStream,
    StreamClosed,
};
use sluicegate_http2::frame::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PADDED, PING, PREFACE, PRIORITY, PRIORITY_UPDATE, PUSH_PROMISE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, WITH_PRIORITY,
};
use sluicegate_http2::{Connection, ConnectionFault};
use std::time::Duration;
use support::{CONFIG, END, GET, POST, TestClient, WHOLE, field, frame};

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE | END, stream, GET)
}

fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, POST)
}

fn get_with(name: &str, value: &str) -> Vec<u8> {
    frame(HEADERS, WHOLE | END, 1, &[GET, &field(name, value)].concat())
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// The code that ends the connection after these frames.
fn connection_error(frames: &[Vec<u8>]) -> Option<ErrorCode> {
    let codes = [1, 7, usize::MAX].map(|piece| {
        let mut client = TestClient::open_with(CONFIG, piece);
        client.send(&frames.concat()).err().map(ConnectionFault::code)
    });
    assert!(codes.iter().all(|code| *code == codes[0]), "pieces change the outcome: {codes:?}");
    codes[0]
}

#[test]
fn mistakes_that_end_the_connection_have_their_code() {
    let whole = |frames: &[&[u8]]| frames.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>();
    let priority = |on: u32| [&on.to_be_bytes()[..], &[1]].concat();
    for (frames, code) in [
        // 4.2: sizes
        (vec![frame(PING, 0, 0, &[0; 7])], FrameSizeError),
        (vec![frame(SETTINGS, 0, 0, &[0; 5])], FrameSizeError),
        (vec![get(1), frame(RST_STREAM, 0, 1, &[0; 5])], FrameSizeError),
        (vec![frame(DATA, 0, 1, &[0; 16_385])], FrameSizeError),
        (vec![frame(HEADERS, WHOLE | PADDED, 1, &[])], FrameSizeError),
        (vec![frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[0; 4])], FrameSizeError),
        // 4.3: header blocks
        (vec![frame(HEADERS, WHOLE, 1, &[0xbe])], CompressionError),
        (vec![frame(HEADERS, WHOLE, 1, &[0x3f, 0xe2, 0x1f])], CompressionError),
        (vec![frame(HEADERS, WHOLE, 1, b"\x00\x01a\x05b")], CompressionError),
        (vec![frame(HEADERS, END, 1, &GET[..1]), frame(PRIORITY, 0, 1, &priority(3))], ProtocolError),
        (vec![frame(HEADERS, END, 1, GET), frame(HEADERS, WHOLE, 3, GET)], ProtocolError),
        (vec![frame(HEADERS, END, 1, GET), frame(CONTINUATION, WHOLE, 3, &[])], ProtocolError),
        (vec![frame(HEADERS, END, 1, GET), frame(0xbe, 0, 0, &[])], ProtocolError),
        (vec![frame(HEADERS, END, 1, GET), frame(DATA, 0, 1, &[])], ProtocolError),
        // 5.1: states
        (vec![frame(DATA, 0, 1, b"x")], ProtocolError),
        (vec![frame(RST_STREAM, 0, 1, &[0; 4])], ProtocolError),
        (vec![frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])], ProtocolError),
        (vec![frame(CONTINUATION, WHOLE, 1, &[])], ProtocolError),
        (vec![get(1), frame(RST_STREAM, 0, 1, &[0; 4]), get(1)], StreamClosed),
        (vec![get(3), get(1)], StreamClosed),
        // 5.1.1: numbers
        (vec![get(2)], ProtocolError),
        (vec![frame(HEADERS, WHOLE, 0, GET)], ProtocolError),
        // 5.3.1
        (vec![frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[&priority(1), GET].concat())], ProtocolError),
        (vec![frame(PRIORITY, 0, 1, &priority(1))], ProtocolError),
        // 6
        (vec![frame(DATA, 0, 0, b"x")], ProtocolError),
        (vec![post(1), frame(DATA, PADDED, 1, &[3, 1, 1])], ProtocolError),
        (vec![frame(HEADERS, WHOLE | PADDED, 1, &[9, 0x82])], ProtocolError),
        (vec![frame(PRIORITY, 0, 0, &priority(1))], ProtocolError),
        (vec![frame(RST_STREAM, 0, 0, &[0; 4])], ProtocolError),
        (vec![frame(SETTINGS, 1, 0, &[0; 6])], FrameSizeError),
        (vec![frame(SETTINGS, 0, 1, &[])], ProtocolError),
        (vec![frame(SETTINGS, 0, 0, &setting(2, 2))], ProtocolError),
        (vec![frame(SETTINGS, 0, 0, &setting(4, 1 << 31))], FlowControlError),
        (vec![frame(SETTINGS, 0, 0, &setting(5, 16_383))], ProtocolError),
        (vec![frame(SETTINGS, 0, 0, &setting(5, 1 << 24))], ProtocolError),
        (vec![frame(PUSH_PROMISE, WHOLE, 1, &[0; 4])], ProtocolError),
        (vec![frame(PING, 0, 1, &[0; 8])], ProtocolError),
        (vec![frame(GOAWAY, 0, 1, &[0; 8])], ProtocolError),
        (vec![frame(PRIORITY_UPDATE, 0, 1, &[0; 4])], ProtocolError),
        // 6.9: windows
        (vec![frame(WINDOW_UPDATE, 0, 0, &[0; 4])], ProtocolError),
        (vec![post(1), frame(WINDOW_UPDATE, 0, 1, &[0; 4])], ProtocolError),
        (vec![frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])], FlowControlError),
        (
            vec![
                post(1),
                frame(WINDOW_UPDATE, 0, 1, &(0x7fff_ffff_u32 - 65_535).to_be_bytes()),
                frame(SETTINGS, 0, 0, &setting(4, 65_536)),
            ],
            FlowControlError,
        ),
    ] {
        assert_eq!(connection_error(&frames), Some(code), "{frames:?}");
    }
    assert_eq!(connection_error(&whole(&[&get(1), &get(3)])), None);
}

#[test]
fn connection_begins_with_preface_and_settings() {
    for (bytes, fault) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), ConnectionFault::Preface),
        ([&PREFACE[..], &get(1)].concat(), ConnectionFault::SettingsExpected),
        ([&PREFACE[..], &frame(0xbe, 0, 0, &[])].concat(), ConnectionFault::SettingsExpected),
    ] {
        let mut server = Connection::server(CONFIG, Duration::ZERO);
        assert_eq!(server.receive(&bytes, &mut 0, Duration::ZERO), Err(fault));
        server.fail(fault);
        let output = server.take_output();
        assert_eq!(output[output.len() - 4..], [0, 0, 0, 1]); // PROTOCOL_ERROR
    }
}

#[test]
fn mistakes_that_reset_their_stream_have_their_code() {
    let length = |value: &str| frame(HEADERS, WHOLE, 1, &[POST, &field("content-length", value)].concat());
    let x = |count| vec![b'x'; count];
    for (frames, code) in [
        // 5.1: half-closed and closed
        (vec![get(1), frame(DATA, END, 1, b"x")], StreamClosed),
        (vec![get(1), frame(HEADERS, WHOLE | END, 1, &field("a", "b"))], StreamClosed),
        (vec![post(1), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), frame(DATA, 0, 1, b"x")], StreamClosed),
        // 6.9
        (vec![post(1), frame(DATA, 0, 1, &x(1001))], FlowControlError),
        (vec![post(1), frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])], FlowControlError),
        // 8.1: message format
        (vec![post(1), frame(HEADERS, WHOLE, 1, &field("a", "b"))], ProtocolError),
        (vec![length("3"), frame(DATA, END, 1, b"x")], ProtocolError),
        (vec![length("3"), frame(DATA, 0, 1, b"xxxx")], ProtocolError),
        (vec![length("3"), frame(DATA, 0, 1, b"x"), frame(HEADERS, WHOLE | END, 1, &field("a", "b"))], ProtocolError),
        // 8.2 and 8.3: fields; more in `field_block`
        (vec![get_with("X-Upper", "a")], ProtocolError),
        (vec![get_with("connection", "close")], ProtocolError),
        (vec![get_with("te", "gzip")], ProtocolError),
        (vec![get_with(":path", "/")], ProtocolError),
        (vec![get_with(":status", "200")], ProtocolError),
        (vec![get_with("a", "b\n")], ProtocolError),
        (vec![frame(HEADERS, WHOLE | END, 1, b"\x82\x86")], ProtocolError),
    ] {
        for piece in [1, usize::MAX] {
            let mut client = TestClient::open_with(CONFIG, piece);
            client.send(&frames.concat()).unwrap_or_else(|fault| panic!("{fault}: {frames:?}"));
            let resets: Vec<_> = client.sent().into_iter().filter(|sent| sent.kind == RST_STREAM).collect();
            assert_eq!(resets.len(), 1, "{frames:?}");
            assert_eq!((resets[0].stream, resets[0].code()), (1, code as u32), "{frames:?}");
            client.request(5, GET, END); // the connection goes on
        }
    }
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut client = TestClient::open();
    for n in 0..CONFIG.streams_max {
        client.request(2 * n + 1, GET, END);
    }
    assert_eq!(client.send(&get(99)), Ok(vec![]));
    assert_eq!(client.sent().last().map(|sent| (sent.stream, sent.code())), Some((99, RefusedStream as u32)));
    // Frames of the refused stream may be on their way.
    assert_eq!(client.send(&frame(DATA, END, 99, b"x")), Ok(vec![]));
    assert_eq!(client.sent(), []);
}

/// A client that cancels its requests has them in memory until the caller detached them.
#[test]
fn cancelled_streams_that_are_attached_are_bounded() {
    let mut client = TestClient::open();
    for n in 0..CONFIG.slots_max as u32 {
        client.request(2 * n + 1, GET, END);
        client.send(&frame(RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8])).unwrap();
    }
    assert_eq!((client.send(&get(99)), client.server.open_streams()), (Ok(vec![]), 0));
    assert_eq!(client.sent().last().map(|sent| (sent.stream, sent.code())), Some((99, RefusedStream as u32)));
}

#[test]
fn large_head_gets_a_431_and_later_heads_are_decoded() {
    let mut client = TestClient::open();
    let large = [&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e][..], &[b'v'; 4000]].concat();
    let block = [GET, &large].concat();
    assert_eq!(client.send(&frame(HEADERS, WHOLE, 1, &block)), Ok(vec![]));
    let sent = client.sent();
    assert!(client.decode(&sent[0]).starts_with(":status: 431\n"));
    assert_eq!((sent[0].flags & END, sent[1].kind, sent[1].code()), (END, RST_STREAM, 0));

    // An entry of the table, some times.
    let mut client = TestClient::open();
    let bomb = [GET, &[0x40, 1, b'a', 0x7f, 0xd5, 0x06], &[b'v'; 980], &[0xbe; 50]].concat();
    assert_eq!(client.send(&frame(HEADERS, WHOLE | END, 1, &bomb)), Ok(vec![]));
    let sent = client.sent();
    assert!(client.decode(&sent[0]).starts_with(":status: 431\n"));
    client.request(3, &[GET, &[0xbf]].concat(), END); // after the authority of this head
    assert_eq!(client.server.fields().values(b"a").map(<[u8]>::len).collect::<Vec<_>>(), [980]);

    // An HPACK bomb: many times.
    let mut client = TestClient::open();
    let bomb = [GET, &[0x40, 1, b'a', 0x7f, 0xd5, 0x06], &[b'v'; 980], &[0xbe; 1000]].concat();
    let code = client.send(&frame(HEADERS, WHOLE | END, 1, &bomb)).map_err(ConnectionFault::code);
    assert_eq!(code, Err(EnhanceYourCalm));
}

/// Frames that cost a client nothing: each kind is cut with ENHANCE_YOUR_CALM.
#[test]
fn floods_end_the_connection() {
    let open = frame(HEADERS, 0, 1, &[]);
    for (first, flood) in [
        (vec![], frame(PING, 0, 0, &[0; 8])),
        (vec![], frame(PING, 1, 0, &[0; 8])),
        (vec![], frame(SETTINGS, 0, 0, &[])),
        (vec![], frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        (vec![], frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1])),
        (vec![], frame(0xbe, 0, 0, &[])),
        (vec![], frame(GOAWAY, 0, 0, &[0; 8])),
        (vec![], frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        (post(1), frame(DATA, 0, 1, &[])),
        (post(1), frame(DATA, PADDED, 1, &[2, 0, 0])),
        (open.clone(), frame(CONTINUATION, 0, 1, &[])),
        (open, frame(CONTINUATION, 0, 1, &field("a", "b"))),
        (get(1), frame(RST_STREAM, 0, 1, &[0; 4])),
        (get(1), frame(DATA, 0, 1, &[])),
    ] {
        let frames = [vec![first], vec![flood.clone(); 60_000]].concat();
        let mut client = TestClient::open();
        let code = client.send(&frames.concat()).map_err(ConnectionFault::code);
        assert_eq!(code, Err(EnhanceYourCalm), "{flood:?}");
    }
}

/// Rapid reset (CVE-2023-44487) and MadeYouReset (CVE-2025-8671).
#[test]
fn streams_that_end_at_once_end_the_connection() {
    for end in [
        |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        |stream| frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]),
        |stream| frame(DATA, END, stream, b"x"),
        |stream| frame(HEADERS, WHOLE | END, stream + 2, b"\x82"),
    ] {
        let mut client = TestClient::open();
        let mut requests = 0;
        let fault = (0..10_000).find_map(|n| {
            let bytes = [get(4 * n + 1), end(4 * n + 1)].concat();
            match client.send(&bytes) {
                Ok(events) => {
                    for event in events {
                        if let sluicegate_http2::Event::Head { stream, .. } = event {
                            requests += 1;
                            client.server.detach(stream);
                        }
                    }
                    None
                }
                Err(fault) => Some(fault.code()),
            }
        });
        assert_eq!(fault, Some(EnhanceYourCalm));
        assert!(requests < 2_000, "{requests}");
    }
}
