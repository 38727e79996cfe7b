//! RFC 9113, sections 3, 4, 6 and 7: valid frames.

use kit::http2::{frame, get_block};

use super::peer::*;

const BROKEN: Expect = Expect::Connection(&[PROTOCOL_ERROR]);
const WRONG_SIZE: Expect = Expect::Connection(&[FRAME_SIZE_ERROR]);

pub(crate) fn cases() -> Vec<Http2Case> {
    [opening(), data_and_headers(), settings(), single_frames(), windows(), continuations()].concat()
}

fn opening() -> Vec<Http2Case> {
    let large = |stream| frame(DATA, END_STREAM, stream, &vec![0; 16_384]);
    let wrong = b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec();
    let huge = [get_block(HOST, "/"), vec![0; 16_384]].concat();
    vec![
        case("3.4", "a preface that goes wrong", &[wrong], Expect::NotHttp2),
        case("4.1", "a frame of unknown kind is ignored", &[frame(0x16, 0, 0, &[0; 8])], Expect::Pong),
        case("4.1", "flags without meaning are ignored", &[frame(PING, 0x16, 0, PONG)], Expect::Pong),
        case("4.1", "the reserved bit is ignored", &[frame(PING, 0, 0x8000_0000, PONG)], Expect::Pong),
        case("4.2", "DATA of the largest size", &[post(1), large(1)], Expect::Answer),
        case(
            "4.2",
            "DATA larger than allowed",
            &[post(1), frame(DATA, 0, 1, &vec![0; 16_385])],
            Expect::Stream(1, &[FRAME_SIZE_ERROR]),
        ),
        case("4.2", "HEADERS larger than allowed", &[frame(HEADERS, WHOLE, 1, &huge)], WRONG_SIZE),
        case("5.5", "an unknown kind between", &[frame(0xff, 0xff, 7, b"?"), get(1, WHOLE)], Expect::Answer),
        case("5.5", "an unknown kind in a block", &[get(1, END_STREAM), frame(0xff, 0, 0, &[0; 8])], BROKEN),
    ]
}

fn data_and_headers() -> Vec<Http2Case> {
    let padded = |kind, flags, stream, pad: u8, content: &[u8]| {
        frame(kind, flags | PADDED, stream, &[&[pad], content, &vec![0; usize::from(pad)]].concat())
    };
    let too_much = |kind, flags, stream| frame(kind, flags | PADDED, stream, &[9, 1, 2]);
    vec![
        case("6.1", "DATA on stream 0", &[frame(DATA, 0, 0, b"x")], BROKEN),
        case("6.1", "padded DATA", &[post(1), padded(DATA, END_STREAM, 1, 7, b"hello")], Expect::Answer),
        case("6.1", "DATA with more padding than bytes", &[post(1), too_much(DATA, 0, 1)], BROKEN),
        case(
            "6.1",
            "padded DATA without a length",
            &[post(1), frame(DATA, PADDED, 1, &[])],
            Expect::Connection(&[PROTOCOL_ERROR, FRAME_SIZE_ERROR]),
        ),
        case("6.2", "HEADERS on stream 0", &[get(0, WHOLE)], BROKEN),
        case("6.2", "padded HEADERS", &[padded(HEADERS, WHOLE, 1, 5, &get_block(HOST, "/"))], Expect::Answer),
        case("6.2", "HEADERS with more padding than bytes", &[too_much(HEADERS, WHOLE, 1)], BROKEN),
        case(
            "6.2",
            "HEADERS with a priority",
            &[frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[vec![0, 0, 0, 0, 15], get_block(HOST, "/")].concat())],
            Expect::Answer,
        ),
        case("6.2", "PRIORITY inside a block", &[get(1, END_STREAM), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])], BROKEN),
        case("6.2", "HEADERS of another stream inside a block", &[get(1, END_STREAM), get(3, WHOLE)], BROKEN),
        case(
            "8.4",
            "a client that pushes",
            &[post(1), frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82])],
            BROKEN,
        ),
    ]
}

fn settings() -> Vec<Http2Case> {
    let window = Expect::Connection(&[FLOW_CONTROL_ERROR, PROTOCOL_ERROR]); // by h2 the latter
    let two = [setting(0x4, 100)[9..].to_vec(), setting(0x4, 1)[9..].to_vec()].concat();
    vec![
        case("6.5", "SETTINGS are acknowledged", &[setting(0x3, 100)], Expect::SettingsAcked),
        case("6.5", "an acknowledgement with content", &[frame(SETTINGS, ACK, 0, &[0; 6])], WRONG_SIZE),
        case("6.5", "SETTINGS on a stream", &[frame(SETTINGS, 0, 1, &[0, 3, 0, 0, 0, 9])], BROKEN),
        case("6.5", "SETTINGS of a broken length", &[frame(SETTINGS, 0, 0, &[0, 3, 0])], WRONG_SIZE),
        case("6.5.2", "ENABLE_PUSH that is neither 0 nor 1", &[setting(0x2, 2)], BROKEN),
        case("6.5.2", "INITIAL_WINDOW_SIZE beyond 2^31-1", &[setting(0x4, 0x8000_0000)], window),
        case("6.5.2", "MAX_FRAME_SIZE below 16384", &[setting(0x5, 16_383)], BROKEN),
        case("6.5.2", "MAX_FRAME_SIZE beyond 2^24-1", &[setting(0x5, 0x100_0000)], BROKEN),
        case("6.5.2", "an unknown setting is ignored", &[setting(0xff, 1)], Expect::Pong),
        case(
            "6.5.3",
            "of two values the last counts",
            &[frame(SETTINGS, 0, 0, &two), get(1, WHOLE)],
            Expect::Data(&[1]),
        ),
    ]
}

fn single_frames() -> Vec<Http2Case> {
    let goaway = |stream, code: u32| frame(GOAWAY, 0, stream, &[0_u32.to_be_bytes(), code.to_be_bytes()].concat());
    vec![
        case("6.3", "PRIORITY on stream 0", &[frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 1])], BROKEN),
        case(
            "6.3",
            "PRIORITY of a broken length",
            &[frame(PRIORITY, 0, 1, &[0, 0, 0])],
            Expect::Stream(1, &[FRAME_SIZE_ERROR]),
        ),
        case("6.4", "RST_STREAM on stream 0", &[reset(0, 8)], BROKEN),
        case("6.4", "RST_STREAM of a broken length", &[post(1), frame(RST_STREAM, 0, 1, &[0, 0, 0])], WRONG_SIZE),
        case("6.7", "a PING is answered", &[], Expect::Pong),
        case("6.7", "an answered PING is not", &[frame(PING, ACK, 0, &[1; 8])], Expect::Pong),
        case("6.7", "PING on a stream", &[frame(PING, 0, 1, &[0; 8])], BROKEN),
        case("6.7", "PING of a broken length", &[frame(PING, 0, 0, &[0; 6])], WRONG_SIZE),
        case("6.8", "GOAWAY on a stream", &[goaway(1, 0)], BROKEN),
        case("6.8", "GOAWAY of a broken length", &[frame(GOAWAY, 0, 0, &[0; 7])], WRONG_SIZE),
        case("7", "RST_STREAM with an unknown code", &[post(1), reset(1, 0xff)], Expect::Pong),
    ]
}

fn windows() -> Vec<Http2Case> {
    let overflow = 0x7fff_ffff;
    let flow = Expect::Connection(&[FLOW_CONTROL_ERROR]);
    let resized = [setting(0x4, 1), get(1, WHOLE), window_update(1, 4)];
    vec![
        case("6.9", "an increment of 0", &[window_update(0, 0)], BROKEN),
        case(
            "6.9",
            "an increment of 0 on a stream",
            &[post(1), window_update(1, 0)],
            Expect::Stream(1, &[PROTOCOL_ERROR]),
        ),
        case("6.9", "WINDOW_UPDATE of a broken length", &[frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1])], WRONG_SIZE),
        case("6.9.1", "DATA within a window of 1", &[setting(0x4, 1), get(1, WHOLE)], Expect::Data(&[1])),
        case(
            "6.9.1",
            "the connection's window overflows",
            &[window_update(0, overflow), window_update(0, overflow)],
            flow,
        ),
        case(
            "6.9.1",
            "a stream's window overflows",
            &[post(1), window_update(1, overflow), window_update(1, overflow)],
            Expect::Stream(1, &[FLOW_CONTROL_ERROR]),
        ),
        case("6.9.2", "a window that opens again", &resized, Expect::Answer),
        case(
            "6.9.2",
            "a window that was opened by SETTINGS",
            &[setting(0x4, 0), get(1, WHOLE), setting(0x4, 3)],
            Expect::Data(&[3]),
        ),
        case("6.9.2", "a window of no bytes", &[setting(0x4, 0), get(1, WHOLE)], Expect::Answer),
    ]
}

fn continuations() -> Vec<Http2Case> {
    let block = get_block(HOST, "/");
    let (one, two) = block.split_at(2);
    let (two, three) = two.split_at(3);
    let first = || frame(HEADERS, END_STREAM, 1, one);
    let more = |flags, stream, part: &[u8]| frame(CONTINUATION, flags, stream, part);
    let rest = [two, three].concat();
    let lonely = Expect::Connection(&[PROTOCOL_ERROR, STREAM_CLOSED]);
    vec![
        case(
            "6.10",
            "a block in three frames",
            &[first(), more(0, 1, two), more(END_HEADERS, 1, three)],
            Expect::Answer,
        ),
        case(
            "6.10",
            "a block with an empty frame",
            &[first(), more(0, 1, &[]), more(END_HEADERS, 1, &rest)],
            Expect::Answer,
        ),
        case("6.10", "DATA inside a block", &[first(), frame(DATA, 0, 1, b"x")], BROKEN),
        case("6.10", "CONTINUATION on stream 0", &[first(), more(END_HEADERS, 0, &rest)], BROKEN),
        case("6.10", "CONTINUATION of another stream", &[first(), more(END_HEADERS, 3, &rest)], BROKEN),
        case("6.10", "CONTINUATION behind a whole block", &[get(1, END_HEADERS), more(END_HEADERS, 1, &[])], lonely),
        case(
            "6.10",
            "CONTINUATION behind the last one",
            &[first(), more(END_HEADERS, 1, &rest), more(END_HEADERS, 1, &[])],
            lonely,
        ),
        case(
            "6.10",
            "CONTINUATION behind DATA",
            &[post(1), frame(DATA, 0, 1, b"x"), more(END_HEADERS, 1, &[])],
            lonely,
        ),
    ]
}
