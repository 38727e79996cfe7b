//! The dynamic table (RFC 7541 2.3.2): the last fields of one direction, in one allocation.

use std::collections::VecDeque;

use super::FIELD_OVERHEAD;

/// One field in the table.
#[derive(Debug, Clone, Copy)]
struct TableEntry {
    /// Where its name begins, counted from the first byte that the table ever had.
    start: u64,
    name: u32,
    value: u32,
    /// Hashes of the name and of the whole field, for the encoder.
    hashes: FieldHashes,
}

/// Hashes of a field that is looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FieldHashes {
    pub(super) name: u32,
    pub(super) field: u32,
}

/// The table. An index counts from the newest entry, which has index 0.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// The newest first.
    entries: VecDeque<TableEntry>,
    bytes: Vec<u8>,
    /// The position of `bytes[0]`.
    base: u64,
    /// As the protocol counts it. size <= max
    size: usize,
    max: usize,
}

impl DynamicTable {
    pub(super) fn new(max: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: Vec::new(), base: 0, size: 0, max }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        self.entries.get(index).map(|entry| self.text(*entry))
    }

    /// Adds a field. One that is larger than the table empties it (RFC 7541 4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8], hashes: FieldHashes) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        self.evict(size);
        if size > self.max {
            return;
        }
        self.compact();
        let start = self.base + self.bytes.len() as u64;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += size;
        self.entries.push_front(TableEntry { start, name: name.len() as u32, value: value.len() as u32, hashes });
    }

    /// The index of the whole field, or else of an entry with its name.
    pub(super) fn find(&self, name: &[u8], value: &[u8], hashes: FieldHashes) -> TableMatch {
        let mut found = TableMatch::None;
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.hashes.field == hashes.field && self.text(*entry) == (name, value) {
                return TableMatch::Field(index);
            }
            if found == TableMatch::None && entry.hashes.name == hashes.name && self.text(*entry).0 == name {
                found = TableMatch::Name(index);
            }
        }
        found
    }

    fn text(&self, entry: TableEntry) -> (&[u8], &[u8]) {
        let start = (entry.start - self.base) as usize;
        let (name, value) = self.bytes[start..].split_at(entry.name as usize);
        (name, &value[..entry.value as usize])
    }

    /// Makes room for `more` bytes.
    fn evict(&mut self, more: usize) {
        while self.size + more > self.max
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.name as usize + oldest.value as usize + FIELD_OVERHEAD;
        }
    }

    /// Removes the bytes of evicted entries, once they are as many as the table may have: each byte is moved at most
    /// once for each byte that was added.
    fn compact(&mut self) {
        let first = self.entries.back().map_or(self.base + self.bytes.len() as u64, |oldest| oldest.start);
        let unused = (first - self.base) as usize;
        if unused >= self.max {
            self.bytes.drain(..unused);
            self.base = first;
        }
    }
}

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableMatch {
    Field(usize),
    Name(usize),
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &DynamicTable) -> Vec<u8> {
        (0..).map_while(|index| table.get(index)).map(|(name, _)| name[0]).collect()
    }

    #[test]
    fn oldest_entries_are_evicted_and_memory_stays_bounded() {
        let mut table = DynamicTable::new(3 * (FIELD_OVERHEAD + 2));
        for turn in 0..1000 {
            for name in b'a'..=b'e' {
                table.insert(&[name], b"v", FieldHashes::default());
            }
            assert_eq!(names(&table), b"edc");
            assert!(table.bytes.len() <= 2 * table.max, "turn {turn}: {}", table.bytes.len());
        }
        table.set_max(FIELD_OVERHEAD + 2);
        assert_eq!(names(&table), b"e");
        table.insert(b"x", &[b'v'; 100], FieldHashes::default());
        assert_eq!((names(&table).len(), table.size), (0, 0));
    }
}
