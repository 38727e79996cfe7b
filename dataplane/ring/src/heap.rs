//! The heap's empty pages, let go.

/// What is larger is mapped by itself and given back at once, in bytes. The C library would raise it to the largest piece that was
/// ever freed, a list of 20 MB, and keep twice as much for the next one.
const MAPPED_MIN: i32 = 1 << 20;
/// Empty bytes at the end of the heap that are kept for what comes next.
const SPARE_MAX: i32 = 2 << 20;

/// Says once, at the start, what the heap may keep.
pub fn set_bounds() {
    #[cfg(target_env = "gnu")]
    // SAFETY: both only set numbers that the next allocation reads, under the lock of who hands memory out. A value that is
    // refused leaves the old one.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE_MAX);
    }
}

/// Gives the kernel those pages of the heap in which nothing is any more. The C library keeps them for as long as something
/// stands behind them, and after a burst of writes something always does: a fifth of what a thousand new Services leave.
/// Takes some milliseconds, and who allocates beside what is looked at waits meanwhile: not for a core's thread.
pub fn let_go() {
    #[cfg(target_env = "gnu")]
    // SAFETY: any thread may call it at any time. It looks at free pieces only, under the locks of who hands them out, and
    // changes no byte that anybody was given.
    unsafe {
        libc::malloc_trim(0);
    }
}
