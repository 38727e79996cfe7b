//! The gauges of open relays, which fall also with a core that ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::counters::CoreCounters;
use crate::relay_counters::RelayCounters;

/// One more in a gauge, for as long as this lives.
pub struct RelayGauge {
    counters: Arc<CoreCounters>,
    gauge: fn(&RelayCounters) -> &AtomicU64,
}

impl RelayGauge {
    /// Counts an open connection.
    #[must_use]
    pub fn connection(counters: &Arc<CoreCounters>) -> Self {
        Self::new(counters, |relays| &relays.connections_open)
    }

    /// Counts an open session of datagrams.
    #[must_use]
    pub fn session(counters: &Arc<CoreCounters>) -> Self {
        Self::new(counters, |relays| &relays.sessions_open)
    }

    fn new(counters: &Arc<CoreCounters>, gauge: fn(&RelayCounters) -> &AtomicU64) -> Self {
        gauge(&counters.relays).fetch_add(1, Relaxed);
        Self { counters: Arc::clone(counters), gauge }
    }
}

impl Drop for RelayGauge {
    fn drop(&mut self) {
        (self.gauge)(&self.counters.relays).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_falls_when_its_guard_is_dropped() {
        let counters = Arc::new(CoreCounters::default());
        let open =
            || [&counters.relays.connections_open, &counters.relays.sessions_open].map(|open| open.load(Relaxed));
        let (connection, session) = (RelayGauge::connection(&counters), RelayGauge::session(&counters));
        assert_eq!(open(), [1, 1]);
        drop(connection);
        assert_eq!(open(), [0, 1]);
        drop(session);
        assert_eq!(open(), [0, 0]);
    }
}
