//! Segment files that were truncated, removed or became unreadable while the log was open.
//!
//! A reader loses the records that are gone; the process survives (see [`crate::map`]). This module tells
//! the owner which files are affected, so that an operator can act.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::header::SegmentHeader;
use crate::log::WriteAheadLog;
use crate::map;
use crate::position::LogPosition;
use crate::segment::Segment;

/// A segment that lost part of its file. Records whose bytes are gone are skipped as damage; the others can
/// still be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenSegment {
    pub file: PathBuf,
    /// The positions that the segment covers.
    pub from: LogPosition,
    pub to: LogPosition,
    /// Current length of the file, in bytes; `None` when the file is complete but one of its pages cannot
    /// be read.
    pub cut_to: Option<u64>,
    /// The file was removed, renamed or replaced: its data is gone when this process ends.
    pub removed: bool,
    /// It is the tail segment: the log is poisoned and rejects appends.
    pub poisons: bool,
}

impl BrokenSegment {
    /// A segment whose file was found truncated when the log was opened.
    pub(crate) fn cut(file: &Path, header: &SegmentHeader, bytes: u64) -> Self {
        let (from, to) = (header.base, header.base + u64::from(header.capacity));
        let (from, to) = (LogPosition::new(from), LogPosition::new(to));
        Self { file: file.into(), from, to, cut_to: Some(bytes), removed: false, poisons: false }
    }
}

impl fmt::Display for BrokenSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        if self.removed {
            let lost = if self.poisons {
                "the log rejects appends; let subscribers receive the rest, then restart"
            } else {
                "its live records are copied to the newest segment"
            };
            return write!(
                f,
                "{file} was removed or replaced from outside: {lost}, and do not let other programs change the folder"
            );
        }
        match self.cut_to {
            Some(bytes) => {
                let all = self.to.get() - self.from.get();
                write!(
                    f,
                    "{file} was truncated from outside to {bytes} of {all} bytes: do not let other programs change the log's folder"
                )
            }
            None => write!(f, "{file} has pages that cannot be read: see the kernel's log about its disk"),
        }
    }
}

impl WriteAheadLog {
    /// Checks that all segment files are complete and in place, with two system calls per file. Reports
    /// each finding once. A broken tail segment poisons the log, because acknowledged records in it are
    /// lost and only reopening the log shows which.
    pub fn check_files(&mut self) -> Vec<BrokenSegment> {
        let mut found = Vec::new();
        let any_fault = map::faults() > 0;
        let written_from = self.staged.front().map_or(self.visible.get(), |staged| staged.base);
        for segment in self.segments.iter_mut().filter(|one| !one.broken) {
            let (cut_to, removed) = (cut_to(segment), is_removed(segment));
            let is_unreadable = cut_to.is_some() || (any_fault && segment.map.is_broken());
            if !is_unreadable && !removed {
                continue;
            }
            segment.broken = true;
            segment.keep = is_unreadable;
            segment.removed = removed;
            let (from, to) = (LogPosition::new(segment.base()), LogPosition::new(segment.limit()));
            let poisons = segment.base() >= written_from;
            found.push(BrokenSegment { file: segment.path.clone(), from, to, cut_to, removed, poisons });
        }
        if let Some(broken) = found.iter().find(|broken| broken.poisons)
            && self.poison.is_none()
        {
            self.poison = Some(broken.to_string().into());
        }
        found
    }
}

fn cut_to(segment: &Segment) -> Option<u64> {
    let length = segment.file.metadata().ok()?.len();
    (length < u64::from(segment.header.capacity)).then_some(length)
}

/// Whether the path no longer leads to this file. A file that cannot be checked counts as present.
fn is_removed(segment: &Segment) -> bool {
    let Ok(ours) = segment.file.metadata() else { return false };
    match fs::symlink_metadata(&segment.path) {
        Ok(named) => (named.dev(), named.ino()) != (ours.dev(), ours.ino()),
        Err(why) => matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Whether a file has no name left in any folder. One system call that does not wait for the disk, so it
/// can be made before each acknowledgement.
pub(crate) fn is_unlinked(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}
