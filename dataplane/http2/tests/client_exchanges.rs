//! Requests and responses of a client as they should be.

mod support;

use sluicegate_http2::error::ErrorCode;
use sluicegate_http2::frame::{CONTINUATION, DATA, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE};
use sluicegate_http2::hpack::RequestPseudoFields;
use sluicegate_http2::{Event, StreamGone};
use support::{END, NO_FIELDS, REQUEST, TestServer, WHOLE, field, frame};

/// `:status: 200`.
const OK: &[u8] = b"\x88";

fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

fn goaway(last: u32, code: ErrorCode) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &(code as u32).to_be_bytes(), b"why"].concat())
}

#[test]
fn request_and_response_with_interim_head_and_trailers() {
    for piece in [1, 7, usize::MAX] {
        let mut server = TestServer::open_with(piece, &[]);
        let head = RequestPseudoFields { method: b"POST", path: b"/a?b", ..REQUEST };
        let fields: [(&[u8], &[u8]); 2] = [(b"Content-Type", b"a/b"), (b"te", b"trailers")];
        let stream = server.client.send_request(head, fields.into_iter(), false).unwrap();
        assert_eq!(server.client.send_data(stream, b"body", false), Ok(4));
        let trailers: [(&[u8], &[u8]); 1] = [(b"x-sum", b"1")];
        server.client.send_trailers(stream, trailers.into_iter()).unwrap();
        assert_eq!(server.client.send_data(stream, b"more", true), Err(StreamGone));

        let sent = server.sent();
        assert_eq!(
            sent.iter().map(|sent| (sent.kind, sent.stream)).collect::<Vec<_>>(),
            [(HEADERS, 1), (DATA, 1), (HEADERS, 1)]
        );
        let text = ":method: POST\n:scheme: http\n:authority: app\n:path: /a?b\ncontent-type: a/b\nte: trailers\n";
        assert_eq!((server.decode(&sent[0]), sent[0].flags & END), (text.to_owned(), 0));
        assert_eq!((server.decode(&sent[2]), sent[2].flags & END), ("x-sum: 1\n".to_owned(), END));

        let interim = frame(HEADERS, WHOLE, 1, &field(":status", "103"));
        assert_eq!(server.send(&interim).unwrap(), [Event::Interim { stream }]);
        assert_eq!(server.client.fields().status(), Some(103));
        let (front, back) = OK.split_at(0);
        let head = [frame(HEADERS, 0, 1, front), frame(CONTINUATION, WHOLE, 1, back)].concat();
        assert_eq!(server.send(&head).unwrap(), [Event::Head { stream, ends: false }]);
        let rest = [frame(DATA, 0, 1, b"x"), frame(HEADERS, WHOLE | END, 1, &field("grpc-status", "0"))].concat();
        let events = server.send(&rest).unwrap();
        assert_eq!(events.last(), Some(&Event::Trailers { stream, malformed: None }));
        assert_eq!(server.client.fields().values(b"grpc-status").next(), Some(&b"0"[..]));
        assert_eq!(server.client.open_streams(), 0);
        server.client.detach(stream);
        assert_eq!(server.sent(), []);
    }
}

#[test]
fn response_may_come_before_the_end_of_the_request() {
    let mut server = TestServer::open();
    let stream = server.request(false);
    let events = server.send(&frame(HEADERS, WHOLE | END, 1, OK)).unwrap();
    assert_eq!(events, [Event::Head { stream, ends: true }]);
    assert_eq!(server.client.send_data(stream, b"rest", false), Ok(4));
    server.sent();
    server.client.detach(stream); // the rest is not sent
    let sent = server.sent();
    assert_eq!((sent[0].kind, sent[0].code()), (RST_STREAM, ErrorCode::Cancel as u32));
    assert_eq!(server.client.open_streams(), 0);
}

#[test]
fn head_response_announces_a_length_without_content() {
    for (method, block) in [(&b"HEAD"[..], OK), (b"GET", b"\x8b")] {
        let mut server = TestServer::open();
        let head = RequestPseudoFields { method, ..REQUEST };
        let stream = server.client.send_request(head, NO_FIELDS.into_iter(), true).unwrap();
        let block = [block, &field("content-length", "5")].concat();
        let events = server.send(&frame(HEADERS, WHOLE | END, 1, &block)).unwrap();
        assert_eq!(events, [Event::Head { stream, ends: true }]);
    }
}

#[test]
fn streams_are_limited_by_the_server_once_it_has_said_so() {
    let mut server = TestServer::unopened(usize::MAX);
    assert_eq!(server.client.streams_max(), 8, "its own limit is below that before SETTINGS");
    let first = server.request(true);
    let second = server.request(true);
    server.send(&frame(SETTINGS, 0, 0, &setting(3, 1))).unwrap();
    assert_eq!((server.client.streams_max(), server.client.can_send_request()), (1, false));
    assert_eq!(server.client.send_request(REQUEST, NO_FIELDS.into_iter(), true), Err(StreamGone));
    server.send(&[frame(HEADERS, WHOLE | END, 1, OK), frame(RST_STREAM, 0, 3, &[0; 4])].concat()).unwrap();
    assert!(server.client.can_send_request());
    assert_eq!(server.request(true).id(), 5);
    assert_eq!(server.client.reset_code(second), Some(ErrorCode::NoError));
    server.client.detach(first);
    server.send(&frame(SETTINGS, 0, 0, &setting(3, 0))).unwrap();
    assert!(!server.client.can_send_request() && !server.client.is_draining());
}

/// gRPC's C library counts a call until its handler has returned, after the response.
#[test]
fn server_that_refuses_streams_within_its_limit_gets_fewer() {
    let mut server = TestServer::open();
    let streams = [(), (), ()].map(|()| server.request(true));
    server.send(&frame(RST_STREAM, 0, streams[2].id(), &7_u32.to_be_bytes())).unwrap();
    assert_eq!((server.client.streams_max(), server.client.can_send_request()), (2, false));
    server.send(&frame(HEADERS, WHOLE | END, streams[0].id(), OK)).unwrap();
    assert!(server.client.can_send_request());
}

#[test]
fn goaway_ends_later_streams_and_serves_the_others() {
    let mut server = TestServer::open();
    let [first, second, third] = [(), (), ()].map(|()| server.request(true));
    server.sent();
    let events = server.send(&goaway(u32::MAX >> 1, ErrorCode::NoError)).unwrap();
    assert_eq!(events, [Event::GoAway { last: u32::MAX >> 1, code: ErrorCode::NoError }]);
    assert!(server.client.is_draining() && !server.client.can_send_request());
    assert_eq!(server.client.open_streams(), 3);
    assert_eq!(server.client.send_request(REQUEST, NO_FIELDS.into_iter(), true), Err(StreamGone));

    let events = server.send(&goaway(first.id(), ErrorCode::EnhanceYourCalm)).unwrap();
    assert_eq!(events, [Event::GoAway { last: 1, code: ErrorCode::EnhanceYourCalm }]);
    assert_eq!(server.client.open_streams(), 1);
    for stream in [second, third] {
        assert_eq!(server.client.reset_code(stream), Some(ErrorCode::RefusedStream));
        server.client.detach(stream);
    }
    // It cannot take back what it said.
    assert_eq!(
        server.send(&goaway(5, ErrorCode::NoError)).unwrap(),
        [Event::GoAway { last: 1, code: ErrorCode::NoError }]
    );
    let events = server.send(&frame(HEADERS, WHOLE | END, 1, OK)).unwrap();
    assert_eq!(events, [Event::Head { stream: first, ends: true }]);
    assert_eq!(server.sent().len(), 0, "streams that were not processed need no reset");
}

#[test]
fn flow_control_holds_in_both_directions() {
    let mut server = TestServer::open_with(usize::MAX, &setting(4, 5));
    let stream = server.request(false);
    assert_eq!(server.client.send_data(stream, b"1234567", true), Ok(5));
    let events = server.send(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 2])).unwrap();
    assert_eq!(events, [Event::WindowGrew { stream: Some(stream) }]);
    assert_eq!(server.client.send_data(stream, b"67", true), Ok(2));
    server.sent();

    let half = vec![b'x'; 500]; // of a window of 1000
    let frames = [frame(HEADERS, WHOLE, 1, OK), frame(DATA, 0, 1, &half), frame(DATA, 0, 1, &half)].concat();
    server.send(&frames).unwrap();
    assert_eq!(server.sent().len(), 0, "nothing was released");
    server.client.release(stream, 500);
    let sent = server.sent();
    assert_eq!((sent[0].kind, sent[0].stream, &sent[0].payload[..]), (WINDOW_UPDATE, 1, &500_u32.to_be_bytes()[..]));
    server.send(&frame(DATA, END, 1, &half)).unwrap();
    assert_eq!(server.client.open_streams(), 0);
}

#[test]
fn frames_in_flight_to_a_cancelled_stream_are_ignored() {
    let mut server = TestServer::open();
    let stream = server.request(true);
    server.client.detach(stream);
    assert_eq!(server.sent().last().unwrap().code(), ErrorCode::Cancel as u32);
    let late = [
        frame(HEADERS, WHOLE, 1, OK),
        frame(DATA, 0, 1, b"x"),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        frame(HEADERS, WHOLE | END, 1, &field("a", "b")),
        frame(RST_STREAM, 0, 1, &[0; 4]),
    ];
    assert_eq!(server.send(&late.concat()), Ok(vec![]));
    assert_eq!(server.sent(), []);
}

#[test]
fn ping_is_answered_and_the_end_is_announced() {
    let mut server = TestServer::open();
    server.send(&frame(PING, 0, 0, b"12345678")).unwrap();
    server.client.end(ErrorCode::NoError);
    let sent = server.sent();
    assert_eq!((sent[0].kind, sent[0].flags, &sent[0].payload[..]), (PING, 1, &b"12345678"[..]));
    assert_eq!((sent[1].kind, sent[1].code()), (GOAWAY, 0));
    assert_eq!(sent[1].payload[..4], [0; 4], "the client serves no streams");
}

#[test]
fn secrets_are_never_indexed_and_paths_are_not_kept() {
    let mut server = TestServer::open();
    let head = RequestPseudoFields { path: b"/orders/4711", ..REQUEST };
    let fields: [(&[u8], &[u8]); 3] =
        [(b"authorization", b"secret"), (b"cookie", b"secret"), (b"user-agent", b"agent")];
    let blocks = [(), ()].map(|()| {
        server.client.send_request(head, fields.into_iter(), true).unwrap();
        server.sent().remove(0).payload
    });
    for (name, index) in [("authorization", 23 - 15), ("cookie", 32 - 15)] {
        assert!(blocks.iter().all(|block| block.windows(2).any(|bytes| bytes == [0x1f, index])), "{name}");
    }
    assert_eq!(blocks[0].len() - blocks[1].len(), 5 + 6 - 2, "authority and user agent are one byte each");
}
