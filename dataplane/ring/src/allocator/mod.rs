//! The heap: the C library's, a shelf for small pieces that stay, and the empty pages of both let go.
//!
//! What a sleeping Service leaves is a hundred small pieces among ten thousand that its making needed and that are gone. The C library takes
//! the best fitting hole wherever it is, so that a page in two has a piece that stays: a thousand sleepers with 7 MB of their own held
//! 26 MB of pages. So who makes what stays says so ([`long_lived`]), and such pieces stand beside each other.

mod arena;
mod mapping;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::thread::JoinHandle;

/// What is larger is mapped by itself and given back at once, in bytes. The C library would raise it to the largest piece that was
/// ever freed, a list of 20 MB, and keep twice as much for the next one.
const MAPPED_MIN: i32 = 1 << 20;
/// Empty bytes at the end of a heap that are kept for what comes next. Each thread that ever had much to do has a heap of its own, and
/// nobody but who frees a piece in it gives its end back: of 2 MB each, a thousand sleepers had 4.
const SPARE_MAX: i32 = 256 << 10;

/// The smallest piece that the C library caches for a thread, in bytes.
const CACHED_MIN: usize = 24;
/// The largest.
const CACHED_MAX: usize = 1032;
/// Between two sizes that it tells apart.
const CACHED_STEP: usize = 16;
/// Pieces of a size that it caches at most.
const CACHED_COUNT: usize = 7;

thread_local! {
    /// How many [`Stays`] this thread has.
    static STAYING: Cell<u32> = const { Cell::new(0) };
}

/// The program's allocator.
#[derive(Debug, Clone, Copy, Default)]
pub struct ArenaAllocator;

/// While there is one, what this thread allocates is taken to stay.
#[derive(Debug)]
#[must_use = "what is made after it is dropped is not taken to stay"]
pub struct LongLivedScope {
    /// It is this thread's.
    here: PhantomData<*const ()>,
}

/// What this thread allocates from here on stays for long, in small pieces, until the answer is dropped. Costs what one addition does. What
/// is said wrongly costs nothing but room on the shelf. Where [`ArenaAllocator`] is not the allocator it does nothing.
pub fn long_lived() -> LongLivedScope {
    STAYING.set(STAYING.get() + 1);
    LongLivedScope { here: PhantomData }
}

impl Drop for LongLivedScope {
    fn drop(&mut self) {
        STAYING.set(STAYING.get() - 1);
    }
}

// SAFETY: each piece comes from the shelf or from `System` and goes back to where it came from, which its address tells: the shelf's addresses
// are its own mapping's, that no other allocator hands out and that is never unmapped. The shelf hands out a place of at least the
// layout's size and alignment (`kept::take`) to one owner at a time, under its lock, and nothing here unwinds.
unsafe impl GlobalAlloc for ArenaAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if STAYING.get() > 0
            && let Some(place) = mapping::take(layout)
        {
            return place.as_ptr();
        }
        // SAFETY: the caller's layout, as it was given.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if mapping::has(piece) {
            mapping::give(piece);
        } else {
            // SAFETY: it is not the shelf's, so `System` gave it, for this layout.
            unsafe { System.dealloc(piece, layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if STAYING.get() > 0
            && let Some(place) = mapping::take(layout)
        {
            // SAFETY: the place has at least so many bytes and nobody else knows of it.
            unsafe { place.write_bytes(0, layout.size()) };
            return place.as_ptr();
        }
        // SAFETY: the caller's layout, as it was given.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !mapping::has(piece) {
            // SAFETY: it is not the shelf's, so `System` gave it, for this layout.
            return unsafe { System.realloc(piece, layout, size) };
        }
        if size <= mapping::room(piece) && size >= layout.size() / 2 {
            return piece;
        }
        // SAFETY: the caller says that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // What stood here stays, whoever makes it grow.
        let other = match mapping::take(wanted) {
            Some(place) => place.as_ptr(),
            // SAFETY: not of size zero, because the caller asks for none of that.
            None => unsafe { System.alloc(wanted) },
        };
        if !other.is_null() {
            // SAFETY: both have the smaller of both sizes, and they are two pieces.
            unsafe { piece.copy_to_nonoverlapping(other, layout.size().min(size)) };
            mapping::give(piece);
        }
        other
    }
}

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

/// Pieces that the C library's cache of a thread held, which keeps the last seven of each small size for what comes next.
#[derive(Debug, Default)]
#[must_use = "they go into the same cache when the thread that took them out drops them"]
pub struct CachedChunks {
    _pieces: Vec<Vec<u8>>,
}

/// Takes out what this thread's cache holds, for [`release_pages`]. After a burst its four hundred pieces lie where the burst has left them,
/// each on a page of its own with nothing beside it: 1.7 MB of a thousand sleepers. Takes some 20 µs.
pub fn cached() -> CachedChunks {
    let sizes = (CACHED_MIN..=CACHED_MAX).step_by(CACHED_STEP);
    CachedChunks { _pieces: sizes.flat_map(|size| (0..CACHED_COUNT).map(move |_| Vec::with_capacity(size))).collect() }
}

/// What this thread's cache holds may join its neighbours, for the next [`release_pages`] of whoever.
pub fn give_cache_back() {
    give_back(vec![cached()]);
}

/// Here they would go into this thread's cache; one that ends gives back what it has. Without a thread for it nothing is lost.
fn give_back(cached: Vec<CachedChunks>) {
    let _ = std::thread::Builder::new().spawn(move || drop(cached)).map(JoinHandle::join);
}

/// Gives the kernel those pages of the heap in which nothing is any more. The C library keeps them for as long as something
/// stands behind them, and after a burst of writes something always does: a fifth of what a thousand new Services leave.
/// Takes some milliseconds, and who allocates beside what is looked at waits meanwhile: not for a core's thread.
pub fn release_pages(of_others: impl IntoIterator<Item = CachedChunks>) {
    mapping::release_pages();
    give_back(of_others.into_iter().chain([cached()]).collect());
    #[cfg(target_env = "gnu")]
    // SAFETY: any thread may call it at any time. It looks at free pieces only, under the locks of who hands them out, and
    // changes no byte that anybody was given.
    unsafe {
        libc::malloc_trim(0);
    }
}
