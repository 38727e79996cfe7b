//! A segment's file as memory: the crate's one room with `unsafe`.
//!
//! The map is read-only. Bytes get into the file by `write`, never by a store into the map: so no
//! byte that was not handed to a flush is ever in the page cache, and a full disk is an error
//! instead of a SIGBUS.
//!
//! A page that cannot be had any more (somebody cut the file short, the disk cannot read it) is a SIGBUS
//! for who touches it. The handler puts a page of zeros there and marks the map as broken; a page of zeros
//! is no record, so the reader finds damage like any other. Faults in memory that is not ours go on to
//! the handler that was there before.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

pub(crate) struct Map {
    /// The whole segment. Only ranges below the durable position may be looked at.
    whole: Bytes,
    /// Shared with the owner inside `whole`: alone here when no reader is left.
    held: Arc<()>,
    slot: &'static Slot,
}

struct Mapped {
    memory: Mmap,
    slot: &'static Slot,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.slot.free(); // before the memory goes, and somebody else's comes to lie there
    }
}

impl Map {
    /// Maps the first `length` bytes; the file must be at least as long.
    pub(crate) fn new(file: &File, length: u32) -> io::Result<Self> {
        let found = file.metadata()?.len();
        if found < u64::from(length) {
            return Err(io::Error::other(format!("file has {found} bytes, {length} are needed")));
        }
        watch_for_bus_errors()?;
        // SAFETY: a map's bytes must not change under a `&[u8]`, and its file must not shrink.
        // The folder is locked by this process and segments are never cut short; when a foreign process
        // truncates one in spite of the lock, the pages that are gone become zeros (`mend`) and whoever
        // reads them meets a checksum that fails.
        // Bytes change only by flushes, which write at or after the durable position, while only
        // `slice` gives out references, always to ranges below it. A file is written from its
        // beginning again only after `release` proved that no reader is left.
        let memory = unsafe { MmapOptions::new().len(length as usize).map(file)? };
        let start = memory.as_ptr().addr();
        let slot = Slot::take(start..start + memory.len());
        let held = Arc::new(());
        let whole = Bytes::from_owner(Mapped { memory, slot, _held: Arc::clone(&held) });
        Ok(Self { whole, held, slot })
    }

    /// Bytes of the whole segment.
    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.whole.len()).expect("it was made of so many bytes of a u32")
    }

    /// Bytes below the durable position, without a copy; they keep the map alive.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        (range.start <= range.end && range.end <= self.whole.len()).then(|| self.whole.slice(range))
    }

    /// A page of it could not be had: the file was cut short, or the disk cannot read it.
    pub(crate) fn is_broken(&self) -> bool {
        self.slot.broken.load(Ordering::Acquire)
    }

    /// Takes its pages out of the process's memory. They stay in the page cache, and come back when somebody
    /// looks at them.
    pub(crate) fn let_go(&self) {
        let start = self.whole.as_ptr().cast_mut().cast();
        // SAFETY: the whole is one map from its first byte on and alive; it is read-only and of a file, so
        // who looks at a page next is given the same bytes again.
        unsafe {
            let _ = libc::madvise(start, self.whole.len(), libc::MADV_DONTNEED); // advice
        }
    }

    /// Gives the map up; true when nobody else holds any of its bytes, so that the file may be
    /// written again.
    pub(crate) fn release(self) -> bool {
        let Self { whole, held, .. } = self;
        drop(whole);
        Arc::into_inner(held).is_some()
    }
}

/// Reads the pages that hold these bytes of a map, and waits for the disk.
pub(crate) fn populate(bytes: &[u8]) {
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let before = bytes.as_ptr().addr() % page_bytes;
    let start = bytes.as_ptr().wrapping_sub(before).cast_mut().cast();
    // SAFETY: the bytes are borrowed, so the pages that hold them are mapped meanwhile; populating changes no
    // byte of them and no protection, and an address that the kernel does not like is an error.
    unsafe {
        // A failure is the reader's to find out: it meets the same page.
        let _ = libc::madvise(start, bytes.len() + before, libc::MADV_POPULATE_READ);
    }
}

/// Pages of all maps that could not be had so far: when it has not risen, no map has to be asked.
pub(crate) fn faults() -> usize {
    FAULTS.load(Ordering::Acquire)
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
static MAPS: Shelf = Shelf::new();
static BEFORE_US: OnceLock<libc::sigaction> = OnceLock::new();

/// Where one map lies. The handler reads these while other threads map and unmap; so there is no lock, and a
/// slot is used again but never freed.
struct Slot {
    taken: AtomicBool,
    /// 0 while it names no map.
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
}

/// Slots in one piece, and the way to more of them.
struct Shelf {
    slots: [Slot; Shelf::SLOTS],
    next: OnceLock<Box<Shelf>>,
}

impl Shelf {
    /// A log of 8 GiB has 128 segments.
    const SLOTS: usize = 128;

    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; Self::SLOTS], next: OnceLock::new() }
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    fn take(memory: Range<usize>) -> &'static Self {
        let mut shelf = &MAPS;
        loop {
            for slot in &shelf.slots {
                if !slot.taken.swap(true, Ordering::AcqRel) {
                    slot.broken.store(false, Ordering::Relaxed);
                    slot.end.store(memory.end, Ordering::Relaxed);
                    slot.start.store(memory.start, Ordering::Release);
                    return slot;
                }
            }
            shelf = shelf.next.get_or_init(|| Box::new(Shelf::new()));
        }
    }

    fn free(&self) {
        self.start.store(0, Ordering::Release);
        self.end.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    /// The start is read again, because a slot of another map may change hands meanwhile; the one that
    /// holds `address` cannot, since who faulted there holds its bytes.
    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0
            && start <= address
            && address < self.end.load(Ordering::Acquire)
            && start == self.start.load(Ordering::Acquire)
    }
}

/// Puts zeros where a page of a map is gone; false when the address is in no map. Runs in the signal
/// handler: atomics and one system call, no lock and no allocation.
fn mend(address: usize) -> bool {
    let mut shelf = Some(&MAPS);
    while let Some(slots) = shelf {
        if let Some(slot) = slots.slots.iter().find(|slot| slot.holds(address)) {
            let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
            let page = address - address % page_bytes;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let place = std::ptr::with_exposed_provenance_mut(page);
            // SAFETY: the page lies in a map of ours that is alive, because the thread that faulted holds its
            // bytes; it is replaced by readable zeros of the same size, and nothing else is touched.
            let put = unsafe { libc::mmap(place, page_bytes, libc::PROT_READ, flags, -1, 0) };
            slot.broken.store(true, Ordering::Release);
            FAULTS.fetch_add(1, Ordering::AcqRel);
            return put != libc::MAP_FAILED;
        }
        shelf = slots.next.get().map(|next| &**next);
    }
    false
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a siginfo that is valid during the call; `si_addr` is there
    // for faults, whose code is positive. `__errno_location` is this thread's own errno, which the code
    // that was interrupted may be about to read.
    unsafe {
        let is_fault = (*info).si_code > 0;
        let errno = *libc::__errno_location();
        let mended = is_fault && mend((*info).si_addr().addr());
        *libc::__errno_location() = errno;
        if mended {
            return;
        }
        let Some(before) = BEFORE_US.get().filter(|before| before.sa_sigaction > libc::SIG_IGN) else {
            libc::signal(signal, libc::SIG_DFL);
            if !is_fault {
                libc::raise(signal); // sent by somebody: nothing will fault again by itself
            }
            return;
        };
        // The address was given to the kernel as a handler, with these flags, by whoever was here before us.
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
        // SAFETY: both structs are plain data for which zeros are valid (no handler, empty mask); `sigaction`
        // reads and writes no more than them. The handler does only what a handler may (see `mend`).
        unsafe {
            if let Ok(bytes) = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)) {
                PAGE_BYTES.store(bytes, Ordering::Relaxed);
            }
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
            let _ = BEFORE_US.set(before); // the only call
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
    fn bytes_outlive_the_map_and_are_known_to_be_held() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let map = Map::new(&file, 8192).unwrap();
        let held = map.slice(10..20).unwrap();
        assert!(!map.release());
        assert_eq!(held, [7; 10][..]);

        assert!(Map::new(&file, 8192).unwrap().release());
    }

    #[test]
    fn a_file_too_short_is_refused_instead_of_faulting_later() {
        let file = tempfile::tempfile().unwrap();
        assert!(Map::new(&file, 4096).is_err());
    }

    /// APP-05: the process lives, what is gone reads as zeros, and only the map that lost it is broken.
    #[test]
    fn a_file_that_was_cut_short_breaks_its_map_and_nothing_else() {
        let page = 64 << 10; // a multiple of any page there is
        let file = |byte: u8| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![byte; 3 * page]).unwrap();
            file
        };
        let (cut, whole) = (file(7), file(8));
        let length = u32::try_from(3 * page).unwrap();
        let (map, other) = (Map::new(&cut, length).unwrap(), Map::new(&whole, length).unwrap());
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
        assert!(!Map::new(&whole, length).unwrap().is_broken(), "a slot that is used again is whole");
    }

    #[test]
    fn pages_are_read_ahead_or_left_alone() {
        let page = 64 << 10;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 * page]).unwrap();
        let map = Map::new(&file, u32::try_from(3 * page).unwrap()).unwrap();
        let bytes = map.slice(100..3 * page).unwrap();
        file.set_len(page as u64).unwrap();
        populate(&bytes);
        populate(&bytes[..0]);
        assert!(bytes[..page - 100].iter().all(|byte| *byte == 7) && !map.is_broken());
    }

    /// Two more shelves than the first, all found by the handler.
    #[test]
    fn there_is_a_place_for_every_map() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let maps: Vec<_> = (0..300).map(|_| Map::new(&file, 8192).unwrap()).collect();
        file.set_len(0).unwrap();
        for map in &maps {
            assert_eq!(map.slice(0..1).unwrap()[0], 0);
            assert!(map.is_broken());
        }
    }
}
