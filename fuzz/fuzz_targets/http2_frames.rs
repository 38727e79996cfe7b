//! The bytes of a client's HTTP/2 connection, through the codec alone: one outcome for any split, and what is sent is
//! a sequence of whole frames. After the preface and SETTINGS the input is read as a list of frames, or as it is.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluicegate_http2::frame::{self, FrameHeader, PREFACE};
use sluicegate_http2::{Connection, ConnectionConfig, ConnectionFault, Event};

const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 4,
    slots_max: 8,
    stream_window: 100,
    connection_window: 70_000,
    header_list_bytes_max: 1000,
    output_bytes_max: 4096,
    tunnels: true,
};

/// What happened, and what was sent.
type Outcome = (Vec<String>, Result<(), ConnectionFault>, Vec<u8>);

fuzz_target!(|input: &[u8]| {
    let [choice, piece, bytes @ ..] = input else { return };
    let frames = if choice & 1 == 0 { bytes.to_vec() } else { framed(bytes) };
    let client = [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0], &frames].concat();
    let whole = served(&client, usize::MAX, choice >> 1);
    assert_eq!(served(&client, usize::from(*piece) + 1, choice >> 1), whole);

    let mut rest = &whole.2[..];
    while let Some((header, after)) = rest.split_first_chunk::<{ frame::HEADER_BYTES }>() {
        rest = &after[FrameHeader::parse(*header).length..];
    }
    assert!(rest.is_empty(), "a frame was cut");
});

/// Serves each request in one of several ways, by its number and `choice`. Output is taken after each input, so it
/// never fills up, and what happens does not depend on the pieces.
fn served(client: &[u8], piece: usize, choice: u8) -> Outcome {
    let mut connection = Connection::server(CONFIG, Duration::ZERO);
    let (mut events, mut output) = (Vec::new(), Vec::new());
    for bytes in client.chunks(piece) {
        let mut at = 0;
        loop {
            match connection.receive(bytes, &mut at, Duration::ZERO) {
                Ok(None) => break,
                Ok(Some(event)) => {
                    handle(&mut connection, &event, choice);
                    note(&mut events, &event, bytes);
                }
                Err(fault) => {
                    connection.fail(fault);
                    output.extend_from_slice(&connection.take_output());
                    return (events, Err(fault), output);
                }
            }
            output.extend_from_slice(&connection.take_output());
        }
        assert_eq!(at, bytes.len());
        output.extend_from_slice(&connection.take_output());
    }
    (events, Ok(()), output)
}

fn handle(connection: &mut Connection, event: &Event, choice: u8) {
    let none = || std::iter::empty::<(&[u8], &[u8])>();
    match event {
        // A stream may be gone by then: sending to it is an error that changes nothing.
        Event::Head { stream, ends } => match (stream.id() / 2) as u8 ^ choice {
            key if key & 1 == 0 => {
                let _ = connection.send_head(*stream, 200, none(), true);
                connection.detach(*stream);
            }
            key if key & 2 == 0 => connection.reset(*stream, sluicegate_http2::ErrorCode::Cancel),
            _ if *ends => connection.detach(*stream),
            _ => {}
        },
        // In one go at the end of the stream, so that the pieces do not matter.
        Event::Ended { stream } | Event::Trailers { stream, .. } => {
            connection.release(*stream, usize::MAX);
            let _ = connection.send_head(*stream, 200, none(), false);
            let _ = connection.send_data(*stream, b"hello", true);
            connection.detach(*stream);
        }
        Event::Reset { stream, .. } => connection.detach(*stream),
        Event::Data { .. } | Event::WindowGrew { .. } | Event::Interim { .. } | Event::GoAway { .. } => {}
    }
}

/// Notes an event; content is joined.
fn note(events: &mut Vec<String>, event: &Event, input: &[u8]) {
    match event {
        Event::Data { stream, bytes } => {
            let prefix = format!("data of {}: ", stream.id());
            if !events.last().is_some_and(|last| last.starts_with(&prefix)) {
                events.push(prefix);
            }
            if let Some(last) = events.last_mut() {
                input[bytes.clone()].iter().for_each(|byte| last.push_str(&format!("{byte:02x}")));
            }
        }
        event => events.push(format!("{event:?}")),
    }
}

/// Three bytes say which frame comes next, the bytes after them what is in it.
fn framed(mut script: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let [what, flags, size, rest @ ..] = script {
        let (payload, rest) = rest.split_at(usize::from(*size >> 2).min(rest.len()));
        let stream = u32::from(what >> 4) * 2 + u32::from(*size & 1);
        let header = FrameHeader { length: payload.len(), kind: what & 15, flags: *flags, stream };
        all.extend_from_slice(&header.encode());
        all.extend_from_slice(payload);
        script = rest;
    }
    all
}
