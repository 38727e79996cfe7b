//! Segment files that changed behind the log's back: cut short by somebody, or unreadable.
//!
//! Reading what is gone costs a reader its record and never the process its life (see [`crate::map`]). Here
//! the owner finds out which files it happened to, so that whoever must act can be told.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::header::Header;
use crate::log::Log;
use crate::map;
use crate::position::Position;
use crate::segment::Segment;

/// A segment that has lost some of its file. Records in it whose bytes are gone are passed over as damage;
/// the others are read as before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub file: PathBuf,
    /// The positions that the segment covers.
    pub from: Position,
    pub to: Position,
    /// The file's length now, in bytes; `None` when it is whole, and some page of it cannot be read.
    pub cut_to: Option<u64>,
    /// It is written to: the log is poisoned and takes nothing more.
    pub poisons: bool,
}

impl Broken {
    /// One whose file was found short while nobody had it open.
    pub(crate) fn cut(file: &Path, header: &Header, bytes: u64) -> Self {
        let (from, to) = (header.base, header.base + u64::from(header.capacity));
        let (from, to) = (Position::new(from), Position::new(to));
        Self { file: file.into(), from, to, cut_to: Some(bytes), poisons: false }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.cut_to {
            Some(bytes) => {
                let all = self.to.get() - self.from.get();
                write!(
                    f,
                    "{file} was cut from outside to {bytes} of {all} bytes: keep others from the log's folder"
                )
            }
            None => write!(f, "{file} has pages that cannot be read: see the kernel's log about its disk"),
        }
    }
}

impl Log {
    /// Looks whether all segment files are still whole: one system call for each. What is found is told
    /// once; a segment that is written to poisons the log, because acknowledged records in it are gone and
    /// only opening the log again finds out which.
    pub fn look_at_files(&mut self) -> Vec<Broken> {
        let mut found = Vec::new();
        let any_fault = map::faults() > 0;
        let written_from = self.staged.front().map_or(self.visible.get(), |staged| staged.base);
        for segment in self.segments.iter_mut().filter(|one| !one.broken) {
            let cut_to = cut_to(segment);
            if cut_to.is_none() && !(any_fault && segment.map.is_broken()) {
                continue;
            }
            segment.broken = true;
            segment.keep = true;
            let (from, to) = (Position::new(segment.base()), Position::new(segment.limit()));
            let poisons = segment.base() >= written_from;
            found.push(Broken { file: segment.path.clone(), from, to, cut_to, poisons });
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
