//! The allocator: the C library's heap, an arena for small long-lived allocations, and the release of empty
//! pages of both.
//!
//! A scaled-to-zero Service leaves a hundred small allocations among ten thousand temporary ones. The C library
//! uses the best fitting free chunk wherever it is, so that one page in two has a long-lived allocation: a
//! thousand scaled-to-zero Services with 7 MB of their own held 26 MB of pages. So code that creates long-lived data marks
//! it ([`long_lived`]), and such allocations are placed next to each other.

mod arena;
mod mapping;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::thread::JoinHandle;

/// Larger allocations are mapped individually and unmapped when freed, in bytes. The C library would raise
/// this to the largest allocation that was ever freed, a list of 20 MB, and keep twice as much for the next
/// one.
const MAPPED_MIN: i32 = 1 << 20;
/// Free bytes at the end of a heap that are kept for reuse. Each thread that was ever busy has a heap of
/// its own, and only a free in that heap trims it: with 2 MB each, a thousand scaled-to-zero Services had 4.
const SPARE_MAX: i32 = 256 << 10;

/// The smallest allocation that the C library caches for a thread, in bytes.
const CACHED_MIN: usize = 24;
/// The largest.
const CACHED_MAX: usize = 1032;
/// Step between two of its size classes.
const CACHED_STEP: usize = 16;
/// Maximum number of cached allocations per size.
const CACHED_COUNT: usize = 7;

thread_local! {
    /// How many [`LongLivedScope`]s this thread has.
    static STAYING: Cell<u32> = const { Cell::new(0) };
}

/// The allocator of the program.
#[derive(Debug, Clone, Copy, Default)]
pub struct ArenaAllocator;

/// While it exists, allocations of this thread are treated as long-lived.
#[derive(Debug)]
#[must_use = "allocations after it is dropped are not long-lived"]
pub struct LongLivedScope {
    /// Not `Send`: it belongs to this thread.
    here: PhantomData<*const ()>,
}

/// Treats small allocations of this thread as long-lived until the guard is dropped. Costs one addition. A
/// wrong mark costs only space in the arena. Without [`ArenaAllocator`] as the allocator it does nothing.
pub fn long_lived() -> LongLivedScope {
    STAYING.set(STAYING.get() + 1);
    LongLivedScope { here: PhantomData }
}

impl Drop for LongLivedScope {
    fn drop(&mut self) {
        STAYING.set(STAYING.get() - 1);
    }
}

// SAFETY: each allocation comes from the arena or from `System` and is returned to its origin, which its
// address tells: the arena's addresses are its own mapping's, which no other allocator hands out and which
// is never unmapped. The arena hands out a cell of at least the layout's size and alignment
// (`mapping::take`) to one owner at a time, under its lock, and nothing here unwinds.
unsafe impl GlobalAlloc for ArenaAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if STAYING.get() > 0
            && let Some(cell) = mapping::take(layout)
        {
            return cell.as_ptr();
        }
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if mapping::has(piece) {
            mapping::free(piece);
        } else {
            // SAFETY: it is not in the arena, so it came from `System` with this layout.
            unsafe { System.dealloc(piece, layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if STAYING.get() > 0
            && let Some(cell) = mapping::take(layout)
        {
            // SAFETY: the cell has at least this many bytes and no other owner.
            unsafe { cell.write_bytes(0, layout.size()) };
            return cell.as_ptr();
        }
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !mapping::has(piece) {
            // SAFETY: it is not in the arena, so it came from `System` with this layout.
            return unsafe { System.realloc(piece, layout, size) };
        }
        if size <= mapping::cell_bytes(piece) && size >= layout.size() / 2 {
            return piece;
        }
        // SAFETY: the caller guarantees that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // A long-lived allocation stays one, whichever code grows it.
        let other = match mapping::take(wanted) {
            Some(cell) => cell.as_ptr(),
            // SAFETY: not of size zero, which the caller never requests.
            None => unsafe { System.alloc(wanted) },
        };
        if !other.is_null() {
            // SAFETY: both have at least the smaller of the two sizes, and they do not overlap.
            unsafe { piece.copy_to_nonoverlapping(other, layout.size().min(size)) };
            mapping::free(piece);
        }
        other
    }
}

/// Sets the heap's retention limits, once at the start.
pub fn set_bounds() {
    #[cfg(target_env = "gnu")]
    // SAFETY: both only set numbers that the next allocation reads, under the allocator's lock. A rejected
    // value leaves the old one.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE_MAX);
    }
}

/// Allocations that were in the C library's cache of a thread, which keeps the last seven of each small
/// size for reuse.
#[derive(Debug, Default)]
#[must_use = "they return to the same cache when the same thread drops them"]
pub struct CachedChunks {
    _pieces: Vec<Vec<u8>>,
}

/// Takes everything out of this thread's cache, for [`release_pages`]. After a burst its four hundred
/// chunks are scattered, each on an otherwise empty page: 1.7 MB of a thousand scaled-to-zero Services. Takes some 20 µs.
pub fn cached() -> CachedChunks {
    let sizes = (CACHED_MIN..=CACHED_MAX).step_by(CACHED_STEP);
    CachedChunks { _pieces: sizes.flat_map(|size| (0..CACHED_COUNT).map(move |_| Vec::with_capacity(size))).collect() }
}

/// Returns this thread's cached chunks to the heap, for the next [`release_pages`] of any thread.
pub fn give_cache_back() {
    give_back(vec![cached()]);
}

/// Freed here they would go into this thread's cache; a thread that ends returns its cache. If no thread
/// can be started nothing is lost.
fn give_back(cached: Vec<CachedChunks>) {
    let _ = std::thread::Builder::new().spawn(move || drop(cached)).map(JoinHandle::join);
}

/// Releases the empty pages of the heap to the kernel. The C library keeps them as long as a chunk behind
/// them is in use, and after a burst of writes there always is one: a fifth of what a thousand new Services
/// leave. Takes some milliseconds, and allocations in the examined heap wait meanwhile: do not call it on a
/// core's thread.
pub fn release_pages(of_others: impl IntoIterator<Item = CachedChunks>) {
    mapping::release_pages();
    give_back(of_others.into_iter().chain([cached()]).collect());
    #[cfg(target_env = "gnu")]
    // SAFETY: any thread may call it at any time. It reads only free chunks, under the allocator's locks,
    // and changes no allocated byte.
    unsafe {
        libc::malloc_trim(0);
    }
}
