//! Counters of one core for responses that the proxy compresses.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of codings, as in `table::ContentCoding::ALL`.
pub const CONTENT_CODINGS: usize = 3;

/// All only rise. Only their core writes them.
#[derive(Debug, Default)]
pub struct CompressionCounters {
    /// Responses by coding, in the order of `table::ContentCoding::ALL`.
    pub responses: [AtomicU64; CONTENT_CODINGS],
    /// Bytes of bodies before and after.
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Responses that went as they were because too many were being compressed.
    pub skipped: AtomicU64,
}

impl CompressionCounters {
    /// So many bytes of a body became so many.
    pub fn passed(&self, before: usize, after: usize) {
        self.bytes_in.fetch_add(before as u64, Relaxed);
        self.bytes_out.fetch_add(after as u64, Relaxed);
    }
}
