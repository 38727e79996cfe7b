//! A subscriber that lags reads what was written long ago: its pages are read ahead by a thread, so that the
//! core never waits for the disk.

use std::rc::Rc;

use wal::{Ahead, Position};

use super::post::Post;
use super::pump::Pump;
use crate::events::limits::{PAGE_IN_BYTES, PAGE_IN_RECORD_BYTES, RECENT_BYTES};

/// For one who reads on.
const BACKLOG: Ahead =
    Ahead { recent_bytes: RECENT_BYTES, window_bytes: PAGE_IN_BYTES, record_bytes: PAGE_IN_RECORD_BYTES };
/// For one event.
const SINGLE: Ahead = Ahead { window_bytes: 1, ..BACKLOG };

impl<P: Post> Pump<P> {
    /// Whether the next event from there on can be read without waiting for the disk; if not, it is being read.
    pub(super) fn is_at_hand(self: &Rc<Self>, from: Position) -> bool {
        if self.paging.get() {
            return false;
        }
        let log = self.shop.keeper.log();
        let Some(job) = log.page_in(self.feed.id, from, &self.warm.borrow(), BACKLOG) else { return true };
        self.paging.set(true);
        let pump = Rc::clone(self);
        self.shop.ring.spawn(async move {
            let places = job.places();
            pump.shop.keeper.pager.fetch(job).await;
            pump.warm.replace(places);
            pump.paging.set(false);
            pump.bell.ring();
        });
        false
    }

    /// Resolves when an event that is tried again can be read without waiting for the disk.
    pub(super) async fn bring(&self, position: Position) {
        let job = self.shop.keeper.log().page_in(self.feed.id, position, &self.warm.borrow(), SINGLE);
        if let Some(job) = job {
            self.shop.keeper.pager.fetch(job).await;
        }
    }
}
