//! Memory-maps a segment file: the only module of this crate with `unsafe`.
//!
//! The map is read-only. Bytes get into the file by `write`, never by a store into the map: so the page
//! cache only contains bytes that were handed to a flush, and a full disk is an error instead of a SIGBUS.
//!
//! Access to a page that cannot be loaded (the file was truncated, the disk cannot read it) raises SIGBUS.
//! The handler maps a page of zeros there and marks the map as broken; a page of zeros is no record, so the
//! reader finds damage like any other. Faults in other memory go on to the handler that was installed
//! before.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

pub(crate) struct SegmentMap {
    /// The whole segment. Only ranges below the durable position may be read.
    whole: Bytes,
    /// Shared with the owner inside `whole`: the only reference left when no reader remains.
    held: Arc<()>,
    slot: &'static MapSlot,
}

struct MappedSegment {
    memory: Mmap,
    slot: &'static MapSlot,
    _held: Arc<()>,
}

impl AsRef<[u8]> for MappedSegment {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for MappedSegment {
    fn drop(&mut self) {
        self.slot.free(); // before the memory is unmapped and its address reused
    }
}

impl SegmentMap {
    /// Maps the first `length` bytes; the file must be at least as long.
    pub(crate) fn new(file: &File, length: u32) -> io::Result<Self> {
        let found = file.metadata()?.len();
        if found < u64::from(length) {
            return Err(io::Error::other(format!("file has {found} bytes, {length} are needed")));
        }
        watch_for_bus_errors()?;
        // SAFETY: a map's bytes must not change under a `&[u8]`, and its file must not shrink. The folder
        // is locked by this process and segments are never truncated; when a foreign process truncates one
        // in spite of the lock, the missing pages become zeros (`map_zero_page`) and their reader finds a checksum
        // that fails. Bytes change only by flushes, which write at or after the durable position, while
        // only `slice` returns references, always to ranges below it. A file is overwritten from its
        // beginning only after `release` proved that no reader is left.
        let memory = unsafe { MmapOptions::new().len(length as usize).map(file)? };
        let start = memory.as_ptr().addr();
        let slot = MapSlot::take(start..start + memory.len());
        let held = Arc::new(());
        let whole = Bytes::from_owner(MappedSegment { memory, slot, _held: Arc::clone(&held) });
        Ok(Self { whole, held, slot })
    }

    /// Size of the whole segment.
    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.whole.len()).expect("it was made of so many bytes of a u32")
    }

    /// Bytes below the durable position, without a copy; they keep the map alive.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        (range.start <= range.end && range.end <= self.whole.len()).then(|| self.whole.slice(range))
    }

    /// Whether a page of it could not be loaded: the file was truncated, or the disk cannot read it.
    pub(crate) fn is_broken(&self) -> bool {
        self.slot.broken.load(Ordering::Acquire)
    }

    /// Removes its pages from the memory of the process. They stay in the page cache, and return on the
    /// next access.
    pub(crate) fn release_pages(&self) {
        let start = self.whole.as_ptr().cast_mut().cast();
        // SAFETY: `whole` is one live map from its first byte on; it is read-only and backed by a file, so
        // the next access to a page sees the same bytes again.
        unsafe {
            let _ = libc::madvise(start, self.whole.len(), libc::MADV_DONTNEED); // advice
        }
    }

    /// Releases the map; true when no reader holds any of its bytes, so that the file may be overwritten.
    pub(crate) fn release(self) -> bool {
        let Self { whole, held, .. } = self;
        drop(whole);
        Arc::into_inner(held).is_some()
    }
}

/// Reads the pages of these bytes of a map, and waits for the disk.
pub(crate) fn populate(bytes: &[u8]) {
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let before = bytes.as_ptr().addr() % page_bytes;
    let start = bytes.as_ptr().wrapping_sub(before).cast_mut().cast();
    // SAFETY: the bytes are borrowed, so their pages stay mapped during the call; populating changes no
    // byte and no protection, and an invalid address is an error.
    unsafe {
        // The reader handles a failure: it accesses the same page.
        let _ = libc::madvise(start, bytes.len() + before, libc::MADV_POPULATE_READ);
    }
}

/// Number of pages of all maps that could not be loaded so far: while it has not risen, no map needs a
/// check.
pub(crate) fn faults() -> usize {
    FAULTS.load(Ordering::Acquire)
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
static MAPS: MapSlots = MapSlots::new();
static BEFORE_US: OnceLock<libc::sigaction> = OnceLock::new();

/// Address of one map. The handler reads these while other threads map and unmap; so there is no lock, and
/// a slot is reused but never freed.
struct MapSlot {
    taken: AtomicBool,
    /// 0 while the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
}

/// A block of slots, and the pointer to the next block.
struct MapSlots {
    slots: [MapSlot; MapSlots::SLOTS],
    next: OnceLock<Box<MapSlots>>,
}

impl MapSlots {
    /// A log of 8 GiB has 128 segments.
    const SLOTS: usize = 128;

    const fn new() -> Self {
        Self { slots: [const { MapSlot::new() }; Self::SLOTS], next: OnceLock::new() }
    }
}

impl MapSlot {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    fn take(memory: Range<usize>) -> &'static Self {
        let mut block = &MAPS;
        loop {
            for slot in &block.slots {
                if !slot.taken.swap(true, Ordering::AcqRel) {
                    slot.broken.store(false, Ordering::Relaxed);
                    slot.end.store(memory.end, Ordering::Relaxed);
                    slot.start.store(memory.start, Ordering::Release);
                    return slot;
                }
            }
            block = block.next.get_or_init(|| Box::new(MapSlots::new()));
        }
    }

    fn free(&self) {
        self.start.store(0, Ordering::Release);
        self.end.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    /// The start is read again, because a slot of another map may be reused meanwhile; the slot of
    /// `address` cannot, because the faulting thread holds its bytes.
    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0
            && start <= address
            && address < self.end.load(Ordering::Acquire)
            && start == self.start.load(Ordering::Acquire)
    }
}

/// Maps zeros where a page of a map is missing; false when the address is in no map. Runs in the signal
/// handler: atomics and one system call, no lock and no allocation.
fn map_zero_page(address: usize) -> bool {
    let mut block = Some(&MAPS);
    while let Some(slots) = block {
        if let Some(slot) = slots.slots.iter().find(|slot| slot.holds(address)) {
            let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
            let page = address - address % page_bytes;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let page_address = std::ptr::with_exposed_provenance_mut(page);
            // SAFETY: the page belongs to a live map of this module, because the faulting thread holds its
            // bytes; it is replaced by readable zeros of the same size, and nothing else is touched.
            let put = unsafe { libc::mmap(page_address, page_bytes, libc::PROT_READ, flags, -1, 0) };
            slot.broken.store(true, Ordering::Release);
            FAULTS.fetch_add(1, Ordering::AcqRel);
            return put != libc::MAP_FAILED;
        }
        block = slots.next.get().map(|next| &**next);
    }
    false
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a siginfo that is valid during the call; `si_addr` is set
    // for faults, whose code is positive. `__errno_location` is this thread's own errno, which the
    // interrupted code may be about to read.
    unsafe {
        let is_fault = (*info).si_code > 0;
        let errno = *libc::__errno_location();
        let is_repaired = is_fault && map_zero_page((*info).si_addr().addr());
        *libc::__errno_location() = errno;
        if is_repaired {
            return;
        }
        let Some(before) = BEFORE_US.get().filter(|before| before.sa_sigaction > libc::SIG_IGN) else {
            libc::signal(signal, libc::SIG_DFL);
            if !is_fault {
                libc::raise(signal); // another process sent the signal: it will not recur by itself
            }
            return;
        };
        // The kernel accepted this address as a handler with these flags from the previous owner.
        if before.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(before.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(before.sa_sigaction);
            handler(signal);
        }
    }
}

fn watch_for_bus_errors() -> io::Result<()> {
    static WATCH: Once = Once::new();
    let mut outcome = Ok(());
    WATCH.call_once(|| {
        // SAFETY: both structs are plain data for which zeros are valid (no handler, empty mask);
        // `sigaction` reads and writes no more than them. The handler does only what a signal handler may
        // (see `map_zero_page`).
        unsafe {
            if let Ok(bytes) = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)) {
                PAGE_BYTES.store(bytes, Ordering::Relaxed);
            }
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
            let _ = BEFORE_US.set(before); // only called once
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_bus_error as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) != 0 {
                outcome = Err(io::Error::last_os_error());
            }
        }
    });
    outcome
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn sliced_bytes_outlive_map_and_block_release() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let map = SegmentMap::new(&file, 8192).unwrap();
        let held = map.slice(10..20).unwrap();
        assert!(!map.release());
        assert_eq!(held, [7; 10][..]);

        assert!(SegmentMap::new(&file, 8192).unwrap().release());
    }

    #[test]
    fn short_file_is_rejected_by_map() {
        let file = tempfile::tempfile().unwrap();
        assert!(SegmentMap::new(&file, 4096).is_err());
    }

    /// APP-05: the process survives, missing bytes read as zeros, and only the affected map is broken.
    #[test]
    fn truncated_file_breaks_only_its_own_map() {
        let page = 64 << 10; // a multiple of every page size
        let file = |byte: u8| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![byte; 3 * page]).unwrap();
            file
        };
        let (cut, whole) = (file(7), file(8));
        let length = u32::try_from(3 * page).unwrap();
        let (map, other) = (SegmentMap::new(&cut, length).unwrap(), SegmentMap::new(&whole, length).unwrap());
        let bytes = map.slice(0..3 * page).unwrap();
        assert_eq!(bytes[2 * page], 7);
        let before = faults();
        cut.set_len(page as u64).unwrap();

        assert_eq!((bytes[page - 1], map.is_broken()), (7, false), "what is there is there");
        assert_eq!((bytes[page], bytes[3 * page - 1]), (0, 0));
        assert!(map.is_broken() && !other.is_broken() && faults() > before);
        assert_eq!(other.slice(0..3 * page).unwrap()[2 * page], 8);
        drop(bytes);
        assert!(map.release());
        assert!(!SegmentMap::new(&whole, length).unwrap().is_broken(), "a slot that is used again is whole");
    }

    #[test]
    fn populate_reads_pages_of_range() {
        let page = 64 << 10;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 * page]).unwrap();
        let map = SegmentMap::new(&file, u32::try_from(3 * page).unwrap()).unwrap();
        let bytes = map.slice(100..3 * page).unwrap();
        file.set_len(page as u64).unwrap();
        populate(&bytes);
        populate(&bytes[..0]);
        assert!(bytes[..page - 100].iter().all(|byte| *byte == 7) && !map.is_broken());
    }

    /// Fills two more blocks of slots than the first; the handler finds all of them.
    #[test]
    fn slots_grow_for_every_map() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let maps: Vec<_> = (0..300).map(|_| SegmentMap::new(&file, 8192).unwrap()).collect();
        file.set_len(0).unwrap();
        for map in &maps {
            assert_eq!(map.slice(0..1).unwrap()[0], 0);
            assert!(map.is_broken());
        }
    }
}
