//! Reads HTTP/1.1 responses: bytes in, responses out. The content is counted and dropped.
//!
//! Memory is bounded whatever the server sends: a head that is not complete is kept up to the parser's limit, trailers up to
//! theirs, and a body is not kept at all.

use codec::http::{BodyDecoder, BodyEvent, MalformedHttp, Method, Parsed, ResponseHead, parse_response};

use crate::limits::{INTERIM_RESPONSES_MAX, REPEATED_HEAD_BYTES_MAX};

/// A response that has arrived whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompleteResponse {
    pub(crate) status: u16,
    /// Bytes received for it, with heads and framing.
    pub(crate) bytes: u64,
    /// The connection can carry another request.
    pub(crate) keep_alive: bool,
    /// The status of gRPC, which comes beside that of HTTP.
    pub(crate) grpc_status: Option<u16>,
}

/// The decoder of one connection.
#[derive(Debug)]
pub(crate) struct ResponseDecoder {
    asked: Method,
    head: ResponseHead,
    /// The bytes of `head`, if it was final and short. A server's heads differ in their date only, once a second, and equal bytes
    /// need no parser.
    parsed: Vec<u8>,
    /// Of a head that did not arrive in one piece.
    pieces: Vec<u8>,
    body: Option<BodyDecoder>,
    interim: usize,
    bytes: u64,
}

impl ResponseDecoder {
    pub(crate) fn new(asked: Method) -> Self {
        Self {
            asked,
            head: ResponseHead::default(),
            parsed: Vec::new(),
            pieces: Vec::new(),
            body: None,
            interim: 0,
            bytes: 0,
        }
    }

    /// Takes the next received bytes. `None`: more are needed.
    pub(crate) fn push(&mut self, received: &[u8]) -> Result<Option<CompleteResponse>, MalformedHttp> {
        self.bytes += received.len() as u64;
        if self.body.is_some() {
            return self.push_body(received);
        }
        if self.pieces.is_empty() {
            if !self.parsed.is_empty() && received.starts_with(&self.parsed) {
                let rest = &received[self.parsed.len()..];
                self.body = Some(BodyDecoder::of_response(self.head.framing));
                return self.push_body(rest);
            }
            return match self.take_head(received)? {
                Some(rest) => self.push_body(rest),
                None => Ok(None),
            };
        }
        let has_line_end = received.contains(&b'\n');
        self.pieces.extend_from_slice(received);
        // A head that arrives byte by byte would be parsed for every byte.
        if !has_line_end && self.pieces.len() < self.head.limits.bytes() {
            return Ok(None);
        }
        let pieces = std::mem::take(&mut self.pieces);
        match self.take_head(&pieces)? {
            Some(rest) => self.push_body(rest),
            None => Ok(None),
        }
    }

    /// The peer has closed its side. The response, if it ends so.
    pub(crate) fn close(&mut self) -> Option<CompleteResponse> {
        let may_close = self.body.as_ref().is_some_and(BodyDecoder::may_close);
        may_close.then(|| CompleteResponse { keep_alive: false, ..self.finish() })
    }

    /// Parses heads up to the final one; returns what follows it. An incomplete one is kept.
    fn take_head<'a>(&mut self, mut received: &'a [u8]) -> Result<Option<&'a [u8]>, MalformedHttp> {
        self.parsed.clear();
        loop {
            match parse_response(received, self.asked, &mut self.head) {
                Parsed::Malformed(why) => return Err(why),
                Parsed::NeedBytes => {
                    self.pieces.extend_from_slice(received);
                    return Ok(None);
                }
                Parsed::Head { bytes } => {
                    let head = &received[..bytes];
                    received = &received[bytes..];
                    if !self.head.is_interim() {
                        if bytes <= REPEATED_HEAD_BYTES_MAX {
                            self.parsed.extend_from_slice(head);
                        }
                        self.body = Some(BodyDecoder::of_response(self.head.framing));
                        return Ok(Some(received));
                    }
                    self.interim += 1;
                    if self.interim > INTERIM_RESPONSES_MAX {
                        return Err(MalformedHttp::TooManyInterim);
                    }
                    if received.is_empty() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn push_body(&mut self, mut rest: &[u8]) -> Result<Option<CompleteResponse>, MalformedHttp> {
        let Some(body) = &mut self.body else { return Ok(None) };
        loop {
            match body.next(rest)? {
                BodyEvent::Data { skip, take } => rest = &rest[skip + take..],
                BodyEvent::NeedBytes => return Ok(None),
                BodyEvent::End { skip } => {
                    let excess = rest.len() - skip;
                    self.bytes -= excess as u64;
                    let response = self.finish();
                    // Bytes that no request has asked for: what they belong to is unknown.
                    let keep_alive = response.keep_alive && excess == 0;
                    return Ok(Some(CompleteResponse { keep_alive, ..response }));
                }
            }
        }
    }

    /// Ends this response, and begins the next.
    fn finish(&mut self) -> CompleteResponse {
        self.body = None;
        self.interim = 0;
        let status = self.head.status;
        let keep_alive = self.head.keep_alive && status != 101;
        CompleteResponse { status, bytes: std::mem::take(&mut self.bytes), keep_alive, grpc_status: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Outcome = Result<Option<CompleteResponse>, MalformedHttp>;

    /// Pushes `input` by pieces of `step` bytes, up to the first response or error.
    fn read(input: &[u8], step: usize) -> Outcome {
        let mut decoder = ResponseDecoder::new(Method::Get);
        for piece in input.chunks(step) {
            if let Some(response) = decoder.push(piece)? {
                return Ok(Some(response));
            }
        }
        Ok(decoder.close())
    }

    fn ok(status: u16, bytes: usize, keep_alive: bool) -> Outcome {
        Ok(Some(CompleteResponse { status, bytes: bytes as u64, keep_alive, grpc_status: None }))
    }

    #[test]
    fn response_ends_where_its_framing_says() {
        for (input, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", ok(200, 43, true)),
            ("HTTP/1.1 204 No Content\r\n\r\n", ok(204, 27, true)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", ok(200, 62, true)),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ok(200, 63, true)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", ok(200, 57, false)),
            ("HTTP/1.0 200 OK\r\n\r\nuntil the end", ok(200, 32, false)),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", ok(101, 36, false)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", Ok(None)),
            ("HTTP/1.1 200 OK\r\nContent-Le", Ok(None)),
            ("", Ok(None)),
        ] {
            for step in 1..=input.len().max(1) {
                assert_eq!(read(input.as_bytes(), step), expected, "{input:?} by {step}");
            }
        }
    }

    #[test]
    fn bytes_after_a_response_end_the_connection() {
        let mut decoder = ResponseDecoder::new(Method::Get);
        let found = decoder.push(b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(found, ok(204, 27, false));
    }

    #[test]
    fn decoder_reads_one_response_after_the_other() {
        let mut decoder = ResponseDecoder::new(Method::Get);
        for _ in 0..3 {
            assert_eq!(decoder.push(b"HTTP/1.1 200 OK\r\nContent-Le"), Ok(None));
            assert_eq!(decoder.push(b"ngth: 2\r\n\r\na"), Ok(None));
            assert_eq!(decoder.push(b"b"), ok(200, 40, true));
        }
    }

    #[test]
    fn repeated_head_gives_the_same_as_the_first() {
        let with_date = |date, length| format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n");
        let mut decoder = ResponseDecoder::new(Method::Get);
        for (date, length) in [(1, 2), (1, 2), (2, 2), (2, 2), (2, 1), (1, 2)] {
            let head = with_date(date, length);
            let whole = head.clone() + &"x".repeat(length);
            assert_eq!(decoder.push(whole.as_bytes()), ok(200, whole.len(), true));
            assert_eq!(decoder.push(head.as_bytes()), Ok(None));
            assert_eq!(decoder.push(&whole.as_bytes()[head.len()..]), ok(200, whole.len(), true));
        }
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".to_owned() + &with_date(3, 0);
        for _ in 0..2 {
            assert_eq!(decoder.push(interim.as_bytes()), ok(200, interim.len(), true));
        }
    }

    #[test]
    fn hostile_response_is_an_error_with_bounded_memory() {
        let endless_head = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &b"x".repeat(1 << 20)].concat();
        let endless_fields = [b"HTTP/1.1 200 OK\r\n".as_slice(), &b"a: b\r\n".repeat(1 << 16)].concat();
        let interim = b"HTTP/1.1 103 Early\r\n\r\n".repeat(INTERIM_RESPONSES_MAX + 1);
        let extension = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;".to_vec();
        let extension = [extension, b"x".repeat(1 << 16)].concat();
        let trailers = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".to_vec();
        let trailers = [trailers, b"a: b\r\n".repeat(1 << 16)].concat();
        for (input, why) in [
            (endless_head, MalformedHttp::HeadTooLarge),
            (endless_fields, MalformedHttp::TooManyFields),
            (interim, MalformedHttp::TooManyInterim),
            (extension, MalformedHttp::ChunkExtension),
            (trailers, MalformedHttp::TrailersTooLarge),
            (b"SSH-2.0-OpenSSH\r\n".to_vec(), MalformedHttp::StatusLine),
        ] {
            for step in [7, 4096, input.len()] {
                let mut decoder = ResponseDecoder::new(Method::Get);
                let outcome = input.chunks(step).find_map(|piece| {
                    let outcome = decoder.push(piece);
                    let kept_max = decoder.head.limits.bytes() + step;
                    assert!(decoder.pieces.len() <= kept_max, "{} bytes are kept", decoder.pieces.len());
                    outcome.err()
                });
                assert_eq!(outcome, Some(why), "by {step}");
            }
        }
    }

    #[test]
    fn endless_chunk_is_counted_and_not_kept() {
        let mut decoder = ResponseDecoder::new(Method::Get);
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert_eq!(decoder.push(head), Ok(None));
        for _ in 0..1_000 {
            assert_eq!(decoder.push(&[b'x'; 4096]), Ok(None));
        }
        assert_eq!(decoder.pieces.capacity(), 0);
        assert_eq!(decoder.bytes, head.len() as u64 + 4_096_000);
        assert_eq!(decoder.close(), None);
    }

    fn parts() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            Just(b"HTTP/1.1 200 OK\r\n".to_vec()),
            Just(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
            Just(b"Content-Length: 3\r\n".to_vec()),
            Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
            Just(b"Connection: close\r\n".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"3\r\nabc\r\n".to_vec()),
            Just(b"0\r\n\r\n".to_vec()),
            Just(b"abc".to_vec()),
            prop::collection::vec(any::<u8>(), 0..8),
        ];
        prop::collection::vec(part, 0..9).prop_map(|parts| parts.concat())
    }

    proptest! {
        /// What is read does not depend on the split, for any bytes.
        #[test]
        fn any_bytes_give_the_same_for_any_split(input in parts(), step in 1usize..30) {
            let whole = read(&input, usize::MAX);
            let split = read(&input, step);
            // Bytes behind a response are noticed only if they come together with its end, and a malformed line only once it ends.
            let without_excess = |outcome: Outcome| outcome.ok().flatten().map(|found| (found.status, found.bytes));
            prop_assert_eq!(without_excess(whole), without_excess(split));
        }
    }
}
