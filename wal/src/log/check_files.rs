//! Looks for segment files that other programs truncated, removed or replaced while the log is open.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use super::WriteAheadLog;
use crate::broken_segment::BrokenSegment;
use crate::map;
use crate::position::LogPosition;
use crate::segment::Segment;

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
