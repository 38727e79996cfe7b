//! The write-ahead log: durable storage of records.
//!
//! One [`WriteAheadLog`] per core is shared by many streams, so that one flush serves them all. It never
//! blocks: [`WriteAheadLog::next_flush`] returns a write, the owner makes it durable in its own way
//! (io_uring with RWF_DSYNC, or `pwrite` and `fdatasync`) and reports back with
//! [`WriteAheadLog::flush_done`]. *Visible* records are appended, *durable* records survive a crash; only
//! durable records can be read, and only they may be acknowledged.
//!
//! Start reading at [`WriteAheadLog`]; `FORMAT.md` describes the bytes on disk.
//!
//! Deliberately absent: threads, clocks and randomness (they are passed in), knowledge of what an event is,
//! replication.

#![deny(unsafe_code)]

mod broken_segment;
mod codec;
mod cursor;
mod error;
mod header;
mod index;
mod inspect;
pub mod limits;
mod log;
mod log_gap;
mod log_state;
mod map;
mod options;
mod parallel_scan;
mod position;
mod recovery;
mod scan;
mod segment;
mod segment_state;
mod unformatted;

pub use broken_segment::BrokenSegment;
pub use cursor::Cursor;
pub use error::{AppendError, Error};
pub use inspect::{CursorInspection, InspectedRecord, LogInspection, StreamInspection, dump, inspect, is_log};
pub use log::{
    Flush, FlushUrgency, LogRecord, LogStat, ReadaheadRequest, ReadaheadWindow, ReclaimedSpace, RecordDamage,
    StreamStat, WriteAheadLog,
};
pub use log_gap::{GapCause, LogGap};
pub use options::LogOptions;
pub use position::{LogPosition, StreamId};
pub use recovery::Recovery;
pub use segment::{SegmentPreparation, SpareSegment};
