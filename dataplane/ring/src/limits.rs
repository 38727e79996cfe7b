//! The limits of the ring, each with its reason.

use std::sync::Arc;

use crate::heartbeat::Heartbeat;

/// The interface of the kernel that a loop uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoDriver {
    #[default]
    IoUring,
    /// For hosts that forbid io_uring: a few more system calls a request.
    Epoll,
}

/// Limits of one ring. The defaults suit a core that serves some thousands of connections.
#[derive(Debug, Clone)]
pub struct RingOptions {
    /// How the loop waits for sockets and files. Not a limit, but chosen together with them.
    pub driver: IoDriver,
    /// Submission slots. A full queue costs one more system call, not an error, so this is the largest
    /// useful batch.
    pub submissions_max: u32,
    /// Completion slots: a multishot receive can complete many times per submission. The kernel keeps what
    /// does not fit, so this bounds speed, not correctness.
    pub completions_max: u32,
    /// Bytes in one receive buffer: one TLS record, and few operations for a large body. The pages of a
    /// buffer are only touched as far as bytes arrive.
    pub chunk_bytes: u32,
    /// Receive buffers of this ring, a power of two; times `chunk_bytes` it bounds the ring's receive
    /// memory (16 MiB by default). While all are in use, each receive allocates 4 KiB.
    pub chunks: u16,
    /// Chunks that may queue on one stream before its receive is paused, so that one unread peer cannot
    /// take all buffers. The kernel may deliver a burst (at most 32 at a time) before the pause takes
    /// effect.
    pub recv_chunks_max: usize,
    /// Connections that may wait between the kernel's accept and the caller's; beyond, accepting pauses and
    /// the rest waits in the kernel's backlog.
    pub accepted_max: usize,
    /// Sockets whose descriptor would have this number or a higher one are not opened, and accepted ones
    /// must be closed: the descriptors between this and the process's limit are reserved for files. The
    /// kernel assigns the lowest free number, so a high one shows how many are open.
    pub sockets_max: i32,
    /// What other threads see of the loop. For one loop only: clones of these options share it.
    pub heartbeat: Arc<Heartbeat>,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self {
            driver: IoDriver::default(),
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

/// Task polls before the loop handles completions again: small enough that a task that always wakes itself
/// delays a socket by microseconds, large enough that the check (up to one system call) is shared by many
/// polls.
pub(crate) const POLLS_PER_TURN: usize = 128;

/// Steps of expensive work (filters, encodings; some 2 ns each) that tasks begin in one turn: about a
/// millisecond. Further work waits for a later turn, however many tasks have some.
pub const TURN_STEPS_MAX: usize = 512 << 10;

/// Bytes of a receive when all buffers are in use: a request head fits, and ten thousand such receives cost
/// 40 MiB.
pub(crate) const FALLBACK_BUFFER_BYTES: usize = 4096;

/// Backlog of a listener that the ring opens: further connections are rejected by the kernel.
pub(crate) const BACKLOG_MAX: i32 = 4096;

/// Maximum bytes of a detached send: a small response with its head. The kernel has space for that much,
/// unless the peer does not read.
pub(crate) const DETACHED_SEND_BYTES_MAX: usize = 4096;

/// Ended tasks of one type whose memory is kept for the next ones: more than end in one turn of a busy core, some hundred
/// kilobytes for the futures of requests.
pub(crate) const TASKS_KEPT_MAX: usize = 64;
