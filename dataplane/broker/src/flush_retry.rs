//! Retries a flush that failed because the kernel was temporarily short of a resource.
//!
//! It retries ENOMEM (no memory for the page cache, a bio or the request itself), EAGAIN (no request or no slot in the device's
//! queue) and EINTR (a signal came first): the kernel could not start or continue, and the same call may succeed in a moment.
//! Each attempt writes all bytes of the flush again before it syncs, so all of its pages are dirty again, and a successful
//! attempt proves that every one of them is on the disk, whatever an earlier one has left behind.
//!
//! Every other error ends the log. After EIO, ENOSPC or EDQUOT the kernel marks pages as clean that never reached the disk, and
//! may report the error only once: a later success proves nothing of what was written before.

use std::io;

use ring::{Ring, RingFile};
use wal::Flush;

use super::limits::{FLUSH_RETRY_DELAY_MAX, FLUSH_RETRY_DELAY_MIN, FLUSH_RETRY_MAX};

/// Whether the error is a temporary lack of a resource.
fn is_transient(why: &io::Error) -> bool {
    // ENOMEM, EAGAIN, EINTR
    matches!(why.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Writes the flush and makes it durable; retries for [`FLUSH_RETRY_MAX`].
pub(super) async fn write_durable(ring: &Ring, file: &RingFile, flush: &Flush) -> io::Result<()> {
    let Err(why) = file.write_at_durable(flush.bytes.clone(), flush.offset).await else { return Ok(()) };
    Box::pin(retry(ring, file, flush, why)).await // boxed: hardly ever needed
}

async fn retry(ring: &Ring, file: &RingFile, flush: &Flush, mut why: io::Error) -> io::Result<()> {
    let (give_up_at, mut delay) = (ring.now() + FLUSH_RETRY_MAX, FLUSH_RETRY_DELAY_MIN);
    if is_transient(&why) {
        tracing::warn!(%why, bytes = flush.bytes.len(), "a flush of the event log failed; retrying");
    }
    while is_transient(&why) && ring.now() < give_up_at {
        ring.sleep(delay).await;
        delay = (delay * 2).min(FLUSH_RETRY_DELAY_MAX);
        match file.write_at_durable(flush.bytes.clone(), flush.offset).await {
            Ok(()) => {
                tracing::info!("the event log accepts writes again");
                return Ok(());
            }
            Err(again) => why = again,
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_those_without_an_outcome() {
        let is = |errno| is_transient(&io::Error::from_raw_os_error(errno));
        let [interrupted, io_error, again, no_memory, no_space, read_only, quota] = [4, 5, 11, 12, 28, 30, 122];
        assert!(is(interrupted) && is(again) && is(no_memory));
        assert!(!is(io_error) && !is(no_space) && !is(read_only) && !is(quota));
    }
}
