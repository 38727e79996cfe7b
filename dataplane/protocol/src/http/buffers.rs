//! The two directions of a socket: bytes that were received and not consumed, and bytes to send.

use std::future::Future;
use std::io;

use bytes::BytesMut;
use codec::http::{MalformedHttp, Parsed};
use ring::{Chunk, Ring, Tick, Timeout};

use super::limits::{COPY_BYTES_MAX, HEAD_LOOK_BYTES, REQUEST_LINE_BYTES_MAX};
use crate::tls::ByteStream;

/// Received bytes.
#[derive(Default)]
pub struct ReadBuffer {
    /// Received and not consumed.
    pub unread: Chunk,
    /// The peer has closed its side.
    pub ended: bool,
    /// Bytes ever received.
    pub bytes: u64,
    /// The beginning of a head that did not arrive in one piece.
    pieces: Vec<u8>,
}

/// Why no head could be read.
#[derive(Debug)]
pub enum HeadReadError {
    /// The peer closed before the first byte.
    Ended,
    /// The peer closed inside the head.
    Truncated,
    Malformed(MalformedHttp),
    Broken(io::Error),
}

impl HeadReadError {
    /// The peer's kernel reset the connection, as it does when a process ends with unread bytes.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Broken(why) if why.kind() == io::ErrorKind::ConnectionReset)
    }
}

impl ReadBuffer {
    /// Waits for bytes when none are buffered; `false` once the peer has closed. Cancel-safe: a dropped call loses
    /// nothing.
    pub async fn fill(&mut self, stream: &impl ByteStream) -> io::Result<bool> {
        if !self.unread.is_empty() {
            return Ok(true);
        }
        if self.ended {
            return Ok(false);
        }
        let chunk = stream.recv().await?;
        self.bytes += chunk.len() as u64;
        self.ended = chunk.is_empty();
        self.unread = chunk;
        Ok(!self.ended)
    }

    /// The same in the middle of a message: a peer that waits for an acknowledgement before it sends the rest gets it now.
    pub async fn fill_rest(&mut self, stream: &impl ByteStream) -> io::Result<bool> {
        if self.unread.is_empty() && !self.ended {
            stream.acknowledge();
        }
        self.fill(stream).await
    }

    /// Takes one head off the front. It nearly always is in one piece in the receive buffer and is parsed there; the
    /// pieces of a slow one are collected. Cancel-safe: a dropped call loses nothing.
    pub async fn head(
        &mut self,
        stream: &impl ByteStream,
        parse: impl FnMut(&[u8]) -> Parsed,
    ) -> Result<Chunk, HeadReadError> {
        self.head_noting(stream, parse, || ()).await
    }

    /// The same. `incomplete` is called for received bytes that did not complete the head.
    pub async fn head_noting(
        &mut self,
        stream: &impl ByteStream,
        mut parse: impl FnMut(&[u8]) -> Parsed,
        incomplete: impl Fn(),
    ) -> Result<Chunk, HeadReadError> {
        loop {
            let filled = if self.pieces.is_empty() { self.fill(stream).await } else { self.fill_rest(stream).await };
            if !filled.map_err(HeadReadError::Broken)? {
                return Err(if self.is_between() { HeadReadError::Ended } else { HeadReadError::Truncated });
            }
            let may_be_complete = self.may_hold_head();
            if !self.pieces.is_empty() {
                self.pieces.extend_from_slice(&self.unread);
                self.unread = Chunk::empty();
            }
            if may_be_complete {
                match parse(if self.pieces.is_empty() { &self.unread } else { &self.pieces }) {
                    Parsed::Head { bytes } => {
                        if !self.pieces.is_empty() {
                            self.unread = Chunk::from(std::mem::take(&mut self.pieces));
                        }
                        return Ok(self.unread.split_to(bytes));
                    }
                    Parsed::Malformed(why) => return Err(HeadReadError::Malformed(why)),
                    Parsed::NeedBytes => {}
                }
            }
            if self.pieces.is_empty() {
                self.pieces.extend_from_slice(&std::mem::take(&mut self.unread));
            }
            incomplete();
        }
    }

    /// Whether the received bytes can complete the head: they contain a line feed, or pass a limit. Otherwise a head
    /// that arrives byte by byte would be parsed for every byte.
    fn may_hold_head(&self) -> bool {
        let (before, after) = (self.pieces.len(), self.pieces.len() + self.unread.len());
        before == 0
            || (before..after).contains(&REQUEST_LINE_BYTES_MAX)
            || before / HEAD_LOOK_BYTES != after / HEAD_LOOK_BYTES
            || memchr::memchr(b'\n', &self.unread).is_some()
    }

    /// Whether no byte of a next head was received.
    #[inline]
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.unread.is_empty() && self.pieces.is_empty()
    }

    /// Copies buffered bytes out of the ring's receive buffer, before a wait of unknown length: the buffers are few and
    /// shared by all connections.
    #[inline]
    pub fn detach(&mut self) {
        if !self.unread.is_empty() {
            self.unread = Chunk::from(self.unread.to_vec());
        }
    }
}

/// Bytes to send. The buffer is reused as soon as the kernel has released it.
#[derive(Default)]
pub struct WriteBuffer {
    pub buffer: BytesMut,
    /// Bytes ever sent.
    pub bytes: u64,
}

impl WriteBuffer {
    /// Sends what is buffered.
    pub async fn flush(&mut self, stream: &impl ByteStream) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.buffer.split().freeze();
        self.bytes += bytes.len() as u64;
        stream.send(bytes.into()).await
    }

    /// Adds `chunk`: a small one is copied behind the buffered bytes, a large one is sent without a copy.
    pub async fn put(&mut self, stream: &impl ByteStream, chunk: Chunk) -> io::Result<()> {
        if self.buffer.len() + chunk.len() <= COPY_BYTES_MAX {
            self.buffer.extend_from_slice(&chunk);
            return Ok(());
        }
        self.send_whole(stream, chunk).await
    }

    /// Sends the buffered bytes, then `chunk` without a copy.
    pub async fn send_whole(&mut self, stream: &impl ByteStream, chunk: Chunk) -> io::Result<()> {
        self.flush(stream).await?;
        self.bytes += chunk.len() as u64;
        stream.send(chunk).await
    }
}

/// Runs `future` until `at`, if that is set.
pub fn by<F: Future>(ring: &Ring, at: Option<Tick>, future: F) -> Timeout<F> {
    ring.within(at, future)
}

/// The earlier of two optional moments.
#[inline]
#[must_use]
pub fn earlier(one: Option<Tick>, other: Option<Tick>) -> Option<Tick> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
