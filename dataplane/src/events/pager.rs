//! Reads cold parts of a log on threads that may wait for the disk, a few at a time.

use std::cell::Cell;

use ring::Bell;
use tokio::sync::oneshot;
use wal::PageIn;

use super::limits::PAGERS_MAX;

#[derive(Debug, Default)]
pub(super) struct Pager {
    under_way: Cell<u32>,
    ended: Bell,
}

impl Pager {
    /// Resolves when the pages are in memory, or nothing can be done about it.
    pub(super) async fn fetch(&self, job: PageIn) {
        while self.under_way.get() >= PAGERS_MAX {
            let seen = self.ended.count();
            self.ended.after(seen).await;
        }
        let (say, hear) = oneshot::channel();
        let thread = std::thread::Builder::new().name("log-pages".into());
        let work = move || {
            job.run();
            let _ = say.send(()); // an error: the reader is gone
        };
        if thread.spawn(work).is_err() {
            return; // the reader waits for the disk itself
        }
        self.under_way.set(self.under_way.get() + 1);
        let _ended = hear.await;
        self.under_way.set(self.under_way.get() - 1);
        self.ended.ring();
    }
}
