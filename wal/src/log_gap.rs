//! A range of acknowledged positions that is lost, as recovery and `verify` report it.

use std::fmt;
use std::path::PathBuf;

use crate::position::LogPosition;

/// A gap in the acknowledged data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogGap {
    /// The affected file; `None` when a whole segment is missing and the name of its file is unknown.
    pub file: Option<PathBuf>,
    pub from: LogPosition,
    pub to: LogPosition,
    pub cause: GapCause,
}

/// Why the positions are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapCause {
    /// Part of a segment cannot be read.
    Damage,
    /// The segment that begins the gap has no file.
    Missing,
    /// The segment's file is empty, or has no valid header or no records behind it.
    NoHeader,
}

impl LogGap {
    /// A whole segment without a file of a known name.
    pub(crate) fn missing(from: u64, to: u64) -> Self {
        let (from, to) = (LogPosition::new(from), LogPosition::new(to));
        Self { file: None, from, to, cause: GapCause::Missing }
    }
}

/// The file and what is wrong with it, without the positions.
impl fmt::Display for LogGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(file) = &self.file else { return f.write_str("a missing segment") };
        let file = file.display();
        match self.cause {
            GapCause::Damage => write!(f, "{file}"),
            GapCause::Missing => write!(f, "{file} is missing"),
            GapCause::NoHeader => write!(f, "{file} has lost its header or all of its records"),
        }
    }
}
