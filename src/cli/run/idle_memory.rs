//! Memory that goes back to the kernel: code that only the start needed, and pages that a burst of writes or of large requests
//! left empty.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task;
use tokio::time::{Instant, timeout};

/// A start's own work is done after this: a first start still processes its stored objects.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// When nothing was written for this long ...
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// ... after at least this many writes, the pages that they left empty are released.
const WRITES_MIN: u64 = 100;
/// This many writes load 20 MiB of code to create a thousand Services, which is released too. Not after
/// fewer: a cold start's first request would wait for pages that it needs again.
const MANY_WRITES: u64 = 5000;

/// Once the start's work is done, its code can be released.
pub(super) async fn settle() {
    tokio::time::sleep(SETTLED_AFTER).await;
    release_code_pages();
}

fn release_code_pages() {
    if let Err(why) = dataplane::code_pages::release_pages() {
        tracing::debug!(%why, "unused program code stays in memory");
    }
}

/// Bytes of large requests, mostly refused ones, after which empty pages are released too.
const REQUEST_BYTES_MIN: u64 = 16 << 20;
/// Pages are released after this long although requests go on: memory returns on a busy API, too.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// Releases memory after a burst of writes or of large requests. The first counts writes, the second bytes of requests.
pub(super) async fn give_back(mut revision: watch::Receiver<u64>, mut requests: watch::Receiver<u64>) {
    let (mut writes_seen, mut bytes_seen) = (*revision.borrow(), *requests.borrow());
    while next_change(&mut revision, &mut requests).await {
        let began = Instant::now();
        while began.elapsed() < BUSY_MAX
            && let Ok(true) = timeout(QUIET_AFTER, next_change(&mut revision, &mut requests)).await
        {}
        let (writes_now, bytes_now) = (*revision.borrow(), *requests.borrow());
        let writes = writes_now.saturating_sub(writes_seen);
        if writes >= WRITES_MIN || bytes_now.wrapping_sub(bytes_seen) >= REQUEST_BYTES_MIN {
            (writes_seen, bytes_seen) = (writes_now, bytes_now);
            let cached = dataplane::allocator::cached();
            let _ = task::spawn_blocking(|| dataplane::allocator::release_pages([cached])).await; // it does not panic
        }
        if writes >= MANY_WRITES {
            release_code_pages();
        }
    }
}

/// Waits for a change of either; `false` when there will be no more.
async fn next_change(revision: &mut watch::Receiver<u64>, requests: &mut watch::Receiver<u64>) -> bool {
    tokio::select! {
        changed = revision.changed() => changed.is_ok(),
        changed = requests.changed() => changed.is_ok(),
    }
}
