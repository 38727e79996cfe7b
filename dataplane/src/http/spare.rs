//! Buffers of a core that nobody uses just now: connections that wait for a request need none, and one that has a
//! request takes what another gave back, so that neither memory nor the allocator is spent on them.

use std::cell::RefCell;

use bytes::BytesMut;

/// Kept at most, for as many requests at once; beyond that the allocator has them.
const KEPT_MAX: usize = 1_024;
/// Larger ones had a large head in them; they are not kept.
const KEPT_BYTES_MAX: usize = 8 * 1024;

#[derive(Default)]
pub struct Spare {
    kept: RefCell<Vec<BytesMut>>,
}

impl Spare {
    /// An empty buffer, often with room in it.
    pub fn take(&self) -> BytesMut {
        self.kept.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives one back, with whatever is in it.
    pub fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut kept = self.kept.borrow_mut();
        if kept.len() < KEPT_MAX && (1..=KEPT_BYTES_MAX).contains(&buffer.capacity()) {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_taken_empty_and_what_is_large_or_nothing_is_not_kept() {
        let spare = Spare::default();
        spare.give(BytesMut::from(&b"left over"[..]));
        spare.give(BytesMut::new());
        spare.give(BytesMut::with_capacity(KEPT_BYTES_MAX + 1));
        let taken = spare.take();
        assert!(taken.is_empty() && taken.capacity() >= 9);
        assert_eq!(spare.take().capacity(), 0);
        (0..2 * KEPT_MAX).for_each(|_| spare.give(BytesMut::with_capacity(1)));
        assert_eq!(spare.kept.borrow().len(), KEPT_MAX);
    }
}
