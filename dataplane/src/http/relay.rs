//! Carries a body from one connection to another, piece by piece: what is held on the way is one
//! received chunk and one outgoing buffer, whatever the body's size.

use bytes::{BufMut, BytesMut};
use ring::Chunk;

use super::buffers::ReadBuffer;
use super::codec::{BodyDecoder, BodyEvent, MalformedHttp, put_chunk_line, trailer_fields};
use super::limits::COPY_BYTES_MAX;

/// What to do next about a body.
#[derive(Debug)]
pub enum RelayStep {
    /// What was held is used up.
    NeedBytes,
    /// All of it is in the buffer (or was sent).
    Done,
    /// Too large to be copied: send the buffer, then this, and go on.
    Send(Chunk),
}

/// Moves what `inflow` holds of a body into `out`, up to a piece that is better sent from where it
/// lies. With `chunked` every piece becomes a chunk of ours.
pub fn step(
    inflow: &mut ReadBuffer,
    body: &mut BodyDecoder,
    chunked: bool,
    out: &mut BytesMut,
) -> Result<RelayStep, MalformedHttp> {
    loop {
        match body.next(&inflow.unread)? {
            BodyEvent::Data { skip, take } => {
                inflow.unread.advance(skip);
                if let Some(large) = put_piece(inflow, take, chunked, out) {
                    return Ok(RelayStep::Send(large));
                }
            }
            BodyEvent::NeedBytes => {
                inflow.unread = Chunk::empty();
                return Ok(RelayStep::NeedBytes);
            }
            BodyEvent::End { skip } => {
                inflow.unread.advance(skip);
                if chunked {
                    put_end(body, out);
                }
                return Ok(RelayStep::Done);
            }
        }
    }
}

/// The part of a chunked piece that follows a [`RelayStep::Send`].
pub fn after_send(chunked: bool, out: &mut BytesMut) {
    if chunked {
        out.put_slice(b"\r\n");
    }
}

/// Ends a body whose own end was the connection's.
pub fn put_end(body: &BodyDecoder, out: &mut BytesMut) {
    out.put_slice(b"0\r\n");
    for line in trailer_fields(body.trailers()) {
        out.put_slice(line);
    }
    out.put_slice(b"\r\n");
}

fn put_piece(inflow: &mut ReadBuffer, take: usize, chunked: bool, out: &mut BytesMut) -> Option<Chunk> {
    if chunked {
        put_chunk_line(out, take);
    }
    if out.len() + take > COPY_BYTES_MAX {
        return Some(inflow.unread.split_to(take));
    }
    out.put_slice(&inflow.unread[..take]);
    inflow.unread.advance(take);
    after_send(chunked, out);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::codec::BodyFraming;

    fn holding(bytes: Vec<u8>) -> ReadBuffer {
        let mut inflow = ReadBuffer::default();
        inflow.unread = bytes.into();
        inflow
    }

    #[test]
    fn a_body_in_chunks_comes_out_in_plain_chunks_without_extensions() {
        let mut inflow = holding(b"3;x=y\r\nabc\r\n0\r\nX-Sum: 1\r\nHost: evil\r\n\r\nGET".to_vec());
        let mut out = BytesMut::new();
        let mut body = BodyDecoder::new(BodyFraming::Chunked);
        assert!(matches!(step(&mut inflow, &mut body, true, &mut out), Ok(RelayStep::Done)));
        assert_eq!(out, "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n");
        assert_eq!(&*inflow.unread, b"GET");
    }

    #[test]
    fn a_large_piece_is_handed_out_and_a_small_one_copied() {
        let mut out = BytesMut::from(&b"head"[..]);
        let mut body = BodyDecoder::new(BodyFraming::Length(COPY_BYTES_MAX as u64 + 3));
        let mut inflow = holding(vec![b'x'; COPY_BYTES_MAX]);
        let Ok(RelayStep::Send(large)) = step(&mut inflow, &mut body, false, &mut out) else { panic!("copied") };
        assert_eq!((large.len(), out.as_ref()), (COPY_BYTES_MAX, b"head".as_slice()));
        assert!(matches!(step(&mut inflow, &mut body, false, &mut out), Ok(RelayStep::NeedBytes)));

        inflow = holding(b"yyyGET".to_vec());
        out.clear();
        assert!(matches!(step(&mut inflow, &mut body, false, &mut out), Ok(RelayStep::Done)));
        assert_eq!((out.as_ref(), &*inflow.unread), (b"yyy".as_slice(), b"GET".as_slice()));
    }
}
