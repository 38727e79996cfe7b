//! Memory asked for before it is needed. With more connections than the cache has room for, a task's state comes from
//! afar each time it is its turn; who is next is known, so it can come while another is polled.

/// Bytes of a cache line on the machines that we know.
const LINE_BYTES: usize = 64;

/// Bytes that one look ahead asks for at most: a processor has some dozens of lines on their way at a time. The front of
/// a connection's 3 KiB, with twice as many it is no faster.
const AHEAD_BYTES_MAX: usize = 1024;

/// Asks for the memory of `value`, as far as its first 1,024 bytes, and does not wait for it. What it points to stays where
/// it is.
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of_val(value).min(AHEAD_BYTES_MAX)).step_by(LINE_BYTES) {
        line(start.wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which no address makes fault.
    unsafe { _mm_prefetch(at.cast(), _MM_HINT_T0) };
}

#[cfg(not(target_arch = "x86_64"))]
fn line(_: *const u8) {}
