//! Prefetches memory before it is needed. With more connections than the cache can hold, a task's state is
//! a cache miss each time the task is polled; the next task is known, so its state can be loaded while
//! another one is polled.

/// Bytes of a cache line on the supported machines.
const LINE_BYTES: usize = 64;

/// Maximum bytes of one prefetch: a processor has some dozens of lines in flight at a time. This covers the
/// front of a connection's 3 KiB; twice as much is no faster.
const AHEAD_BYTES_MAX: usize = 1024;

/// Prefetches `value`, at most its first 1,024 bytes, without waiting. What it points to is not prefetched.
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of_val(value).min(AHEAD_BYTES_MAX)).step_by(LINE_BYTES) {
        line(start.wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which never faults for any address.
    unsafe { _mm_prefetch(at.cast(), _MM_HINT_T0) };
}

#[cfg(not(target_arch = "x86_64"))]
fn line(_: *const u8) {}
