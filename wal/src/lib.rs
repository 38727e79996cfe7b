//! The write-ahead log: bytes that survive.
//!
//! One [`Log`] per core is shared by many streams, so that one flush serves them all. It never
//! waits by itself: [`Log::next_flush`] hands out a write, the owner makes it durable in its own way
//! (io_uring with RWF_DSYNC, or `pwrite` and `fdatasync`) and reports back with
//! [`Log::flush_done`]. *Visible* is what was appended, *durable* what a crash cannot take; only
//! durable records can be read, and only they may be acknowledged.
//!
//! Start reading at [`Log`]; the bytes on disk are drawn in `FORMAT.md`.
//!
//! Deliberately absent: threads, clocks and chance (they are passed in), knowledge of what an
//! event is, replication.

#![deny(unsafe_code)]

mod bookmark;
mod broken;
mod codec;
mod error;
mod flush;
mod header;
mod headless;
mod index;
mod inspect;
mod ledger;
pub mod limits;
mod log;
mod map;
mod moving;
mod options;
mod page_in;
mod position;
mod read;
mod readers;
mod recovery;
mod release;
mod roll;
mod scan;
mod segment;
mod space;
mod time;

pub use bookmark::Bookmark;
pub use broken::Broken;
pub use error::{AppendError, Error};
pub use flush::{Flush, Urgency};
pub use inspect::{BookmarkInspection, Entry, Inspection, StreamInspection, dump, inspect, is_log};
pub use log::Log;
pub use options::Options;
pub use page_in::{Ahead, PageIn};
pub use position::{Position, StreamId};
pub use read::{Damage, Record};
pub use recovery::{Hole, Recovery};
pub use segment::{PrepareSpare, Spare};
pub use space::{Reclaimed, Stat, StreamStat};
