//! Reads stored requests and responses from a log, without waiting for the disk.

use std::rc::Rc;

use codec::record::EventRecord;
use wal::{LogPosition, ReadaheadWindow, StreamId};

use super::feed::StreamFeed;
use super::limits::{PAGE_IN_BYTES, PAGE_IN_RECORD_BYTES, RECENT_BYTES, RECORDS_PER_TURN_MAX};
use super::log_writer::LogWriter;

/// For all records of a stream.
const SCAN: ReadaheadWindow =
    ReadaheadWindow { recent_bytes: RECENT_BYTES, window_bytes: PAGE_IN_BYTES, record_bytes: PAGE_IN_RECORD_BYTES };
/// For one record.
const SINGLE: ReadaheadWindow = ReadaheadWindow { window_bytes: 1, ..SCAN };

/// Reads the records of a stream that were there before, once, a few in each turn, into the log's index.
pub(super) fn index_requests(writer: &Rc<LogWriter>, feed: &StreamFeed) {
    if !writer.requests.begin_scan(feed.id) {
        return;
    }
    let (writer, stream, end) = (Rc::clone(writer), feed.id, writer.log().end(feed.id));
    writer.ring().clone().spawn(async move {
        scan(&writer, stream, end).await;
        writer.requests.end_scan();
    });
}

async fn scan(writer: &LogWriter, stream: StreamId, end: LogPosition) {
    let (mut next, mut warm) = (LogPosition::ORIGIN, LogPosition::ORIGIN..LogPosition::ORIGIN);
    while next < end && !writer.is_released() {
        let job = writer.log().page_in(stream, next, &warm, SCAN);
        if let Some(job) = job {
            warm = job.ranges();
            writer.readahead.fetch(job).await;
        }
        for _ in 0..RECORDS_PER_TURN_MAX {
            let Some(read) = writer.log().read(stream, next) else { return };
            if read.position >= end {
                return;
            }
            next = read.next;
            if let Ok(record) = EventRecord::decode(read.payload) {
                writer.requests.note_record(stream, read.position, &record);
            }
        }
        writer.ring().yield_now().await;
    }
}

/// The record at this position, and when it was stored.
pub(super) async fn read(writer: &LogWriter, stream: StreamId, position: LogPosition) -> Option<(u64, EventRecord)> {
    let job = writer.log().page_in(stream, position, &(LogPosition::ORIGIN..LogPosition::ORIGIN), SINGLE);
    if let Some(job) = job {
        writer.readahead.fetch(job).await;
    }
    let read = writer.log().read(stream, position).filter(|read| read.position == position)?;
    Some((read.at_ms, EventRecord::decode(read.payload).ok()?))
}
