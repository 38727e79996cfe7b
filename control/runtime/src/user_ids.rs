//! Allocates ids of this host to the users of containers that have a user namespace: a block for each instance.
//!
//! The range is one that neither distributions, nor systemd, nor the usual `/etc/subuid` assign. Two appliances of a host
//! may give the same block; then their containers are kept apart by all their other namespaces.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::rc::Rc;

use container::limits::USER_IDS;

use crate::limits::{USER_ID_BLOCKS_MAX, USER_ID_MIN};

/// The blocks of running instances.
#[derive(Debug, Default)]
pub(crate) struct UserIdAllocator(Rc<RefCell<HashSet<u32>>>);

/// A block, until it is dropped.
#[derive(Debug)]
pub(crate) struct UserIdBlock {
    index: u32,
    allocated: Rc<RefCell<HashSet<u32>>>,
}

impl UserIdAllocator {
    /// `chance` returns a number below its argument.
    pub(crate) fn allocate(&self, chance: impl FnOnce(u32) -> u32) -> io::Result<UserIdBlock> {
        let mut allocated = self.0.borrow_mut();
        let begin = chance(USER_ID_BLOCKS_MAX);
        let mut candidates = (0..USER_ID_BLOCKS_MAX).map(|step| (begin + step) % USER_ID_BLOCKS_MAX);
        let index = candidates.find(|index| !allocated.contains(index)).ok_or_else(|| {
            io::Error::other(format!("{USER_ID_BLOCKS_MAX} instances have a user namespace, which is the limit"))
        })?;
        allocated.insert(index);
        Ok(UserIdBlock { index, allocated: Rc::clone(&self.0) })
    }
}

impl UserIdBlock {
    /// The host's id of the root inside.
    pub(crate) fn first(&self) -> u32 {
        USER_ID_MIN + self.index * USER_IDS
    }
}

impl Drop for UserIdBlock {
    fn drop(&mut self) {
        self.allocated.borrow_mut().remove(&self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_given_once_until_it_is_dropped() {
        let blocks = UserIdAllocator::default();
        let last = blocks.allocate(|below| below - 1).unwrap();
        assert!(last.first().checked_add(USER_IDS).is_some_and(|end| end <= 0x7ffe_0000), "systemd's next range");
        let first = blocks.allocate(|below| below - 1).unwrap();
        assert_eq!(first.first(), USER_ID_MIN, "the next free one");
        drop(last);
        assert_eq!(
            blocks.allocate(|below| below - 1).unwrap().first(),
            USER_ID_MIN + (USER_ID_BLOCKS_MAX - 1) * USER_IDS
        );
    }

    #[test]
    fn more_blocks_than_there_are_is_an_error() {
        let blocks = UserIdAllocator::default();
        let all: Vec<_> = (0..USER_ID_BLOCKS_MAX).map(|_| blocks.allocate(|_| 7).unwrap()).collect();
        assert!(blocks.allocate(|_| 7).is_err());
        drop(all);
        assert!(blocks.allocate(|_| 7).is_ok());
    }
}
