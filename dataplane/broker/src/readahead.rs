//! Reads cold parts of a log on threads that may wait for the disk, a few at a time.

use std::cell::Cell;

use ring::Notify;
use tokio::sync::oneshot;
use wal::ReadaheadRequest;

use super::limits::PAGERS_MAX;

#[derive(Debug, Default)]
pub(super) struct ReadaheadPool {
    in_flight: Cell<u32>,
    ended: Notify,
}

impl ReadaheadPool {
    /// Resolves when the pages are in memory, or cannot be read.
    pub(super) async fn fetch(&self, job: ReadaheadRequest) {
        while self.in_flight.get() >= PAGERS_MAX {
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
        self.in_flight.set(self.in_flight.get() + 1);
        let _ended = hear.await;
        self.in_flight.set(self.in_flight.get() - 1);
        self.ended.ring();
    }
}
