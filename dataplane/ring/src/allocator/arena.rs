//! Which cells of the arena are in use: arithmetic, without access to the memory itself.
//!
//! An arena is an array of pages. All cells of a page have one size; a page that becomes empty may serve
//! any size next.

/// Bytes of a page: the kernel's size, so that an empty one can be released.
pub(super) const PAGE: usize = 4096;
/// Sizes and addresses of cells are multiples of this.
const STEP: usize = 16;
/// Larger allocations waste most of their pages, and use the system allocator.
pub(super) const CELL_BYTES_MAX: usize = PAGE / 2;
/// Marks the absence of a page number.
const NONE: u32 = u32::MAX;

/// Cell sizes in bytes: steps of 16 as long as a page holds sixteen or more, then the divisions of a page.
const SIZES: [u16; 30] = [
    16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, // in steps
    272, 288, 304, 336, 368, 400, 448, 512, 576, 672, 816, 1024, 1360, 2048, // 15, 14, … per page
];

/// The state of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArenaPage {
    /// One bit per cell, set while it is in use.
    taken: [u64; PAGE / STEP / 64],
    count: u16,
    /// Index into [`SIZES`].
    class: u8,
    /// Its neighbours in the list that it is in.
    next: u32,
    before: u32,
}

/// The pages and their free lists.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    pages: &'a mut [ArenaPage],
    /// Pages from here on were never used.
    fresh: u32,
    /// The first page of each size with a free cell.
    open: [u32; SIZES.len()],
    /// The first of the empty pages that are still resident.
    empty: u32,
    /// The first of the released pages.
    returned: u32,
}

/// The smallest size class that fits; `None`: none does.
fn class_of(bytes: usize, align: usize) -> Option<usize> {
    let fits = |size: &u16| usize::from(*size) >= bytes && usize::from(*size).is_multiple_of(align);
    SIZES.iter().position(fits)
}

impl<'a> Arena<'a> {
    /// Creates an arena of zeroed pages.
    pub(super) fn new(pages: &'a mut [ArenaPage]) -> Self {
        Self { pages, fresh: 0, open: [NONE; SIZES.len()], empty: NONE, returned: NONE }
    }

    /// Allocates a cell for this many bytes: its offset from the first page. `None`: it is too large for a
    /// cell, or the arena is full.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let class = class_of(bytes, align)?;
        let number = match self.open[class] {
            NONE => self.begin(class)?,
            number => number,
        };
        let cells = PAGE / usize::from(SIZES[class]);
        let page = &mut self.pages[number as usize];
        let cell = first_free(&page.taken, cells)?;
        page.taken[cell / 64] |= 1 << (cell % 64);
        page.count += 1;
        if usize::from(page.count) == cells {
            self.unlink(number);
        }
        Some(number as usize * PAGE + cell * usize::from(SIZES[class]))
    }

    /// Frees the cell that begins there.
    pub(super) fn free(&mut self, offset: usize) {
        let (at, inside) = (offset / PAGE, offset % PAGE);
        let page = &mut self.pages[at];
        let (class, number) = (usize::from(page.class), u32::try_from(at).unwrap_or(NONE));
        let size = usize::from(SIZES[class]);
        let cell = inside / size;
        let was_full = usize::from(page.count) == PAGE / size;
        page.taken[cell / 64] &= !(1 << (cell % 64));
        page.count -= 1;
        let is_empty = page.count == 0;
        if is_empty {
            if !was_full {
                self.unlink(number);
            }
            self.push(number, PageList::Empty);
        } else if was_full {
            self.push(number, PageList::Open);
        }
    }

    /// Takes an empty page that is still resident, to be released: its offset.
    pub(super) fn give_back(&mut self) -> Option<usize> {
        let number = self.empty;
        if number == NONE {
            return None;
        }
        self.unlink(number);
        self.push(number, PageList::Returned);
        Some(number as usize * PAGE)
    }

    /// Size of the cell that begins there, in bytes.
    pub(super) fn cell_bytes(&self, offset: usize) -> usize {
        usize::from(SIZES[usize::from(self.pages[offset / PAGE].class)])
    }

    /// Takes an empty page for cells of a size.
    fn begin(&mut self, class: usize) -> Option<u32> {
        let number = match (self.empty, self.returned) {
            (NONE, NONE) if (self.fresh as usize) < self.pages.len() => {
                self.fresh += 1;
                self.fresh - 1
            }
            (NONE, NONE) => return None,
            (NONE, number) | (number, _) => {
                self.unlink(number);
                number
            }
        };
        self.pages[number as usize] =
            ArenaPage { taken: [0; 4], count: 0, class: u8::try_from(class).ok()?, next: NONE, before: NONE };
        self.push(number, PageList::Open);
        Some(number)
    }

    fn push(&mut self, number: u32, list: PageList) {
        let class = usize::from(self.pages[number as usize].class);
        let first = match list {
            PageList::Open => &mut self.open[class],
            PageList::Empty => &mut self.empty,
            PageList::Returned => &mut self.returned,
        };
        let next = std::mem::replace(first, number);
        let page = &mut self.pages[number as usize];
        (page.next, page.before) = (next, NONE);
        if next != NONE {
            self.pages[next as usize].before = number;
        }
    }

    /// Removes a page from the list that it is in.
    fn unlink(&mut self, number: u32) {
        let ArenaPage { next, before, class, .. } = self.pages[number as usize];
        if before == NONE {
            let firsts = [&mut self.open[usize::from(class)], &mut self.empty, &mut self.returned];
            firsts.into_iter().filter(|first| **first == number).for_each(|first| *first = next);
        } else {
            self.pages[before as usize].next = next;
        }
        if next != NONE {
            self.pages[next as usize].before = before;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum PageList {
    Open,
    Empty,
    Returned,
}

fn first_free(taken: &[u64], cells: usize) -> Option<usize> {
    let at = taken.iter().position(|word| *word != u64::MAX)?;
    let cell = at * 64 + taken[at].trailing_ones() as usize;
    (cell < cells).then_some(cell)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pages(count: usize) -> Vec<ArenaPage> {
        vec![ArenaPage { taken: [0; 4], count: 0, class: 0, next: 0, before: 0 }; count]
    }

    #[test]
    fn cell_has_requested_size_and_alignment() {
        for (bytes, align, size) in [
            (1, 1, 16),
            (17, 16, 32),
            (256, 8, 256),
            (257, 8, 272),
            (200, 128, 256),
            (300, 128, 512),
            (700, 64, 1024),
            (2048, 16, 2048),
        ] {
            assert_eq!(class_of(bytes, align).map(|class| SIZES[class]), Some(size), "{bytes} at {align}");
        }
        assert_eq!(class_of(CELL_BYTES_MAX + 1, 8), None);
        assert!(SIZES.is_sorted() && SIZES.iter().all(|size| usize::from(*size).is_multiple_of(STEP)));
        assert_eq!(usize::from(SIZES[SIZES.len() - 1]), CELL_BYTES_MAX);
    }

    #[test]
    fn cells_never_overlap() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut pages = pages(64);
            let mut arena = Arena::new(&mut pages);
            let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
            let mut refused = 0;
            for _ in 0..20_000 {
                let bytes_max = if random.u8(..) < 200 { 300 } else { CELL_BYTES_MAX };
                let bytes = random.usize(1..=bytes_max);
                let align = 1 << random.u32(0..=7);
                if random.usize(..1000) < taken.len() {
                    let at = *taken.keys().nth(random.usize(..taken.len())).unwrap();
                    assert!(arena.cell_bytes(at) >= taken[&at]);
                    taken.remove(&at);
                    arena.free(at);
                } else if let Some(at) = arena.take(bytes, align) {
                    let before = taken.range(..=at).next_back().map_or(0, |(at, bytes)| at + bytes);
                    let next = taken.range(at..).next().map_or(64 * PAGE, |(at, _)| *at);
                    assert!(before <= at && at + bytes <= next, "{at} overlaps");
                    assert!(at.is_multiple_of(align) && at / PAGE == (at + bytes - 1) / PAGE);
                    taken.insert(at, bytes);
                } else {
                    refused += 1;
                }
                if random.u8(..) == 0
                    && let Some(page) = arena.give_back()
                {
                    assert_eq!(taken.range(page..page + PAGE).next(), None, "a page that is in use");
                }
            }
            assert!(refused > 0, "it was never full");
            taken.into_keys().for_each(|at| arena.free(at));
            let back = std::iter::from_fn(|| arena.give_back()).count();
            assert!(back > 0 && arena.take(16, 16).is_some());
        }
    }

    #[test]
    fn empty_page_is_reused_for_any_size() {
        let mut pages = pages(2);
        let mut arena = Arena::new(&mut pages);
        let at = arena.take(2048, 16).unwrap();
        arena.free(at);
        assert_eq!(arena.take(32, 16), Some(0));
        arena.free(0);
        assert_eq!((arena.give_back(), arena.give_back()), (Some(0), None));
        let cells: Vec<_> = (0..4).map(|_| arena.take(2048, 16)).collect();
        assert_eq!(cells, [Some(0), Some(2048), Some(PAGE), Some(PAGE + 2048)]);
        assert_eq!(arena.take(16, 16), None, "there are two pages");
    }
}
