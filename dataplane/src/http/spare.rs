//! Buffers of a core that nobody uses just now: connections that wait for a request need none, and one that has a
//! request takes what another gave back, so that neither memory nor the allocator is spent on them.

use std::cell::RefCell;

use bytes::BytesMut;
use ring::Tick;

/// Kept at most, for as many requests at once; beyond that the allocator has them.
const KEPT_MAX: usize = 1_024;
/// Larger ones had a large head in them; they are not kept.
const KEPT_BYTES_MAX: usize = 8 * 1024;

#[derive(Default)]
pub struct Spare {
    kept: RefCell<Kept>,
}

#[derive(Default)]
struct Kept {
    free: Vec<BytesMut>,
    /// Given in this turn of the loop: what was posted out of them leaves when it ends.
    lately: Vec<BytesMut>,
    turn: Tick,
}

impl Spare {
    /// An empty buffer, often with room in it.
    pub fn take(&self, now: Tick) -> BytesMut {
        let kept = &mut *self.kept.borrow_mut();
        kept.turn_to(now);
        kept.free.pop().unwrap_or_default()
    }

    /// Gives one back, with whatever is in it.
    pub fn give(&self, mut buffer: BytesMut, now: Tick) {
        buffer.clear();
        let kept = &mut *self.kept.borrow_mut();
        kept.turn_to(now);
        if kept.len() < KEPT_MAX && (1..=KEPT_BYTES_MAX).contains(&buffer.capacity()) {
            kept.lately.push(buffer);
        }
    }
}

impl Kept {
    fn turn_to(&mut self, now: Tick) {
        if self.turn != now {
            self.turn = now;
            self.free.append(&mut self.lately);
        }
    }

    fn len(&self) -> usize {
        self.free.len() + self.lately.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_taken_empty_and_what_is_large_or_nothing_is_not_kept() {
        let spare = Spare::default();
        let (now, later) = (Tick::from_nanos(1), Tick::from_nanos(2));
        spare.give(BytesMut::from(&b"left over"[..]), now);
        spare.give(BytesMut::new(), now);
        spare.give(BytesMut::with_capacity(KEPT_BYTES_MAX + 1), now);
        assert_eq!(spare.take(now).capacity(), 0, "what was in it may not have left");
        let taken = spare.take(later);
        assert!(taken.is_empty() && taken.capacity() >= 9);
        assert_eq!(spare.take(later).capacity(), 0);
        (0..2 * KEPT_MAX).for_each(|_| spare.give(BytesMut::with_capacity(1), later));
        assert_eq!(spare.kept.borrow().len(), KEPT_MAX);
    }
}
