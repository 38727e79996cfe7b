//! How a new table reaches the cores: control swaps it in and rings every core's bell.
//!
//! A core reads through a cache of its own, one comparison a request. Requests that began under the
//! old table end under it; none is dropped (APP-08, APP-09).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use ring::WakeHandle;

use crate::table::RoutingTable;

/// The current table, and the bells of those who read it.
pub struct TablePublisher {
    current: Arc<ArcSwap<RoutingTable>>,
    wakers: ArcSwap<Vec<WakeHandle>>,
    /// Orders writers; no core ever takes it.
    writer: Mutex<()>,
}

/// A core's own way to the current table.
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

    /// Replaces the table; its `version` is set here. When this returns, a request that starts on any
    /// core meets the new table (APP-10).
    pub fn publish(&self, mut table: RoutingTable) -> u64 {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        table.version = self.current.load().version + 1;
        let version = table.version;
        self.current.store(Arc::new(table));
        self.ring_all();
        version
    }

    /// The table as of now, for those who are not on a core.
    #[must_use]
    pub fn load(&self) -> Arc<RoutingTable> {
        self.current.load_full()
    }

    #[must_use]
    pub fn reader(&self) -> TableReader {
        Cache::new(Arc::clone(&self.current))
    }

    /// From now on `bell` is rung too. Its number.
    pub fn add_waker(&self, bell: WakeHandle) -> usize {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bells = self.wakers.load().to_vec();
        bells.push(bell);
        let number = bells.len() - 1;
        self.wakers.store(Arc::new(bells));
        number
    }

    /// Makes every core look: at the table, at its waiting room, at the stop flag.
    pub fn ring_all(&self) {
        for bell in self.wakers.load().iter() {
            bell.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Route;

    /// APP-08, APP-10: whoever reads after `publish` reads the new table.
    #[test]
    fn a_reader_sees_the_table_published_last() {
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
