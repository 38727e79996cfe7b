//! Promises of the loop that only a real kernel can break. Each driver of a kernel runs them all: [`crate::open`] is its.

mod detached_sends;
mod minimal_limits;
mod streams;
