//! The limits of a rule's length, nesting and evaluation cost.

/// Bytes of one rule.
pub const RULE_BYTES_MAX: usize = 16 * 1024;
/// Levels of brackets, and of what they hold; evaluation and reading are recursive.
pub(crate) const NESTING_MAX: usize = 40;
/// Levels of a rule once it is read: a sum of a hundred parts has a hundred.
pub(crate) const DEPTH_MAX: usize = 150;
/// Steps that all rules of one write may take; a step is one part of a rule looked at, or ten bytes of text. A million
/// take some tens of milliseconds.
pub const STEPS_MAX: u64 = 1_000_000;
