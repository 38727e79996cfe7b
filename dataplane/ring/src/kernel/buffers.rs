//! The provided-buffer ring: a queue in shared memory from which the kernel takes the buffer for
//! the bytes that arrive next.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::chunk::Chunk;
use crate::pool::{Pool, Region};

/// The one buffer group of a ring.
pub(super) const GROUP: u16 = 0;

pub(super) struct Buffers {
    /// `pool.count()` entries of 16 bytes; the kernel reads them, only we write.
    ring: Region,
    pool: Rc<Pool>,
    /// Where the next entry goes, and one past what the kernel may read. Wraps.
    tail: u16,
}

impl Buffers {
    pub(super) fn register(uring: &IoUring, pool: Rc<Pool>) -> io::Result<Self> {
        let ring = Region::new(usize::from(pool.count()) * size_of::<BufRingEntry>())?;
        let mut buffers = Self { ring, pool, tail: 0 };
        let address = buffers.ring.start.as_ptr() as u64;
        // SAFETY: a page-aligned region of exactly this many entries. It lives in `Buffers`, which is
        // kept beside the ring and dropped after it.
        unsafe {
            uring.submitter().register_buf_ring_with_flags(address, buffers.pool.count(), GROUP, 0)?;
        }
        for id in 0..buffers.pool.count() {
            buffers.provide(id);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// Hands to the kernel what chunks have given back.
    pub(super) fn refill(&mut self) {
        let pool = Rc::clone(&self.pool);
        if pool.give_back(|id| self.provide(id)) {
            self.publish();
        }
    }

    /// The chunk in buffer `id`, which the kernel has filled.
    ///
    /// # Safety
    /// The kernel has just named this buffer.
    pub(super) unsafe fn filled(&self, id: u16, bytes: u32) -> Chunk {
        // SAFETY: a buffer that the kernel names was provided and is not lent out; it leaves the
        // kernel's ring by that, and comes into it again only through `refill`.
        unsafe { self.pool.lend(id, bytes) }
    }

    /// Writes one entry at the tail. At most `count` buffers exist, so the slot is free.
    fn provide(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.pool.count() - 1));
        let base = self.ring.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: slot < count, so the entry is inside the region, which is aligned to a page. The
        // kernel does not look at it before `publish`. Fields are set one by one because the word
        // after the first entry's id is the ring's tail, which must keep its value.
        let entry = unsafe { &mut *base.add(slot) };
        entry.set_addr(self.pool.buffer(id).as_ptr() as u64);
        entry.set_len(self.pool.buffer_bytes());
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        let base = self.ring.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: `base` is the first entry of the region. The tail is a naturally aligned u16 that
        // only we write; the kernel reads it with acquire order, hence the release.
        unsafe {
            let tail = BufRingEntry::tail(base).cast_mut().cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
