//! The ring's bounds, each with its reason.

use std::sync::Arc;

use crate::heartbeat::Heartbeat;

/// What one ring may hold. The defaults suit a core that serves some thousands of connections.
#[derive(Debug, Clone)]
pub struct Options {
    /// Submission slots. A full queue costs one more system call, not an error, so this is the size
    /// of the biggest batch that is worth having.
    pub submissions_max: u32,
    /// Completion slots: a multishot receive can answer many times per submission. The kernel keeps
    /// what does not fit, so this bounds speed, not correctness.
    pub completions_max: u32,
    /// Bytes in one receive buffer: one TLS record's worth, and few operations for a large body.
    /// The pages of a buffer are only touched as far as bytes arrive.
    pub chunk_bytes: u32,
    /// Receive buffers of this ring, a power of two; times `chunk_bytes` it bounds the ring's
    /// receive memory (16 MiB by default). While all are out, each receive brings 4 KiB.
    pub chunks: u16,
    /// Chunks that may queue on one stream before its receive is paused, so that one peer nobody
    /// listens to cannot take all buffers. The kernel may deliver a burst (32 at most at a time)
    /// before it hears of the pause.
    pub recv_chunks_max: usize,
    /// Connections that may wait between the kernel's accept and ours; beyond, accepting pauses and
    /// the kernel's own backlog holds the rest.
    pub accepted_max: usize,
    /// Sockets whose descriptor would have this number or a higher one are not opened, and those that were accepted are to be
    /// closed: what is left below the process's limit is for files. The kernel gives out the lowest number that is
    /// free, so a high one says how many are open.
    pub sockets_max: i32,
    /// What other threads see of the loop. Of one loop only: clones of these options share it.
    pub heartbeat: Arc<Heartbeat>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            submissions_max: 1024,
            completions_max: 4096,
            chunk_bytes: 16 * 1024,
            chunks: 1024,
            recv_chunks_max: 8,
            accepted_max: 256,
            sockets_max: i32::MAX,
            heartbeat: Arc::default(),
        }
    }
}

/// Task polls before the loop looks at its completions again: small enough that a task that always
/// wakes itself delays a socket by microseconds, large enough that the look (up to one system call)
/// is shared by many polls.
pub(crate) const POLLS_PER_TURN: usize = 128;

/// Bytes of a receive that found all buffers out: a request head fits, and ten thousand such receives
/// cost 40 MiB.
pub(crate) const ROOM_BYTES: usize = 4096;

/// Connections the kernel may hold for a listener that we open ourselves, before it refuses more.
pub(crate) const BACKLOG_MAX: i32 = 4096;

/// Bytes of a post at most: a small answer with its head. The kernel has room for so many, unless the peer does not read.
pub(crate) const POST_BYTES_MAX: usize = 4096;
