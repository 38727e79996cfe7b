//! The provided-buffer ring: a queue in shared memory from which the kernel takes the buffers for arriving
//! bytes.
//!
//! The kernel takes buffers in the order in which they were provided, so it gets no more of them than the
//! expected arrivals, and the last returned buffer is provided first: few buffers are reused and stay in
//! the processor's caches, and the pages of the others are never touched.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::chunk::Chunk;
use crate::pool::{BufferPool, MemoryRegion};

/// Minimum number of provided buffers, if there are so many: a turn of a busy core brings some 20 to 60
/// arrivals, so that a burst after an idle time finds enough, and their pages are 256 KiB.
const PROVIDED_LEAST: u16 = 64;

/// The one buffer group of a ring.
pub(super) const GROUP: u16 = 0;

pub(super) struct ProvidedBuffers {
    /// `pool.count()` entries of 16 bytes; the kernel only reads them.
    ring: MemoryRegion,
    pool: Rc<BufferPool>,
    /// Position of the next entry, one past what the kernel may read. Wraps.
    tail: u16,
    /// Buffers neither provided to the kernel nor held by a chunk; the one used last on top.
    spare: Vec<u16>,
    /// Number of buffers provided to the kernel.
    provided: u16,
    /// Target number: twice the arrivals of the busiest of the last turns.
    wanted: u16,
    /// Filled since the last turn.
    arrived: u16,
}

impl ProvidedBuffers {
    pub(super) fn register(uring: &IoUring, pool: Rc<BufferPool>) -> io::Result<Self> {
        let ring = MemoryRegion::new(usize::from(pool.count()) * size_of::<BufRingEntry>())?;
        let spare = (0..pool.count()).rev().collect();
        let mut buffers = Self { ring, pool, tail: 0, spare, provided: 0, wanted: 0, arrived: 0 };
        let address = buffers.ring.start.as_ptr() as u64;
        // SAFETY: a page-aligned region of exactly this many entries. It lives in `ProvidedBuffers`, which
        // is stored next to the ring and dropped after it.
        unsafe {
            uring.submitter().register_buf_ring_with_flags(address, buffers.pool.count(), GROUP, 0)?;
        }
        buffers.refill();
        Ok(buffers)
    }

    /// Takes the buffers that chunks have returned, and provides the target number to the kernel. Once per
    /// turn. When more arrives at once than expected some receives end without a buffer, start again, and
    /// find twice as many.
    pub(super) fn refill(&mut self) {
        self.pool.give_back(|id| self.spare.push(id));
        let busy = std::mem::take(&mut self.arrived).saturating_mul(2);
        self.wanted = busy.max(self.wanted.saturating_sub(1)).max(PROVIDED_LEAST);
        if self.provided >= self.wanted || self.spare.is_empty() {
            return;
        }
        while self.provided < self.wanted
            && let Some(id) = self.spare.pop()
        {
            self.provide(id);
        }
        self.publish();
    }

    /// The chunk in buffer `id`, which the kernel has filled.
    ///
    /// # Safety The kernel has just named this buffer.
    pub(super) unsafe fn filled(&mut self, id: u16, bytes: u32) -> Chunk {
        self.provided -= 1;
        self.arrived = self.arrived.saturating_add(1);
        // SAFETY: a buffer that the kernel names was provided and is not lent out; naming it removes it
        // from the kernel's ring, and it returns there only through `refill`.
        Chunk::leased(unsafe { self.pool.lend(id) }, bytes)
    }

    /// Writes one entry at the tail. At most `count` buffers exist, so the slot is free.
    fn provide(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.pool.count() - 1));
        let base = self.ring.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: slot < count, so the entry is inside the region, which is aligned to a page. The kernel
        // does not read it before `publish`. Fields are set one by one because the word after the first
        // entry's id is the ring's tail, which must keep its value.
        let entry = unsafe { &mut *base.add(slot) };
        entry.set_addr(self.pool.buffer(id).as_ptr() as u64);
        entry.set_len(self.pool.buffer_bytes());
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        self.provided += 1;
    }

    fn publish(&self) {
        let base = self.ring.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: `base` is the first entry of the region. The tail is a naturally aligned u16 that only
        // this code writes; the kernel reads it with acquire order, so the store is a release.
        unsafe {
            let tail = BufRingEntry::tail(base).cast_mut().cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
