//! Publishes new tables to the cores: control swaps the table and wakes every core.
//!
//! A core reads through its own cache, with one comparison per request. Requests that began under the old table end
//! under it; none is dropped (APP-08, APP-09).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use ring::WakeHandle;

use crate::table::RoutingTable;

/// The current table, and the wake handles of its readers.
pub struct TablePublisher {
    current: Arc<ArcSwap<RoutingTable>>,
    wakers: ArcSwap<Vec<WakeHandle>>,
    /// Serializes writers; cores never take it.
    writer: Mutex<()>,
}

/// A core's cached access to the current table.
pub type TableReader = Cache<Arc<ArcSwap<RoutingTable>>, Arc<RoutingTable>>;

impl fmt::Debug for TablePublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").field("version", &self.current.load().version).finish_non_exhaustive()
    }
}

impl TablePublisher {
    #[must_use]
    pub fn new(first: RoutingTable) -> Arc<Self> {
        Arc::new(Self {
            current: Arc::new(ArcSwap::from_pointee(first)),
            wakers: ArcSwap::default(),
            writer: Mutex::default(),
        })
    }

    /// Replaces the table and sets its `version`. When this returns, a request that starts on any core sees the new
    /// table (APP-10).
    pub fn publish(&self, mut table: RoutingTable) -> u64 {
        let _guard = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        table.version = self.current.load().version + 1;
        let version = table.version;
        self.current.store(Arc::new(table));
        self.ring_all();
        version
    }

    /// The current table, for threads that are not cores.
    #[must_use]
    pub fn load(&self) -> Arc<RoutingTable> {
        self.current.load_full()
    }

    #[must_use]
    pub fn reader(&self) -> TableReader {
        Cache::new(Arc::clone(&self.current))
    }

    /// Adds a core to wake and returns its index.
    pub fn add_waker(&self, waker: WakeHandle) -> usize {
        let _guard = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wakers = self.wakers.load().to_vec();
        wakers.push(waker);
        let number = wakers.len() - 1;
        self.wakers.store(Arc::new(wakers));
        number
    }

    /// Wakes every core, which checks the table, its pending queue and the stop signal.
    pub fn ring_all(&self) {
        for waker in self.wakers.load().iter() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Route;

    /// APP-08, APP-10: a read after `publish` returns the new table.
    #[test]
    fn reader_sees_the_last_published_table() {
        let tables = TablePublisher::new(RoutingTable::default());
        let mut reader = tables.reader();
        assert!(reader.load().route("a").is_none());
        for version in 1..=1000 {
            let mut table = RoutingTable::default();
            table.hosts.insert("a", Arc::new(Route::default()));
            assert_eq!(tables.publish(table), version);
            assert_eq!(reader.load().version, version);
        }
        assert!(reader.load().route("a").is_some());
    }
}
