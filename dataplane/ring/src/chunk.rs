//! Owned bytes on their way through a core.
//!
//! A chunk received from a socket is in a receive buffer of the ring and returns it when its last part is
//! dropped. Forwarding sends it from there: nothing is copied.

use std::fmt;
use std::ops::Deref;

use bytes::{Buf, Bytes};

use crate::pool::BufferLease;

/// Bytes with a stable address while they are owned, wherever the `Chunk` itself is moved.
#[derive(Clone)]
pub struct Chunk(ChunkStorage);

#[derive(Clone)]
enum ChunkStorage {
    /// Part of a receive buffer; `start <= end <= buffer length`.
    Lease {
        lease: BufferLease,
        start: u32,
        end: u32,
    },
    Bytes(Bytes),
}

impl Chunk {
    /// No bytes. From [`recv`](crate::RingStream::recv) it means that the peer has finished.
    #[must_use]
    pub const fn empty() -> Self {
        Self(ChunkStorage::Bytes(Bytes::new()))
    }

    pub(crate) fn leased(lease: BufferLease, bytes: u32) -> Self {
        assert!(bytes as usize <= lease.bytes().len(), "the kernel filled no more than the buffer");
        Self(ChunkStorage::Lease { lease, start: 0, end: bytes })
    }

    /// Removes the first `count` bytes; panics when there are fewer. An empty rest releases its buffer: a
    /// connection keeps the rest while it is idle, and the buffers are few.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "cannot skip {count} of {} bytes", self.len());
        if count == self.len() {
            *self = Self::empty();
            return;
        }
        match &mut self.0 {
            ChunkStorage::Lease { start, .. } => *start += count as u32,
            ChunkStorage::Bytes(bytes) => bytes.advance(count),
        }
    }

    /// Keeps the first `count` bytes; does nothing when there are no more.
    pub fn truncate(&mut self, count: usize) {
        if count < self.len() {
            match &mut self.0 {
                ChunkStorage::Lease { start, end, .. } => *end = *start + count as u32,
                ChunkStorage::Bytes(bytes) => bytes.truncate(count),
            }
        }
    }

    /// Splits off the first `count` bytes as a separate chunk that shares the memory; panics when there are
    /// fewer.
    #[must_use]
    pub fn split_to(&mut self, count: usize) -> Self {
        if count == self.len() {
            return std::mem::take(self);
        }
        let mut front = self.clone();
        self.advance(count);
        front.truncate(count);
        front
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ChunkStorage::Lease { lease, start, end } => &lease.bytes()[*start as usize..*end as usize],
            ChunkStorage::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        Self(ChunkStorage::Bytes(bytes.into()))
    }
}

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self(ChunkStorage::Bytes(bytes))
    }
}

impl From<&'static [u8]> for Chunk {
    fn from(bytes: &'static [u8]) -> Self {
        Self(ChunkStorage::Bytes(Bytes::from_static(bytes)))
    }
}

impl<const N: usize> From<&'static [u8; N]> for Chunk {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::BufferPool;

    fn pieces(mut chunk: Chunk) {
        let front = chunk.split_to(2);
        assert_eq!((&*front, &*chunk), (&b"ab"[..], &b"cdef"[..]));
        chunk.truncate(9);
        chunk.truncate(3);
        chunk.advance(1);
        assert_eq!(&*chunk, b"de");
        assert!(chunk.split_to(0).is_empty());
        chunk.advance(2);
        assert!(chunk.is_empty());
    }

    #[test]
    fn chunk_operations_agree_for_every_storage() {
        pieces(Chunk::from(b"abcdef"));
        pieces(Chunk::from(b"abcdef".to_vec()));
        pieces(Chunk::from(Bytes::from_static(b"abcdef")));
        let pool = BufferPool::new(8, 2).unwrap();
        pieces(pool.copied(0, b"abcdef"));
    }

    #[test]
    fn buffer_returns_when_last_part_is_dropped() {
        let pool = BufferPool::new(8, 2).unwrap();
        let mut chunk = pool.copied(1, b"abcdef");
        let front = chunk.split_to(3);
        drop(chunk);
        assert!(!pool.give_back(drop));
        assert_eq!(&*front, b"abc");
        drop(front);
        assert!(pool.give_back(|id| assert_eq!(id, 1)));
    }

    #[test]
    fn empty_rest_holds_no_buffer() {
        let pool = BufferPool::new(8, 2).unwrap();
        let mut rest = pool.copied(0, b"abc");
        drop(rest.split_to(3));
        assert!(rest.is_empty() && pool.give_back(drop));
        let mut rest = pool.copied(1, b"abc");
        rest.advance(3);
        assert!(rest.is_empty() && pool.give_back(drop));
    }
}
