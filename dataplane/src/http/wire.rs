//! The two directions of a socket: bytes that arrived and are not consumed, bytes that are to leave.

use std::future::Future;
use std::io;

use bytes::BytesMut;
use ring::{Chunk, Ring, Tick, Within};

use super::codec::{Malformed, Parsed};
use super::limits::{COPY_BYTES_MAX, HEAD_LOOK_BYTES, REQUEST_LINE_BYTES_MAX};
use crate::tls::Pipe;

/// What has arrived.
#[derive(Default)]
pub struct Inflow {
    /// Arrived and not consumed.
    pub held: Chunk,
    /// The peer has finished.
    pub ended: bool,
    /// Bytes ever received.
    pub bytes: u64,
    /// The front of a head that did not come in one piece.
    pieces: Vec<u8>,
}

/// Why there is no head.
#[derive(Debug)]
pub enum HeadFault {
    /// The peer finished before the first byte.
    Ended,
    /// ... or in the middle.
    Truncated,
    Malformed(Malformed),
    Broken(io::Error),
}

impl HeadFault {
    /// The peer's kernel cut the connection, as it does when a process ends that has not read all.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Broken(why) if why.kind() == io::ErrorKind::ConnectionReset)
    }
}

impl Inflow {
    /// Waits for bytes when none are held; `false` once the peer has finished. A call that is dropped
    /// loses nothing.
    pub async fn fill(&mut self, stream: &impl Pipe) -> io::Result<bool> {
        if !self.held.is_empty() {
            return Ok(true);
        }
        if self.ended {
            return Ok(false);
        }
        let chunk = stream.recv().await?;
        self.bytes += chunk.len() as u64;
        self.ended = chunk.is_empty();
        self.held = chunk;
        Ok(!self.ended)
    }

    /// Takes one head off the front. Nearly always it lies in one piece in the receive buffer and is
    /// only looked at there; the pieces of a slow one are collected. A call that is dropped loses nothing.
    pub async fn head(
        &mut self,
        stream: &impl Pipe,
        parse: impl FnMut(&[u8]) -> Parsed,
    ) -> Result<Chunk, HeadFault> {
        self.head_noting(stream, parse, || ()).await
    }

    /// The same; `incomplete` is called for bytes that came and were not the head's last.
    pub async fn head_noting(
        &mut self,
        stream: &impl Pipe,
        mut parse: impl FnMut(&[u8]) -> Parsed,
        incomplete: impl Fn(),
    ) -> Result<Chunk, HeadFault> {
        loop {
            if !self.fill(stream).await.map_err(HeadFault::Broken)? {
                return Err(if self.is_between() { HeadFault::Ended } else { HeadFault::Truncated });
            }
            let worth_a_look = self.is_worth_a_look();
            if !self.pieces.is_empty() {
                self.pieces.extend_from_slice(&self.held);
                self.held = Chunk::empty();
            }
            if worth_a_look {
                match parse(if self.pieces.is_empty() { &self.held } else { &self.pieces }) {
                    Parsed::Head { bytes } => {
                        if !self.pieces.is_empty() {
                            self.held = Chunk::from(std::mem::take(&mut self.pieces));
                        }
                        return Ok(self.held.split_to(bytes));
                    }
                    Parsed::Malformed(why) => return Err(HeadFault::Malformed(why)),
                    Parsed::NeedBytes => {}
                }
            }
            if self.pieces.is_empty() {
                self.pieces.extend_from_slice(&std::mem::take(&mut self.held));
            }
            incomplete();
        }
    }

    /// Whether what is held could change a parser's mind about the pieces: they end in a line feed, or
    /// pass a limit. Else a head that comes byte by byte would be parsed for every byte.
    fn is_worth_a_look(&self) -> bool {
        let (before, after) = (self.pieces.len(), self.pieces.len() + self.held.len());
        before == 0
            || (before..after).contains(&REQUEST_LINE_BYTES_MAX)
            || before / HEAD_LOOK_BYTES != after / HEAD_LOOK_BYTES
            || memchr::memchr(b'\n', &self.held).is_some()
    }

    /// Whether no byte of a next head has come.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.held.is_empty() && self.pieces.is_empty()
    }

    /// Copies what is held out of the ring's receive buffer, before a wait of unknown length: the
    /// buffers are few and everybody's.
    pub fn detach(&mut self) {
        if !self.held.is_empty() {
            self.held = Chunk::from(self.held.to_vec());
        }
    }
}

/// What is to leave. The buffer is used again as soon as the kernel has let go of it.
#[derive(Default)]
pub struct Outflow {
    pub buffer: BytesMut,
    /// Bytes ever sent.
    pub bytes: u64,
}

impl Outflow {
    /// Sends what is buffered.
    pub async fn flush(&mut self, stream: &impl Pipe) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.buffer.split().freeze();
        self.bytes += bytes.len() as u64;
        stream.send(bytes.into()).await
    }

    /// Adds `chunk`: a small one behind what is buffered, a large one goes from where it lies.
    pub async fn put(&mut self, stream: &impl Pipe, chunk: Chunk) -> io::Result<()> {
        if self.buffer.len() + chunk.len() <= COPY_BYTES_MAX {
            self.buffer.extend_from_slice(&chunk);
            return Ok(());
        }
        self.send_whole(stream, chunk).await
    }

    /// Sends what is buffered, and `chunk` from where it lies.
    pub async fn send_whole(&mut self, stream: &impl Pipe, chunk: Chunk) -> io::Result<()> {
        self.flush(stream).await?;
        self.bytes += chunk.len() as u64;
        stream.send(chunk).await
    }
}

/// `future`, until `at` if there is such a moment.
pub fn by<F: Future>(ring: &Ring, at: Option<Tick>, future: F) -> Within<F> {
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
