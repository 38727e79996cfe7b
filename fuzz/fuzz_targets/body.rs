//! The framing of a body: one result for any split, the same as that of a second parser, and the output in
//! our own chunks has the same content.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::codec::http::{BodyDecoder, BodyFraming, MalformedHttp, BodyEvent};
use sluicegate_dataplane::http::relay::{self, RelayStep};
use sluicegate_dataplane::http::buffers::ReadBuffer;

/// Content, and the bytes that the body took if it ended.
type Read = Result<(Vec<u8>, Option<usize>), MalformedHttp>;

fuzz_target!(|input: &[u8]| {
    let [choice, step, bytes @ ..] = input else { return };
    let framing = match choice % 8 {
        0 => BodyFraming::Empty,
        1 => BodyFraming::Length(u64::from(*step)),
        2 => BodyFraming::UntilClose,
        _ => BodyFraming::Chunked,
    };
    let whole = read(framing, bytes, usize::MAX);
    for step in [1, usize::from(*step % 32) + 1] {
        assert_eq!(read(framing, bytes, step), whole, "in pieces of {step}");
    }

    if framing == BodyFraming::Chunked {
        let plain = second_reader(bytes);
        match &whole {
            Ok((content, Some(taken))) => assert_eq!(plain, Some((content.clone(), *taken))),
            Ok((_, None)) | Err(_) => assert_eq!(plain, None),
        }
    }
    if let Ok((content, Some(taken))) = &whole {
        relayed(framing, &bytes[..*taken], content);
    }
});

fn read(framing: BodyFraming, input: &[u8], step: usize) -> Read {
    let mut reader = BodyDecoder::new(framing);
    let (mut content, mut taken, mut end) = (Vec::new(), 0, input.len().min(step));
    loop {
        match reader.next(&input[taken..end])? {
            BodyEvent::Data { skip, take } => {
                assert!(take > 0);
                content.extend_from_slice(&input[taken + skip..taken + skip + take]);
                taken += skip + take;
            }
            BodyEvent::End { skip } => {
                assert!(reader.is_done() && reader.may_close());
                return Ok((content, Some(taken + skip)));
            }
            BodyEvent::NeedBytes => {
                taken = end;
                if end == input.len() {
                    return Ok((content, None));
                }
                end = input.len().min(end.saturating_add(step));
            }
        }
    }
}

/// RFC 9112 7.1 over lines, without a state machine. `None`: not whole, or wrong.
fn second_reader(input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut content, mut at) = (Vec::new(), 0);
    loop {
        let line = input[at..].windows(2).position(|pair| pair == b"\r\n")?;
        let text = &input[at..at + line];
        at += line + 2;
        let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (size, extension) = text.split_at(digits);
        let fits = digits <= 16 && extension.len() <= 257;
        if !fits || !(extension.is_empty() || extension[0] == b';') || !extension.iter().all(is_text) {
            return None;
        }
        let size = u64::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        if size == 0 {
            return trailers(&input[at..]).map(|bytes| (content, at + bytes));
        }
        let end = at.checked_add(usize::try_from(size).ok()?)?;
        content.extend_from_slice(input.get(at..end)?);
        if input.get(end..end.checked_add(2)?)? != b"\r\n" {
            return None;
        }
        at = end + 2;
    }
}

fn is_text(byte: &u8) -> bool {
    *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)
}

/// Bytes up to and with the empty line.
fn trailers(input: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut lines = 0;
    loop {
        let rest = &input[at..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = rest[..end].strip_suffix(b"\r")?;
        at += end + 1;
        if line.is_empty() {
            return (at <= 8 * 1024 + 2 && lines <= 100).then_some(at);
        }
        lines += 1;
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if colon == 0 || !line[..colon].iter().all(name) || !line[colon + 1..].iter().all(is_text) {
            return None;
        }
    }
}

/// Passes a whole body on in chunks and reads it again.
fn relayed(framing: BodyFraming, body: &[u8], content: &[u8]) {
    let mut read_buffer = ReadBuffer::default();
    read_buffer.unread = body.to_vec().into();
    let (mut reader, mut out) = (BodyDecoder::new(framing), BytesMut::new());
    loop {
        match relay::step(&mut read_buffer, &mut reader, true, &mut out) {
            Ok(RelayStep::Done) => break,
            Ok(RelayStep::Send(piece)) => {
                out.extend_from_slice(&piece);
                relay::after_send(true, &mut out);
            }
            other => panic!("a whole body stopped: {other:?}"),
        }
    }
    let again = read(BodyFraming::Chunked, &out, usize::MAX);
    assert_eq!(again, Ok((content.to_vec(), Some(out.len()))), "{out:?}");
}
