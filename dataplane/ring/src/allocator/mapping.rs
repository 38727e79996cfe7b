//! The arena of the process: one mapping, reserved with the first long-lived allocation.

use std::alloc::Layout;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arena::{Arena, ArenaPage, CELL_BYTES_MAX, PAGE};

/// Address space for long-lived allocations; only used pages take memory. 1,000 Services take 5 MB; what
/// does not fit uses the system heap.
const ARENA_BYTES_MAX: usize = 4 << 30;
/// Number of pages in it.
const PAGES: usize = ARENA_BYTES_MAX / PAGE;

/// Address of the first page; null until it is mapped.
static FIRST: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static ARENA: Mutex<ArenaState> = Mutex::new(ArenaState::Unused);

const _: () = assert!((PAGES * size_of::<ArenaPage>()).is_multiple_of(PAGE), "pages begin where the kernel's do");

enum ArenaState {
    Unused,
    There(Arena<'static>),
    /// The kernel rejected the mapping.
    Refused,
}

/// Whether an allocation is in the arena. One load and a comparison: every free asks.
pub(super) fn has(piece: *mut u8) -> bool {
    offset_of(piece).is_some()
}

/// Allocates in the arena; `None`: use the system allocator.
pub(super) fn take(layout: Layout) -> Option<NonNull<u8>> {
    if layout.size() > CELL_BYTES_MAX || layout.align() > CELL_BYTES_MAX {
        return None;
    }
    let offset = locked(|arena| arena.take(layout.size().max(1), layout.align()))?;
    // A multiple of its size from the start of a page, and the sizes requested are multiples of the
    // alignment.
    NonNull::new(FIRST.load(Acquire).wrapping_add(offset))
}

pub(super) fn free(piece: *mut u8) {
    if let Some(offset) = offset_of(piece) {
        locked(|arena| {
            arena.free(offset);
            Some(())
        });
    }
}

/// Size of the cell of an allocation; 0 if it is not in the arena.
pub(super) fn cell_bytes(piece: *mut u8) -> usize {
    offset_of(piece).and_then(|offset| locked(|arena| Some(arena.cell_bytes(offset)))).unwrap_or(0)
}

/// Releases empty pages to the kernel. One at a time under the lock: a core that drops a table waits for
/// one page and not for thousands.
pub(super) fn release_pages() {
    let first = FIRST.load(Acquire);
    if first.is_null() {
        return;
    }
    let give_back = |arena: &mut Arena<'static>| {
        let page = first.wrapping_add(arena.give_back()?);
        // SAFETY: a page of the mapping without a cell in use: no address in it is in use, and none is
        // handed out while the lock is held. It reads as zeros from here on.
        Some(unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_DONTNEED) })
    };
    while locked(give_back).is_some() {}
}

fn offset_of(piece: *mut u8) -> Option<usize> {
    let first = FIRST.load(Acquire);
    let offset = piece.addr().wrapping_sub(first.addr());
    (offset < ARENA_BYTES_MAX && !first.is_null()).then_some(offset)
}

/// Locks, because any thread may free an allocation. Cores come here only when a table is dropped, with the
/// allocations that have changed.
fn locked<T>(work: impl FnOnce(&mut Arena<'static>) -> Option<T>) -> Option<T> {
    let mut state: MutexGuard<'_, ArenaState> = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*state, ArenaState::Unused) {
        *state = reserve().map_or(ArenaState::Refused, ArenaState::There);
    }
    match &mut *state {
        ArenaState::There(arena) => work(arena),
        ArenaState::Unused | ArenaState::Refused => None,
    }
}

/// Reserves address space for the pages and their state, which is 11 bytes in a thousand.
fn reserve() -> Option<Arena<'static>> {
    let known = PAGES * size_of::<ArenaPage>();
    // SAFETY: a new mapping at an address of the kernel's choice, whose pages are zeros and take memory
    // when they are first written to.
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
    // SAFETY: the first bytes of the mapping, aligned to a page, never unmapped, and not referenced
    // elsewhere. `ArenaPage` contains only integers, for which zeros are valid.
    let pages = unsafe { std::slice::from_raw_parts_mut(at.cast::<ArenaPage>(), PAGES) };
    FIRST.store(at.cast::<u8>().wrapping_add(known), Release);
    Some(Arena::new(pages))
}
