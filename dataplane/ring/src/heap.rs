//! The heap's empty pages, let go.

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
