//! A client's HTTP/2 connection with a server that sends anything: the codec neither panics nor exceeds its limits, and
//! valid responses among the frames are received as they were sent.
#![no_main]

use std::time::Duration;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_http2::frame::{self, FrameHeader};
use sluicegate_http2::hpack::{HpackEncoder, RequestPseudoFields};
use sluicegate_http2::{Connection, ConnectionConfig, ErrorCode, Event};

const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 20,
    slots_max: 40,
    stream_window: 1000,
    connection_window: 70_000,
    header_list_bytes_max: 20_000,
    output_bytes_max: 4096,
    tunnels: false,
};
const HEAD: RequestPseudoFields<'_> =
    RequestPseudoFields { method: b"POST", scheme: b"http", authority: b"app", path: b"/" };

fuzz_target!(|input: &[u8]| {
    let mut client = Connection::client(CONFIG, Duration::ZERO);
    let mut encoder = HpackEncoder::default();
    let mut open = Vec::new();
    if receive(&mut client, &put(frame::SETTINGS, 0, 0, &[])).is_err() {
        panic!("empty SETTINGS are valid");
    }
    for script in input.chunks(16) {
        if client.can_send_request() {
            let key = client.send_request(HEAD, std::iter::once((&b"X-Input"[..], script)), script[0] & 1 == 0);
            open.push(key.expect("a stream can be opened"));
        }
        let Some(stream) = open.get(usize::from(script[0]) % open.len().max(1)).copied() else { continue };
        let frames = match script[0] % 4 {
            0 => put(script.get(1).copied().unwrap_or_default() % 12, script[0], stream.id(), script),
            1 => input.to_vec(),
            _ => response(&mut encoder, stream.id(), script),
        };
        let Ok(events) = receive(&mut client, &frames) else {
            return client.end(ErrorCode::ProtocolError); // nothing more is read
        };
        for event in events {
            match event {
                Event::Data { stream, bytes } => client.release(stream, bytes.len()),
                Event::Ended { stream } | Event::Trailers { stream, .. } | Event::Reset { stream, .. } => {
                    client.detach(stream);
                    open.retain(|key| *key != stream);
                }
                _ => {}
            }
        }
        let _ = client.send_data(stream, script, script[0] & 2 == 0); // it may have ended
        assert!(client.open_streams() <= CONFIG.streams_max as usize);
        client.take_output();
    }
    open.into_iter().for_each(|stream| client.detach(stream));
    assert_eq!(client.open_streams(), 0);
});

/// A response with content, as long as the connection is intact.
fn response(encoder: &mut HpackEncoder, stream: u32, script: &[u8]) -> Vec<u8> {
    let mut block = BytesMut::new();
    encoder.begin(&mut block);
    encoder.status(200 + u16::from(script[0]), &mut block);
    let value: Vec<u8> = script.iter().map(|byte| b'!' + byte % 90).collect();
    encoder.field(b"x-output", &value, &mut block);
    let head = put(frame::HEADERS, frame::END_HEADERS, stream, &block);
    [head, put(frame::DATA, frame::END_STREAM, stream, script)].concat()
}

fn receive(client: &mut Connection, bytes: &[u8]) -> Result<Vec<Event>, ()> {
    let (mut at, mut events) = (0, Vec::new());
    while let Some(event) = client.receive(bytes, &mut at, Duration::ZERO).map_err(|_| ())? {
        events.push(event);
    }
    Ok(events)
}

fn put(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader { length: payload.len(), kind, flags, stream }.encode()[..], payload].concat()
}
