//! The two directions of a socket: bytes that arrived and are not consumed, bytes that are to leave.

use std::future::Future;
use std::io;

use bytes::BytesMut;
use ring::{Chunk, Ring, Tick, Timeout};

use super::codec::{MalformedHttp, Parsed};
use super::limits::{COPY_BYTES_MAX, HEAD_LOOK_BYTES, REQUEST_LINE_BYTES_MAX};
use crate::tls::ByteStream;

/// What has arrived.
#[derive(Default)]
pub struct ReadBuffer {
    /// Arrived and not consumed.
    pub unread: Chunk,
    /// The peer has finished.
    pub ended: bool,
    /// Bytes ever received.
    pub bytes: u64,
    /// The front of a head that did not come in one piece.
    pieces: Vec<u8>,
}

/// Why there is no head.
#[derive(Debug)]
pub enum HeadReadError {
    /// The peer finished before the first byte.
    Ended,
    /// ... or in the middle.
    Truncated,
    Malformed(MalformedHttp),
    Broken(io::Error),
}

impl HeadReadError {
    /// The peer's kernel cut the connection, as it does when a process ends that has not read all.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Broken(why) if why.kind() == io::ErrorKind::ConnectionReset)
    }
}

impl ReadBuffer {
    /// Waits for bytes when none are held; `false` once the peer has finished. A call that is dropped
    /// loses nothing.
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

    /// Takes one head off the front. Nearly always it lies in one piece in the receive buffer and is
    /// only looked at there; the pieces of a slow one are collected. A call that is dropped loses nothing.
    pub async fn head(
        &mut self,
        stream: &impl ByteStream,
        parse: impl FnMut(&[u8]) -> Parsed,
    ) -> Result<Chunk, HeadReadError> {
        self.head_noting(stream, parse, || ()).await
    }

    /// The same; `incomplete` is called for bytes that came and were not the head's last.
    pub async fn head_noting(
        &mut self,
        stream: &impl ByteStream,
        mut parse: impl FnMut(&[u8]) -> Parsed,
        incomplete: impl Fn(),
    ) -> Result<Chunk, HeadReadError> {
        loop {
            if !self.fill(stream).await.map_err(HeadReadError::Broken)? {
                return Err(if self.is_between() { HeadReadError::Ended } else { HeadReadError::Truncated });
            }
            let worth_a_look = self.may_hold_head();
            if !self.pieces.is_empty() {
                self.pieces.extend_from_slice(&self.unread);
                self.unread = Chunk::empty();
            }
            if worth_a_look {
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

    /// Whether what is held could change a parser's mind about the pieces: they end in a line feed, or
    /// pass a limit. Else a head that comes byte by byte would be parsed for every byte.
    fn may_hold_head(&self) -> bool {
        let (before, after) = (self.pieces.len(), self.pieces.len() + self.unread.len());
        before == 0
            || (before..after).contains(&REQUEST_LINE_BYTES_MAX)
            || before / HEAD_LOOK_BYTES != after / HEAD_LOOK_BYTES
            || memchr::memchr(b'\n', &self.unread).is_some()
    }

    /// Whether no byte of a next head has come.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.unread.is_empty() && self.pieces.is_empty()
    }

    /// Copies what is held out of the ring's receive buffer, before a wait of unknown length: the
    /// buffers are few and everybody's.
    pub fn detach(&mut self) {
        if !self.unread.is_empty() {
            self.unread = Chunk::from(self.unread.to_vec());
        }
    }
}

/// What is to leave. The buffer is used again as soon as the kernel has let go of it.
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

    /// Adds `chunk`: a small one behind what is buffered, a large one goes from where it lies.
    pub async fn put(&mut self, stream: &impl ByteStream, chunk: Chunk) -> io::Result<()> {
        if self.buffer.len() + chunk.len() <= COPY_BYTES_MAX {
            self.buffer.extend_from_slice(&chunk);
            return Ok(());
        }
        self.send_whole(stream, chunk).await
    }

    /// Sends what is buffered, and `chunk` from where it lies.
    pub async fn send_whole(&mut self, stream: &impl ByteStream, chunk: Chunk) -> io::Result<()> {
        self.flush(stream).await?;
        self.bytes += chunk.len() as u64;
        stream.send(chunk).await
    }
}

/// `future`, until `at` if there is such a moment.
pub fn by<F: Future>(ring: &Ring, at: Option<Tick>, future: F) -> Timeout<F> {
    ring.within(at, future)
}

/// The earlier of two moments that may not be.
#[must_use]
pub fn earlier(one: Option<Tick>, other: Option<Tick>) -> Option<Tick> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
