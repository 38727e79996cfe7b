//! Reads the log files of an instance as one, and selects the requested lines.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// Bytes read of a log at a time.
const READ_BYTES: usize = 64 * 1024;

/// Which of the lines are shown, and how.
pub(super) struct LogLineFilter {
    pub(super) timestamps: bool,
    pub(super) since: Option<Timestamp>,
    /// Bytes that may still be shown.
    pub(super) bytes_left: usize,
    /// The last piece was not the end of its line.
    pub(super) in_line: bool,
}

impl LogLineFilter {
    pub(super) fn filter(&mut self, entries: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(entries.len());
        for entry in entries.split_inclusive(|byte| *byte == b'\n') {
            let Some((time, tag, text)) = split_line(entry) else { continue };
            let written_at = std::str::from_utf8(time).ok().and_then(|time| time.parse::<Timestamp>().ok());
            if self.since.is_some_and(|since| written_at.is_some_and(|written_at| written_at < since)) {
                continue;
            }
            if self.timestamps && !self.in_line {
                shown.extend_from_slice(time);
                shown.push(b' ');
            }
            shown.extend_from_slice(text);
            self.in_line = tag == b"P";
            if !self.in_line {
                shown.push(b'\n');
            }
        }
        shown.truncate(self.bytes_left);
        self.bytes_left -= shown.len();
        shown
    }
}

/// Time, tag and text of an entry; the output's name stands between the first two.
fn split_line(entry: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let entry = entry.strip_suffix(b"\n").unwrap_or(entry);
    let mut parts = entry.splitn(4, |byte| *byte == b' ');
    let (time, _, tag) = (parts.next()?, parts.next()?, parts.next()?);
    Some((time, tag, parts.next()?))
}

/// An instance's log files, read as one: the older one, then the present one, and whatever replaces it.
pub(in crate::api) struct InstanceLogFiles {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of an entry whose end is not yet written.
    partial_line: Vec<u8>,
}

impl InstanceLogFiles {
    pub(in crate::api) fn open(path: &Path) -> Self {
        let file = File::open(path.with_extension("log.1")).or_else(|_| File::open(path)).ok();
        Self { path: path.to_owned(), file, partial_line: Vec::new() }
    }

    /// Some whole entries; nothing when there are none at the moment.
    pub(in crate::api) fn read(&mut self) -> Vec<u8> {
        loop {
            // Looked up before the read: what is written to a file after it was replaced is nothing.
            let next = File::open(&self.path).ok().filter(|next| inode(Some(next)) != inode(self.file.as_ref()));
            let mut piece = vec![0; READ_BYTES];
            let bytes = self.file.as_mut().and_then(|file| file.read(&mut piece).ok()).unwrap_or(0);
            if bytes == 0 {
                if next.is_none() {
                    return Vec::new();
                }
                self.file = next;
                continue;
            }
            self.partial_line.extend_from_slice(&piece[..bytes]);
            if let Some(end) = self.partial_line.iter().rposition(|byte| *byte == b'\n') {
                return self.partial_line.drain(..=end).collect();
            }
        }
    }

    /// The last lines of all that is there.
    pub(super) fn tail(&mut self, lines: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let piece = self.read();
            if piece.is_empty() {
                break;
            }
            all.extend_from_slice(&piece);
        }
        let ends = |entry: &&[u8]| split_line(entry).is_some_and(|(_, tag, _)| tag != b"P");
        let entries: Vec<&[u8]> = all.split_inclusive(|byte| *byte == b'\n').collect();
        let surplus = entries.iter().filter(|entry| ends(entry)).count().saturating_sub(lines);
        let mut passed = 0;
        let kept = entries.iter().skip_while(|entry| {
            let goes = passed < surplus;
            passed += usize::from(ends(entry));
            goes
        });
        kept.copied().collect::<Vec<_>>().concat()
    }
}

fn inode(file: Option<&File>) -> Option<u64> {
    file.and_then(|file| Some(file.metadata().ok()?.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(folder: &Path) -> InstanceLogFiles {
        std::fs::write(folder.join("7.log.1"), "2026-01-31T12:00:00Z stdout F one\n").unwrap();
        let lines = "2026-01-31T12:00:01Z stdout P tw\n2026-01-31T12:00:01Z stdout F o\n\
                     2026-01-31T12:00:02Z stderr F three 3\n";
        std::fs::write(folder.join("7.log"), lines).unwrap();
        InstanceLogFiles::open(&folder.join("7.log"))
    }

    fn rules() -> LogLineFilter {
        LogLineFilter { timestamps: false, since: None, bytes_left: usize::MAX, in_line: false }
    }

    fn all(log: &mut InstanceLogFiles, rules: &mut LogLineFilter) -> String {
        let mut shown = Vec::new();
        loop {
            let piece = log.read();
            if piece.is_empty() {
                return String::from_utf8(shown).unwrap();
            }
            shown.extend(rules.filter(&piece));
        }
    }

    #[test]
    fn both_files_are_read_and_pieces_of_lines_joined() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(all(&mut log(folder.path()), &mut rules()), "one\ntwo\nthree 3\n");
        let mut stamped = LogLineFilter { timestamps: true, ..rules() };
        let shown = all(&mut log(folder.path()), &mut stamped);
        assert_eq!(shown.lines().nth(1), Some("2026-01-31T12:00:01Z two"));
    }

    #[test]
    fn a_tail_counts_lines_and_not_their_pieces() {
        let folder = tempfile::tempdir().unwrap();
        for (lines, expected) in [(0, ""), (1, "three 3\n"), (2, "two\nthree 3\n"), (9, "one\ntwo\nthree 3\n")] {
            let tail = log(folder.path()).tail(lines);
            assert_eq!(String::from_utf8(rules().filter(&tail)).unwrap(), expected, "{lines}");
        }
    }

    #[test]
    fn what_is_older_and_what_is_too_much_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut late = LogLineFilter { since: "2026-01-31T12:00:02Z".parse().ok(), ..rules() };
        assert_eq!(all(&mut log(folder.path()), &mut late), "three 3\n");
        let mut short = LogLineFilter { bytes_left: 5, ..rules() };
        assert_eq!(all(&mut log(folder.path()), &mut short), "one\nt");
    }

    #[test]
    fn a_log_that_is_replaced_while_it_is_read_goes_on_in_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path());
        all(&mut log, &mut rules());
        let path = folder.path().join("7.log");
        std::fs::rename(&path, folder.path().join("7.log.1")).unwrap();
        std::fs::write(&path, "2026-01-31T12:00:03Z stdout F four\n").unwrap();
        assert_eq!(all(&mut log, &mut rules()), "four\n");
    }
}
