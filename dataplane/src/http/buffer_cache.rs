//! Buffers of a core that nobody uses just now: connections that wait for a request need none, and one that has a
//! request takes what another gave back, so that neither memory nor the allocator is spent on them.

use std::cell::RefCell;

use bytes::BytesMut;
use ring::Tick;

/// Kept at most, for as many requests at once; beyond that the allocator has them.
const CACHED_BUFFERS_MAX: usize = 1_024;
/// Larger ones had a large head in them; they are not kept.
const CACHED_BUFFER_BYTES_MAX: usize = 8 * 1024;

#[derive(Default)]
pub struct BufferCache {
    cached: RefCell<CachedBuffers>,
}

#[derive(Default)]
struct CachedBuffers {
    free: Vec<BytesMut>,
    /// Given in this turn of the loop: what was posted out of them leaves when it ends.
    returned_this_turn: Vec<BytesMut>,
    turn: Tick,
}

impl BufferCache {
    /// An empty buffer, often with room in it.
    pub fn take(&self, now: Tick) -> BytesMut {
        let kept = &mut *self.cached.borrow_mut();
        kept.advance_to(now);
        kept.free.pop().unwrap_or_default()
    }

    /// Gives one back, with whatever is in it.
    pub fn give(&self, mut buffer: BytesMut, now: Tick) {
        buffer.clear();
        let kept = &mut *self.cached.borrow_mut();
        kept.advance_to(now);
        if kept.len() < CACHED_BUFFERS_MAX && (1..=CACHED_BUFFER_BYTES_MAX).contains(&buffer.capacity()) {
            kept.returned_this_turn.push(buffer);
        }
    }
}

impl CachedBuffers {
    fn advance_to(&mut self, now: Tick) {
        if self.turn != now {
            self.turn = now;
            self.free.append(&mut self.returned_this_turn);
        }
    }

    fn len(&self) -> usize {
        self.free.len() + self.returned_this_turn.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_taken_empty_and_what_is_large_or_nothing_is_not_kept() {
        let spare = BufferCache::default();
        let (now, later) = (Tick::from_nanos(1), Tick::from_nanos(2));
        spare.give(BytesMut::from(&b"left over"[..]), now);
        spare.give(BytesMut::new(), now);
        spare.give(BytesMut::with_capacity(CACHED_BUFFER_BYTES_MAX + 1), now);
        assert_eq!(spare.take(now).capacity(), 0, "what was in it may not have left");
        let taken = spare.take(later);
        assert!(taken.is_empty() && taken.capacity() >= 9);
        assert_eq!(spare.take(later).capacity(), 0);
        (0..2 * CACHED_BUFFERS_MAX).for_each(|_| spare.give(BytesMut::with_capacity(1), later));
        assert_eq!(spare.cached.borrow().len(), CACHED_BUFFERS_MAX);
    }
}
