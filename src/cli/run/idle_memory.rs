//! Memory that goes back to the kernel: code that only the start needed, and pages that a burst of writes left empty.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task;

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

/// Releases memory after a burst of writes.
pub(super) async fn give_back(mut revision: watch::Receiver<u64>) {
    let mut seen = *revision.borrow();
    while revision.changed().await.is_ok() {
        while let Ok(Ok(())) = tokio::time::timeout(QUIET_AFTER, revision.changed()).await {}
        let now = *revision.borrow();
        let writes = now.saturating_sub(seen);
        if writes >= WRITES_MIN {
            seen = now;
            let cached = dataplane::allocator::cached();
            let _ = task::spawn_blocking(|| dataplane::allocator::release_pages([cached])).await; // it does not panic
        }
        if writes >= MANY_WRITES {
            release_code_pages();
        }
    }
}
