//! What a request may cost, whatever it says: memory and processor time.
//!
//! In a process of its own, because both are the process's, and one test after the other. Bounds are generous: tests run
//! unoptimized and beside others. A cost that grows with the square of the body passes them by far (40,000 containers took
//! 12 s).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod expressions;
mod kinds;
mod meter;
#[path = "../api/verb_matrix_kinds.rs"]
#[allow(dead_code, reason = "of each row only the object is used here")]
mod verb_matrix_kinds;
