//! Receive buffers: one region of memory, cut into equal buffers that are lent out as chunks.
//!
//! The driver decides which buffer is filled next; the pool counts how many are in use.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

pub(crate) struct BufferPool {
    memory: MemoryRegion,
    buffer_bytes: u32,
    count: u16,
    /// Buffers that chunks hold now; `out <= count`.
    out: Cell<u16>,
    /// By buffer: the number of chunks that hold it or a part of it. Counted here, so that lending
    /// allocates nothing.
    holders: Box<[Cell<usize>]>,
    /// Returned and not yet passed to the driver.
    returned: RefCell<Vec<u16>>,
}

impl BufferPool {
    pub(crate) fn new(buffer_bytes: u32, count: u16) -> io::Result<Rc<Self>> {
        assert!(buffer_bytes > 0 && count.is_power_of_two(), "the kernel's ring has a power of two");
        Ok(Rc::new(Self {
            memory: MemoryRegion::new(buffer_bytes as usize * usize::from(count))?,
            buffer_bytes,
            count,
            out: Cell::new(0),
            holders: (0..count).map(|_| Cell::new(0)).collect(),
            returned: RefCell::new(Vec::with_capacity(count.into())),
        }))
    }

    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// Address of buffer `id`, for the kernel to write to.
    pub(crate) fn buffer(&self, id: u16) -> NonNull<u8> {
        assert!(id < self.count, "buffer {id} of {}", self.count);
        let offset = self.buffer_bytes as usize * usize::from(id);
        // SAFETY: id is below count (asserted), so the offset is inside the region.
        unsafe { self.memory.start.add(offset) }
    }

    /// Lends out buffer `id`, which the driver has just filled.
    ///
    /// # Safety The buffer is not lent out, and is not written to until it is returned.
    pub(crate) unsafe fn lend(self: &Rc<Self>, id: u16) -> BufferLease {
        assert!(self.holders[usize::from(id)].replace(1) == 0, "a buffer is out once");
        self.out.set(self.out.get() + 1);
        BufferLease { pool: Rc::clone(self), id }
    }

    /// Passes the buffers returned since the last call to `take`, and says whether there were any. `take`
    /// drops no chunk.
    pub(crate) fn give_back(&self, take: impl FnMut(u16)) -> bool {
        let mut returned = self.returned.borrow_mut();
        let any = !returned.is_empty();
        returned.drain(..).for_each(take);
        any
    }

    /// Whether all buffers are in use, as far as the driver has reported.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.out.get() == self.count
    }
}

/// One holder of a lent buffer; its clones hold the same one.
pub(crate) struct BufferLease {
    pool: Rc<BufferPool>,
    id: u16,
}

impl BufferLease {
    /// The whole buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: while a lease lives its buffer has a holder, so it was not returned and is not written to
        // (contract of `lend`), the region lives as long as the pool it holds, and it was zeroed at start,
        // so every byte is initialised.
        unsafe { std::slice::from_raw_parts(self.pool.buffer(self.id).as_ptr(), self.pool.buffer_bytes as usize) }
    }
}

impl BufferLease {
    fn holders(&self) -> &Cell<usize> {
        &self.pool.holders[usize::from(self.id)]
    }
}

impl Clone for BufferLease {
    fn clone(&self) -> Self {
        let more = self.holders().get().checked_add(1).expect("as many chunks do not fit in memory");
        self.holders().set(more);
        Self { pool: Rc::clone(&self.pool), id: self.id }
    }
}

impl Drop for BufferLease {
    fn drop(&mut self) {
        let left = self.holders().get() - 1;
        self.holders().set(left);
        if left == 0 {
            self.pool.out.set(self.pool.out.get() - 1);
            self.pool.returned.borrow_mut().push(self.id);
        }
    }
}

/// Anonymous memory at a page boundary, zero until first written, and not resident until then.
pub(crate) struct MemoryRegion {
    pub(crate) start: NonNull<u8>,
    bytes: usize,
}

impl MemoryRegion {
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        assert!(bytes > 0);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap without MAP_FIXED never maps page zero");
        Ok(Self { start, bytes })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no pointer into it outlives the region.
        let done = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(done, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Chunk;

    impl BufferPool {
        pub(crate) fn copied(self: &Rc<Self>, id: u16, bytes: &[u8]) -> Chunk {
            assert!(bytes.len() <= self.buffer_bytes as usize);
            // SAFETY: tests use each buffer once, and the length was checked.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer(id).as_ptr(), bytes.len());
                Chunk::leased(self.lend(id), bytes.len() as u32)
            }
        }
    }

    #[test]
    fn buffer_is_lent_again_only_after_return() {
        let pool = BufferPool::new(8, 2).unwrap();
        for _ in 0..3 {
            let chunk = pool.copied(1, b"a");
            let (other, third) = (chunk.clone(), chunk.clone());
            drop(chunk);
            drop(third);
            assert!(!pool.give_back(|_| panic!("a holder remains")));
            assert_eq!(&*other, b"a");
            drop(other);
            let mut back = Vec::new();
            assert!(pool.give_back(|id| back.push(id)));
            assert_eq!(back, [1]);
        }
    }

    #[test]
    fn pool_is_exhausted_only_while_all_buffers_are_lent() {
        let pool = BufferPool::new(8, 2).unwrap();
        let first = pool.copied(0, b"a");
        assert!(!pool.is_exhausted());
        let second = pool.copied(1, b"b");
        assert!(pool.is_exhausted());
        drop(first);
        assert!(!pool.is_exhausted());
        drop(second);
    }
}
