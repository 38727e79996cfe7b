//! The simulated kernel's side of the receive buffers.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::chunk::Chunk;
use crate::pool::BufferPool;

/// Where a receive stores its bytes.
#[derive(Clone, Copy)]
pub(super) enum SimReceiveTarget {
    /// In any free buffer, each time bytes arrive.
    Buffers,
    /// In the operation's own memory, once.
    OpBuffer { start: NonNull<u8>, bytes: usize },
}

pub(super) struct SimBuffers {
    pool: Rc<BufferPool>,
    free: VecDeque<u16>,
}

impl SimBuffers {
    pub(super) fn new(pool: Rc<BufferPool>) -> Self {
        let free = (0..pool.count()).collect();
        Self { pool, free }
    }

    /// Takes the buffers that chunks have returned.
    pub(super) fn refill(&mut self) {
        self.pool.give_back(|id| self.free.push_back(id));
    }

    /// Copies as much of `bytes` as fits into the next free buffer; `None` when all are in use.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> Option<Chunk> {
        let id = self.free.pop_front()?;
        let count = bytes.len().min(self.pool.buffer_bytes() as usize);
        // SAFETY: the buffer was free, so no chunk reads it and `bytes` does not overlap it; `count` is at
        // most its size. From here on only the chunk uses it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pool.buffer(id).as_ptr(), count);
            Some(Chunk::leased(self.pool.lend(id), count as u32))
        }
    }

    /// Copies as much of `bytes` as fits into an operation's own memory.
    ///
    /// # Safety The operation is in flight, so that its memory exists and only the simulation writes to it.
    pub(super) unsafe fn fill_op_buffer(start: NonNull<u8>, buffer_bytes: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(buffer_bytes);
        // SAFETY: `count` is at most the size of the target, and `bytes` is memory of the simulation.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), count) };
        count
    }
}
