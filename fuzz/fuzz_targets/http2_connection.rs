//! A whole HTTP/2 connection through the codec: requests are encoded from the input, and the responses of the codec are
//! decoded again. Valid exchanges are never a fault, and flow control is never exceeded.
#![no_main]

use std::time::Duration;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_http2::frame::{self, FrameHeader, PREFACE};
use sluicegate_http2::hpack::{HpackDecoder, HpackEncoder};
use sluicegate_http2::{Connection, ConnectionConfig, Event, StreamKey};

const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 200,
    slots_max: 400,
    stream_window: 1000,
    connection_window: 70_000,
    header_list_bytes_max: 20_000,
    output_bytes_max: 4096,
    tunnels: false,
};

fuzz_target!(|input: &[u8]| {
    let mut connection = Connection::server(CONFIG, Duration::ZERO);
    let (mut encoder, mut decoder) = (HpackEncoder::default(), HpackDecoder::default());
    receive(&mut connection, PREFACE);
    receive(&mut connection, &put(frame::SETTINGS, 0, 0, &[]));
    check_output(&mut connection, &mut decoder);
    for (number, script) in (0_u32..).zip(input.chunks(16)).take(100) {
        let stream = 2 * number + 1;
        let body = vec![b'x'; script.iter().map(|byte| usize::from(*byte)).sum::<usize>().min(1000)];
        let mut block = BytesMut::new();
        encoder.begin(&mut block);
        for (name, value) in [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "app")] {
            encoder.field(name.as_bytes(), value.as_bytes(), &mut block);
        }
        let value: Vec<u8> = script.iter().map(|byte| b'!' + byte % 90).collect();
        encoder.field(b"x-input", &value, &mut block);
        let head = put(frame::HEADERS, frame::END_HEADERS, stream, &block);
        let data = put(frame::DATA, frame::END_STREAM, stream, &body);
        let events = receive(&mut connection, &[head, data].concat());
        let Some(Event::Head { stream: key, ends: false }) = events.first() else { panic!("{events:?}") };
        assert_eq!(connection.fields().values(b"x-input").next(), Some(&value[..]));
        respond(&mut connection, *key, script, &value);
        check_output(&mut connection, &mut decoder);
        let increment = 2000_u32.to_be_bytes();
        receive(&mut connection, &put(frame::WINDOW_UPDATE, 0, 0, &increment));
    }
    assert_eq!(connection.open_streams(), 0);
});

fn respond(connection: &mut Connection, key: StreamKey, script: &[u8], value: &[u8]) {
    connection.release(key, usize::MAX);
    let fields = [(&b"x-output"[..], value), (b"content-type", b"text/plain")];
    connection.send_head(key, 200 + u16::from(script[0]), fields.into_iter(), false).expect("the stream is open");
    let sent = connection.send_data(key, value, script[0] & 1 == 0).expect("the stream is open");
    assert!(sent <= value.len());
    if script[0] & 1 == 1 {
        connection.send_trailers(key, std::iter::once((&b"x-sum"[..], value))).expect("the stream is open");
    }
    connection.detach(key);
}

fn receive(connection: &mut Connection, bytes: &[u8]) -> Vec<Event> {
    let (mut at, mut events) = (0, Vec::new());
    while let Some(event) = connection.receive(bytes, &mut at, Duration::ZERO).expect("the client makes no mistake") {
        events.push(event);
    }
    events
}

/// All header sections can be decoded.
fn check_output(connection: &mut Connection, decoder: &mut HpackDecoder) {
    let output = connection.take_output();
    let mut rest = &output[..];
    while let Some((header, after)) = rest.split_first_chunk::<{ frame::HEADER_BYTES }>() {
        let header = FrameHeader::parse(*header);
        let (payload, after) = after.split_at(header.length);
        if header.kind == frame::HEADERS {
            decoder.decode(payload, 1 << 20, |name, _| assert!(!name.is_empty())).expect("the block is valid");
        }
        rest = after;
    }
}

fn put(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader { length: payload.len(), kind, flags, stream }.encode()[..], payload].concat()
}
