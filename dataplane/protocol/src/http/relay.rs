//! Relays a body from one connection to another piece by piece: it buffers one received chunk and one outgoing buffer,
//! whatever the size of the body.

use bytes::{BufMut, BytesMut};
use codec::http::{BodyDecoder, BodyEvent, MalformedHttp, put_chunk_line, trailer_fields};
use ring::Chunk;

use super::buffers::ReadBuffer;
use super::limits::COPY_BYTES_MAX;

/// The next step of a relay.
#[derive(Debug)]
pub enum RelayStep {
    /// The buffered bytes are used up.
    NeedBytes,
    /// All of it is in the buffer (or was sent).
    Done,
    /// Too large to copy: send the buffer, then this chunk, then call again.
    Send(Chunk),
}

/// Moves the body bytes in `read_buffer` into `out`, up to a piece that is better sent without a copy. With `chunked`
/// every piece becomes a chunk.
pub fn step(
    read_buffer: &mut ReadBuffer,
    body: &mut BodyDecoder,
    chunked: bool,
    out: &mut BytesMut,
) -> Result<RelayStep, MalformedHttp> {
    loop {
        match body.next(&read_buffer.unread)? {
            BodyEvent::Data { skip, take } => {
                read_buffer.unread.advance(skip);
                if let Some(large) = put_piece(read_buffer, take, chunked, out) {
                    return Ok(RelayStep::Send(large));
                }
            }
            BodyEvent::NeedBytes => {
                read_buffer.unread = Chunk::empty();
                return Ok(RelayStep::NeedBytes);
            }
            BodyEvent::End { skip } => {
                read_buffer.unread.advance(skip);
                if chunked {
                    put_end(body, out);
                }
                return Ok(RelayStep::Done);
            }
        }
    }
}

/// The end of a chunk that follows a [`RelayStep::Send`].
pub fn after_send(chunked: bool, out: &mut BytesMut) {
    if chunked {
        out.put_slice(b"\r\n");
    }
}

/// Ends a body that ended with its connection.
pub fn put_end(body: &BodyDecoder, out: &mut BytesMut) {
    out.put_slice(b"0\r\n");
    for line in trailer_fields(body.trailers()) {
        out.put_slice(line);
    }
    out.put_slice(b"\r\n");
}

fn put_piece(read_buffer: &mut ReadBuffer, take: usize, chunked: bool, out: &mut BytesMut) -> Option<Chunk> {
    if chunked {
        put_chunk_line(out, take);
    }
    if out.len() + take > COPY_BYTES_MAX {
        return Some(read_buffer.unread.split_to(take));
    }
    out.put_slice(&read_buffer.unread[..take]);
    read_buffer.unread.advance(take);
    after_send(chunked, out);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::http::BodyFraming;

    fn holding(bytes: Vec<u8>) -> ReadBuffer {
        let mut read_buffer = ReadBuffer::default();
        read_buffer.unread = bytes.into();
        read_buffer
    }

    #[test]
    fn chunked_body_is_rewritten_without_extensions() {
        let mut read_buffer = holding(b"3;x=y\r\nabc\r\n0\r\nX-Sum: 1\r\nHost: evil\r\n\r\nGET".to_vec());
        let mut out = BytesMut::new();
        let mut body = BodyDecoder::new(BodyFraming::Chunked);
        assert!(matches!(step(&mut read_buffer, &mut body, true, &mut out), Ok(RelayStep::Done)));
        assert_eq!(out, "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n");
        assert_eq!(&*read_buffer.unread, b"GET");
    }

    #[test]
    fn large_piece_is_returned_and_small_one_copied() {
        let mut out = BytesMut::from(&b"head"[..]);
        let mut body = BodyDecoder::new(BodyFraming::Length(COPY_BYTES_MAX as u64 + 3));
        let mut read_buffer = holding(vec![b'x'; COPY_BYTES_MAX]);
        let Ok(RelayStep::Send(large)) = step(&mut read_buffer, &mut body, false, &mut out) else { panic!("copied") };
        assert_eq!((large.len(), out.as_ref()), (COPY_BYTES_MAX, b"head".as_slice()));
        assert!(matches!(step(&mut read_buffer, &mut body, false, &mut out), Ok(RelayStep::NeedBytes)));

        read_buffer = holding(b"yyyGET".to_vec());
        out.clear();
        assert!(matches!(step(&mut read_buffer, &mut body, false, &mut out), Ok(RelayStep::Done)));
        assert_eq!((out.as_ref(), &*read_buffer.unread), (b"yyy".as_slice(), b"GET".as_slice()));
    }
}
