//! Requests and responses as they should be.

mod support;

use bytes::BytesMut;
use sluicegate_http2::error::ErrorCode;
use sluicegate_http2::frame::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PADDED, PING, PRIORITY_UPDATE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use sluicegate_http2::{ConnectionConfig, Event, StreamGone};
use support::{CONFIG, END, GET, POST, SentFrame, TestClient, WHOLE, field, frame};

const NONE: [(&[u8], &[u8]); 0] = [];

fn kinds(sent: &[SentFrame]) -> Vec<(u8, u32)> {
    sent.iter().map(|sent| (sent.kind, sent.stream)).collect()
}

#[test]
fn request_and_response_of_a_stream() {
    let mut client = TestClient::open();
    let stream = client.request(1, &[POST, &field("a", "b")].concat(), 0);
    let fields = client.server.fields();
    assert_eq!((fields.method(), fields.path(), fields.authority()), (&b"POST"[..], &b"/"[..], Some(&b"app"[..])));
    assert_eq!(fields.fields().collect::<Vec<_>>(), [(&b"a"[..], &b"b"[..])]);

    let body = [frame(DATA, PADDED, 1, &[2, b'x', b'x', 0, 0]), frame(DATA, END, 1, b"x")].concat();
    let events = client.send(&body).unwrap();
    assert_eq!(events.len(), 3);
    assert_eq!(events[2], Event::Ended { stream });

    let early: [(&[u8], &[u8]); 1] = [(b"link", b"</a>")];
    client.server.send_head(stream, 103, early.into_iter(), false).unwrap();
    let fields: [(&[u8], &[u8]); 1] = [(b"content-type", b"text/plain")];
    client.server.send_head(stream, 200, fields.into_iter(), false).unwrap();
    assert_eq!(client.server.send_data(stream, b"hello", false), Ok(5));
    let trailers: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];
    client.server.send_trailers(stream, trailers.into_iter()).unwrap();
    assert_eq!(client.server.send_data(stream, b"more", false), Err(StreamGone));
    client.server.detach(stream);

    let sent = client.sent();
    assert_eq!(kinds(&sent), [(HEADERS, 1), (HEADERS, 1), (DATA, 1), (HEADERS, 1)]);
    assert_eq!(client.decode(&sent[0]), ":status: 103\nlink: </a>\n");
    assert_eq!(client.decode(&sent[1]), ":status: 200\ncontent-type: text/plain\n");
    assert_eq!((&sent[2].payload[..], sent[2].flags), (&b"hello"[..], 0));
    assert_eq!((client.decode(&sent[3]), sent[3].flags & END), ("grpc-status: 0\n".to_owned(), END));
    assert_eq!(client.server.open_streams(), 0);
}

#[test]
fn head_in_many_frames_is_read_and_a_large_one_is_written() {
    let mut client = TestClient::open_with(CONFIG, 5);
    let block = [GET, &field("a", "b")].concat();
    let (first, rest) = block.split_at(2);
    let frames = [frame(HEADERS, END, 1, first), frame(CONTINUATION, 0, 1, &[]), frame(CONTINUATION, WHOLE, 1, rest)];
    let events = client.send(&frames.concat()).unwrap();
    let [Event::Head { stream, ends: true }] = events[..] else { panic!("{events:?}") };
    assert_eq!(client.server.fields().len(), 1);

    let large = vec![b'{'; 40_000]; // longer with Huffman's code
    let fields: [(&[u8], &[u8]); 1] = [(b"x-large", &large)];
    client.server.send_head(stream, 200, fields.into_iter(), true).unwrap();
    let sent = client.sent();
    assert_eq!(kinds(&sent), [(HEADERS, 1), (CONTINUATION, 1), (CONTINUATION, 1)]);
    assert_eq!(sent.iter().map(|sent| sent.flags).collect::<Vec<_>>(), [END, 0, WHOLE]);
    let payload = sent.iter().flat_map(|sent| sent.payload.clone()).collect();
    let text = client.decode(&SentFrame { payload, ..sent[0].clone() });
    assert_eq!(text.len(), ":status: 200\nx-large: \n".len() + large.len());
}

#[test]
fn data_stays_within_the_windows() {
    let mut client = TestClient::open();
    client.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10])).unwrap();
    let stream = client.request(1, GET, END);
    client.server.send_head(stream, 200, NONE.into_iter(), false).unwrap();
    assert_eq!(client.server.send_data(stream, &[0; 15], true), Ok(10));
    assert_eq!(client.server.send_data(stream, &[0; 5], true), Ok(0));
    // A smaller window makes it negative.
    client.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4])).unwrap();
    let update = |by: u8| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, by]);
    assert_eq!(client.send(&update(6)), Ok(vec![Event::WindowGrew { stream: Some(stream) }]));
    assert_eq!(client.server.send_data(stream, &[0; 5], true), Ok(0));
    client.send(&update(5)).unwrap();
    assert_eq!(client.server.send_data(stream, &[0; 5], true), Ok(5));
    let sent = client.sent();
    assert_eq!(sent.last().map(|sent| sent.flags), Some(END));

    // The window of the connection is for all streams: 65,535 less 15.
    client.send(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).unwrap();
    let (a, b) = (client.request(3, GET, END), client.request(5, GET, END));
    client.server.send_head(a, 200, NONE.into_iter(), false).unwrap();
    client.server.send_head(b, 200, NONE.into_iter(), false).unwrap();
    client.sent();
    let mut accepted = 0;
    for _ in 0..4 {
        accepted += client.server.send_data(a, &[0; 20_000], false).unwrap();
        assert!(client.sent().iter().all(|sent| sent.payload.len() <= 16 * 1024));
    }
    assert_eq!((accepted, client.server.send_data(b, b"x", true)), (65_520, Ok(0)));
    assert_eq!(client.server.send_data(b, b"", true), Ok(0)); // an end needs no window
    assert_eq!(client.send(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 7])), Ok(vec![Event::WindowGrew { stream: None }]));
    assert_eq!(client.server.send_data(a, &[0; 10], false), Ok(7));
}

#[test]
fn full_output_accepts_no_data_until_it_was_taken() {
    let mut client = TestClient::open_with(ConnectionConfig { output_bytes_max: 100, ..CONFIG }, usize::MAX);
    let stream = client.request(1, GET, END);
    client.server.send_head(stream, 200, NONE.into_iter(), false).unwrap();
    let accepted = client.server.send_data(stream, &[0; 200], true).unwrap();
    assert!(accepted > 0 && accepted < 100 && !client.server.has_output_capacity());
    assert_eq!(client.server.send_data(stream, &[0; 10], true), Ok(0));
    client.sent();
    assert_eq!(client.server.send_data(stream, &[0; 10], true), Ok(10));
}

#[test]
fn released_bytes_open_the_windows_again() {
    let mut client = TestClient::open();
    let stream = client.request(1, POST, 0);
    client.send(&frame(DATA, 0, 1, &[b'x'; 1000])).unwrap();
    client.server.release(stream, 400);
    assert_eq!(client.sent(), []);
    client.server.release(stream, 100);
    let sent = client.sent();
    assert_eq!((kinds(&sent), sent[0].code()), (vec![(WINDOW_UPDATE, 1)], 500));
    client.send(&frame(DATA, 0, 1, &[b'x'; 500])).unwrap();
    // More than was received is not released.
    client.server.release(stream, 1_000_000);
    assert_eq!(client.sent()[0].code(), 1000);
}

/// What a stream holds returns to the window of the connection, however the stream ends.
#[test]
fn window_of_the_connection_survives_streams_that_end_early() {
    let mut client = TestClient::open();
    let mut announced = 0;
    for n in 0..500_u32 {
        let id = 4 * n + 1;
        let stream = client.request(id, POST, 0);
        client.send(&frame(DATA, 0, id, &[b'x'; 900])).unwrap();
        match n % 3 {
            0 => client.server.reset(stream, ErrorCode::Cancel),
            1 => drop(client.send(&frame(RST_STREAM, 0, id, &[0; 4])).unwrap()),
            _ => {}
        }
        client.server.detach(stream);
        client.send(&frame(DATA, 0, id, &[b'x'; 10])).unwrap(); // on its way
        announced += client.sent().iter().filter(|sent| sent.kind == WINDOW_UPDATE).map(SentFrame::code).sum::<u32>();
    }
    let received = 500 * 910;
    assert!((received - CONFIG.connection_window..=received).contains(&announced), "{announced}");
}

#[test]
fn rest_of_a_frame_of_a_stream_that_was_reset_is_ignored() {
    let mut client = TestClient::open();
    let stream = client.request(1, POST, 0);
    let data = frame(DATA, END, 1, &[b'x'; 20]);
    assert_eq!(client.send(&data[..15]).map(|events| events.len()), Ok(1));
    client.server.detach(stream);
    assert_eq!(client.send(&data[15..]), Ok(vec![]));
    let later = client.request(3, GET, END);
    assert_eq!(later.slot(), stream.slot());
}

#[test]
fn answer_stays_before_the_reset_that_follows_it() {
    let mut client = TestClient::open();
    let stream = client.request(1, POST, 0);
    client.server.send_head(stream, 401, NONE.into_iter(), false).unwrap();
    client.server.send_data(stream, b"no", true).unwrap();
    client.server.reset(stream, ErrorCode::NoError);
    client.server.detach(stream);
    let sent = client.sent();
    assert_eq!(kinds(&sent), [(HEADERS, 1), (DATA, 1), (RST_STREAM, 1)]);
    assert_eq!((sent[1].flags, sent[2].code()), (END, 0));
    assert_eq!(client.send(&frame(DATA, END, 1, b"x")), Ok(vec![]));
    assert_eq!(client.sent(), []);
}

#[test]
fn detached_stream_is_reset_by_what_was_sent() {
    for (head, ends, code) in [(None, false, 8), (Some(200), false, 8), (Some(200), true, 0)] {
        let mut client = TestClient::open();
        let stream = client.request(1, POST, 0);
        if let Some(status) = head {
            client.server.send_head(stream, status, NONE.into_iter(), ends).unwrap();
        }
        client.server.detach(stream);
        let sent = client.sent();
        assert_eq!(sent.last().map(|sent| (sent.kind, sent.code())), Some((RST_STREAM, code)));
    }
}

#[test]
fn ping_is_answered_and_shutdown_serves_what_is_on_its_way() {
    let mut client = TestClient::open();
    client.send(&frame(PING, 0, 0, b"12345678")).unwrap();
    let pong = SentFrame { kind: PING, flags: 1, stream: 0, payload: b"12345678".to_vec() };
    assert_eq!(client.sent(), [pong]);

    let first = client.request(1, GET, END);
    client.server.shut_down();
    client.server.shut_down();
    let sent = client.sent();
    assert_eq!(kinds(&sent), [(GOAWAY, 0), (PING, 0)]);
    assert_eq!(sent[0].payload[..4], [0x7f, 0xff, 0xff, 0xff]);
    let second = client.request(3, GET, END);
    client.send(&frame(PING, 1, 0, &sent[1].payload)).unwrap();
    let sent = client.sent();
    assert_eq!((kinds(&sent), &sent[0].payload[..4]), (vec![(GOAWAY, 0)], &[0, 0, 0, 3][..]));

    // Later streams are ignored, but their fields are remembered.
    let indexed = [GET, b"\x40\x01a\x01b"].concat();
    assert_eq!(client.send(&frame(HEADERS, WHOLE, 5, &indexed)), Ok(vec![]));
    assert_eq!(client.send(&frame(DATA, END, 5, b"x")), Ok(vec![]));
    assert_eq!(client.sent(), []);
    for stream in [first, second] {
        assert!(!client.server.is_finished());
        client.server.send_head(stream, 200, NONE.into_iter(), true).unwrap();
        client.server.detach(stream);
    }
    assert!(client.server.is_finished());
}

/// RFC 8441: the tunnel is a stream like others.
#[test]
fn extended_connect_is_allowed_with_tunnels_only() {
    let connect = [&field(":method", "CONNECT")[..], &field(":protocol", "websocket"), b"\x86\x84\x41\x03app"].concat();
    let mut client = TestClient::open();
    client.request(1, &connect, 0);
    assert_eq!(client.server.fields().protocol(), Some(&b"websocket"[..]));
    let mut client = TestClient::open_with(ConnectionConfig { tunnels: false, ..CONFIG }, usize::MAX);
    assert_eq!(client.send(&frame(HEADERS, WHOLE, 1, &connect)), Ok(vec![]));
    assert_eq!(client.sent().last().map(SentFrame::code), Some(1));
}

/// RFC 9218.
#[test]
fn priority_comes_from_the_head_or_its_own_frame() {
    let mut client = TestClient::open();
    let stream = client.request(1, &[GET, &field("priority", "u=1, i")].concat(), END);
    let priority = client.server.priority(stream);
    assert_eq!((priority.urgency, priority.incremental), (1, true));
    client.send(&frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=6")).unwrap();
    let priority = client.server.priority(stream);
    assert_eq!((priority.urgency, priority.incremental), (6, false));
}

#[test]
fn memory_of_compression_follows_the_settings_of_the_client() {
    let mut client = TestClient::open();
    let fields: [(&[u8], &[u8]); 1] = [(b"x-a", b"b")];
    let mut encoded = BytesMut::new();
    for id in [1, 3, 5] {
        if id == 5 {
            client.send(&frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0])).unwrap();
        }
        let stream = client.request(id, GET, END);
        client.sent();
        client.server.send_head(stream, 200, fields.into_iter(), true).unwrap();
        client.server.detach(stream);
        let sent = client.sent();
        assert_eq!(client.decode(&sent[0]), ":status: 200\nx-a: b\n");
        encoded.extend_from_slice(&[sent[0].payload.len() as u8]);
    }
    assert_eq!((encoded[1], encoded[2] > 2), (2, true));
}
