//! Segment files that were truncated, removed or became unreadable while the log was open.
//!
//! A reader loses the records that are gone; the process survives (see [`crate::map`]). This module tells
//! the owner which files are affected, so that an operator can act.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::header::SegmentHeader;
use crate::position::LogPosition;

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
