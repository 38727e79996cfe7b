//! RFC 9113, section 5: the order of frames.

use kit::http2::frame;

use super::peer::*;

const BROKEN: Expect = Expect::Connection(&[PROTOCOL_ERROR]);
/// Some of these are errors of the stream, and a server may take any of them for one of the connection (5.4).
const CLOSED: Expect = Expect::Stream(1, &[STREAM_CLOSED]);
/// ... or, where h2 finds a frame in no state to come, PROTOCOL_ERROR for the connection.
const CLOSED_OR_BROKEN: Expect = Expect::Stream(1, &[STREAM_CLOSED, PROTOCOL_ERROR]);

pub(crate) fn cases() -> Vec<Http2Case> {
    [idle(), half_closed(), closed(), numbers(), many()].concat()
}

fn data(stream: u32, flags: u8) -> Vec<u8> {
    frame(DATA, flags, stream, b"data")
}

fn continuation() -> Vec<u8> {
    frame(CONTINUATION, END_HEADERS, 1, &[])
}

fn idle() -> Vec<Http2Case> {
    vec![
        case("5.1", "idle: DATA", &[data(1, END_STREAM)], BROKEN),
        case("5.1", "idle: RST_STREAM", &[reset(1, 8)], BROKEN),
        case("5.1", "idle: WINDOW_UPDATE", &[window_update(1, 100)], BROKEN),
        case("5.1", "idle: CONTINUATION", &[continuation()], BROKEN),
        case("5.1", "idle: PRIORITY is allowed", &[frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9])], Expect::Pong),
    ]
}

/// The client has finished; the answer cannot leave, because its window is closed.
fn waiting() -> Vec<u8> {
    [setting(0x4, 0), get(1, WHOLE)].concat()
}

fn half_closed() -> Vec<Http2Case> {
    vec![
        case("5.1", "half-closed: DATA", &[waiting(), data(1, END_STREAM)], CLOSED_OR_BROKEN),
        case("5.1", "half-closed: HEADERS", &[waiting(), get(1, WHOLE)], CLOSED_OR_BROKEN),
        case("5.1", "half-closed: CONTINUATION", &[waiting(), continuation()], CLOSED_OR_BROKEN),
        case("5.1", "half-closed: WINDOW_UPDATE is allowed", &[waiting(), window_update(1, 5)], Expect::Pong),
        case("5.1", "half-closed: RST_STREAM is allowed", &[waiting(), reset(1, 8)], Expect::Pong),
    ]
}

fn closed() -> Vec<Http2Case> {
    let gone = || [post(1), reset(1, 8)].concat();
    vec![
        case("5.1", "closed by RST_STREAM: DATA", &[gone(), data(1, 0)], CLOSED),
        case("5.1", "closed by RST_STREAM: HEADERS", &[gone(), get(1, WHOLE)], CLOSED_OR_BROKEN),
        case("5.1", "closed by RST_STREAM: CONTINUATION", &[gone(), continuation()], CLOSED_OR_BROKEN),
        case("5.1", "closed: PRIORITY is allowed", &[gone(), frame(PRIORITY, 0, 1, &[0; 5])], Expect::Pong),
        case("5.1", "closed: RST_STREAM once more", &[gone(), reset(1, 8)], Expect::Pong),
        case("5.1", "closed: WINDOW_UPDATE on its way", &[gone(), window_update(1, 5)], Expect::Pong),
    ]
}

fn numbers() -> Vec<Http2Case> {
    vec![
        case("5.1.1", "an even stream", &[get(2, WHOLE)], BROKEN),
        case(
            "5.1.1",
            "a stream below the last",
            &[get(5, WHOLE), get(3, WHOLE)],
            Expect::Stream(3, &[PROTOCOL_ERROR, STREAM_CLOSED]),
        ),
        case("5.1.1", "streams may be left out", &[get(7, WHOLE), get(0x7fff_ffff, WHOLE)], Expect::Pong),
    ]
}

/// More streams at a time than the server allows; none of them ever ends.
fn many() -> Vec<Http2Case> {
    let open: Vec<Vec<u8>> = (0..400).map(|number| post(2 * number + 1)).collect();
    let any = Expect::AnyStream(&[REFUSED_STREAM, PROTOCOL_ERROR, ENHANCE_YOUR_CALM]);
    vec![case("5.1.2", "more streams than allowed", &open, any)]
}
