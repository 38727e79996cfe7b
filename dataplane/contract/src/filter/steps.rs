//! The step budget of one filter for one event.
//!
//! A filter runs on a core's thread before everything else that the core does, and a user who may create a
//! Trigger chooses both the expression and, often, the event. So every filter counts its work, and one that
//! exceeds its budget does not match. Steps and not time: the same event has the same result on any
//! machine.

use std::cell::Cell;

use crate::limits::FILTER_STEPS_MAX;

/// Bytes of text per step: comparing, searching and copying process many bytes at a time.
const TEXT_BYTES_PER_STEP: usize = 8;

/// The filter has used all its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverBudget;

/// A budget of steps. One step is an evaluated part of the filter, a character that is matched against a
/// pattern, or eight bytes of text.
#[derive(Debug)]
pub struct Steps {
    max: usize,
    left: Cell<usize>,
    is_over: Cell<bool>,
}

impl Default for Steps {
    fn default() -> Self {
        Self::new(FILTER_STEPS_MAX)
    }
}

impl Steps {
    #[inline]
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max, left: Cell::new(max), is_over: Cell::new(false) }
    }

    /// Takes steps before they are made. After the first error every further call fails too.
    #[inline]
    pub fn take(&self, steps: usize) -> Result<(), OverBudget> {
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                self.is_over.set(true);
                Err(OverBudget)
            }
        }
    }

    /// The same for processing this many bytes of text.
    #[inline]
    pub fn take_text(&self, bytes: usize) -> Result<(), OverBudget> {
        self.take(bytes / TEXT_BYTES_PER_STEP)
    }

    /// Steps that were taken.
    #[inline]
    #[must_use]
    pub fn used(&self) -> usize {
        self.max - self.left.get()
    }

    /// Whether more steps were requested than available.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }
}
