//! Recycles the buffers of a core. A connection that waits for a request holds none, and one with a request reuses a
//! returned buffer, which saves memory and allocations.

use std::cell::RefCell;

use bytes::BytesMut;
use ring::Tick;

/// Kept at most, for as many concurrent requests; further ones are freed.
const CACHED_BUFFERS_MAX: usize = 1_024;
/// Larger ones held a large head and are freed.
const CACHED_BUFFER_BYTES_MAX: usize = 8 * 1024;

#[derive(Default)]
pub struct BufferCache {
    cached: RefCell<CachedBuffers>,
}

#[derive(Default)]
struct CachedBuffers {
    free: Vec<BytesMut>,
    /// Returned in this turn of the event loop. Detached sends of their bytes may be in flight until it ends.
    returned_this_turn: Vec<BytesMut>,
    turn: Tick,
}

impl BufferCache {
    /// An empty buffer, often with capacity.
    pub fn take(&self, now: Tick) -> BytesMut {
        let kept = &mut *self.cached.borrow_mut();
        kept.advance_to(now);
        kept.free.pop().unwrap_or_default()
    }

    /// Returns a buffer, whatever its content.
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
    fn returned_buffer_is_reused_empty_unless_large() {
        let cache = BufferCache::default();
        let (now, later) = (Tick::from_nanos(1), Tick::from_nanos(2));
        cache.give(BytesMut::from(&b"left over"[..]), now);
        cache.give(BytesMut::new(), now);
        cache.give(BytesMut::with_capacity(CACHED_BUFFER_BYTES_MAX + 1), now);
        assert_eq!(cache.take(now).capacity(), 0, "its bytes may not have been sent");
        let taken = cache.take(later);
        assert!(taken.is_empty() && taken.capacity() >= 9);
        assert_eq!(cache.take(later).capacity(), 0);
        (0..2 * CACHED_BUFFERS_MAX).for_each(|_| cache.give(BytesMut::with_capacity(1), later));
        assert_eq!(cache.cached.borrow().len(), CACHED_BUFFERS_MAX);
    }
}
