//! The input of a client of `exec` or `port-forward` in SPDY/3.1.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_control::streaming::spdy::codec::{Decoder, Encoder, Frame, SpdyError, data, ping};
use sluicegate_control::streaming::spdy::{HEADER_BLOCK_BYTES_MAX, HEADERS_MAX};

/// The frames of `bytes`, which arrive in pieces of this size. The pieces of a DATA frame are joined.
fn read(bytes: &[u8], piece: usize) -> (Vec<Frame>, Option<SpdyError>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for part in bytes.chunks(piece) {
        decoder.push(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => join(&mut frames, frame),
                Ok(None) => break,
                Err(why) => return (frames, Some(why)),
            }
        }
    }
    (frames, None)
}

fn join(frames: &mut Vec<Frame>, frame: Frame) {
    if let (Some(Frame::Data { stream: last, fin: false, bytes: before }), Frame::Data { stream, fin, bytes }) =
        (frames.last_mut(), &frame)
        && last == stream
    {
        let joined = [before.as_ref(), bytes.as_ref()].concat();
        *frames.last_mut().expect("it has just been seen") = Frame::Data { stream: *stream, fin: *fin, bytes: joined.into() };
        return;
    }
    frames.push(frame);
}

fuzz_target!(|bytes: &[u8]| {
    let (frames, error) = read(bytes, usize::MAX);
    assert_eq!((&frames, &error), (&read(bytes, 1).0, &read(bytes, 1).1), "cut in another way");
    let (mut encoder, mut again) = (Encoder::default(), BytesMut::new());
    let mut wanted = Vec::new();
    for frame in frames {
        match &frame {
            Frame::SynStream { stream, headers, .. } => {
                assert!(headers.len() <= HEADERS_MAX);
                assert!(headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= HEADER_BLOCK_BYTES_MAX);
                let pairs: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                encoder.syn_stream(&mut again, *stream, &pairs).expect("what was read can be written");
                wanted.push(Frame::SynStream { stream: *stream, fin: false, headers: headers.clone() });
            }
            Frame::Data { stream, fin, bytes } => {
                data(&mut again, *stream, bytes, *fin);
                join(&mut wanted, frame);
            }
            Frame::Ping { id } => {
                ping(&mut again, *id);
                wanted.push(frame);
            }
            Frame::Headers { .. } | Frame::Reset { .. } | Frame::GoAway => {}
        }
    }
    assert_eq!(read(&again, usize::MAX), (wanted, None));
});
