//! The memory and processor time of a request, whatever its content.
//!
//! In its own process, because both are measured per process, and one test after the other. Bounds are generous: tests run
//! unoptimized and next to others. A cost that grows with the square of the body exceeds them by far (40,000 containers took
//! 12 s).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod expressions;
mod kinds;
mod meter;
#[path = "../api/verb_matrix_kinds.rs"]
#[allow(dead_code, reason = "of each row only the object is used here")]
mod verb_matrix_kinds;
