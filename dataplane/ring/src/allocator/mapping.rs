//! The process's shelf: one mapping, reserved with the first piece that stays.

use std::alloc::Layout;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arena::{Arena, ArenaPage, CELL_BYTES_MAX, PAGE};

/// Bytes of addresses for pieces that stay, of which only what is used takes memory. 1,000 Services take 5 MB; what does not fit
/// stands in the usual heap.
const ARENA_BYTES_MAX: usize = 4 << 30;
/// How many pages that is.
const PAGES: usize = ARENA_BYTES_MAX / PAGE;

/// Where the first page is; null until there is one.
static FIRST: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static ARENA: Mutex<ArenaState> = Mutex::new(ArenaState::Unused);

const _: () = assert!((PAGES * size_of::<ArenaPage>()).is_multiple_of(PAGE), "pages begin where the kernel's do");

enum ArenaState {
    Unused,
    There(Arena<'static>),
    /// The kernel refused.
    Refused,
}

/// Whether a piece stands on the shelf. One load and a comparison: every piece that is freed is asked.
pub(super) fn has(piece: *mut u8) -> bool {
    offset_of(piece).is_some()
}

/// A place for a piece; `None`: it is to stand elsewhere.
pub(super) fn take(layout: Layout) -> Option<NonNull<u8>> {
    if layout.size() > CELL_BYTES_MAX || layout.align() > CELL_BYTES_MAX {
        return None;
    }
    let offset = locked(|shelf| shelf.take(layout.size().max(1), layout.align()))?;
    // A multiple of its size from the start of a page, and the sizes that are asked are multiples of the alignment.
    NonNull::new(FIRST.load(Acquire).wrapping_add(offset))
}

pub(super) fn give(piece: *mut u8) {
    if let Some(offset) = offset_of(piece) {
        locked(|shelf| {
            shelf.give(offset);
            Some(())
        });
    }
}

/// Bytes of the place where a piece stands; 0 if it is not on the shelf.
pub(super) fn room(piece: *mut u8) -> usize {
    offset_of(piece).and_then(|offset| locked(|shelf| Some(shelf.room(offset)))).unwrap_or(0)
}

/// Gives empty pages back to the kernel. One at a time under the lock: a core that lets a table go waits for one page and not for
/// thousands.
pub(super) fn release_pages() {
    let first = FIRST.load(Acquire);
    if first.is_null() {
        return;
    }
    let give_back = |shelf: &mut Arena<'static>| {
        let page = first.wrapping_add(shelf.give_back()?);
        // SAFETY: a page of the mapping, in which no place is taken: nobody has an address in it, and nobody gets one while the lock is
        // held. It reads as zeros from here on.
        Some(unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_DONTNEED) })
    };
    while locked(give_back).is_some() {}
}

fn offset_of(piece: *mut u8) -> Option<usize> {
    let first = FIRST.load(Acquire);
    let offset = piece.addr().wrapping_sub(first.addr());
    (offset < ARENA_BYTES_MAX && !first.is_null()).then_some(offset)
}

/// A lock, because a piece may go on any thread. Cores come here only when a table goes, with pieces of what has changed.
fn locked<T>(work: impl FnOnce(&mut Arena<'static>) -> Option<T>) -> Option<T> {
    let mut state: MutexGuard<'_, ArenaState> = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*state, ArenaState::Unused) {
        *state = reserve().map_or(ArenaState::Refused, ArenaState::There);
    }
    match &mut *state {
        ArenaState::There(shelf) => work(shelf),
        ArenaState::Unused | ArenaState::Refused => None,
    }
}

/// Addresses for the pages and for what is known of them, which is 11 bytes in a thousand.
fn reserve() -> Option<Arena<'static>> {
    let known = PAGES * size_of::<ArenaPage>();
    // SAFETY: a new mapping wherever the kernel likes, whose pages are zeros and take memory when they are first written to.
    let at = unsafe {
        libc::mmap(
            null_mut(),
            known + ARENA_BYTES_MAX,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping's first bytes, aligned to a page, never unmapped, and known to nobody else. `Page` is numbers only, of which
    // zeros are some.
    let pages = unsafe { std::slice::from_raw_parts_mut(at.cast::<ArenaPage>(), PAGES) };
    FIRST.store(at.cast::<u8>().wrapping_add(known), Release);
    Some(Arena::new(pages))
}
