//! Counts the outcomes of sending the events of PingSources.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::request_histograms::{OutcomeHistograms, OutcomeKey};

/// Outcomes by the sources' namespaces and names.
#[derive(Debug, Default)]
pub struct PingOutcomes(Mutex<BTreeMap<SourceName, Arc<OutcomeHistograms>>>);

/// Namespace and name.
pub type SourceName = (String, String);

impl PingOutcomes {
    /// 0: no response.
    pub(super) fn record(&self, source: &SourceName, status: u16, took: Duration) {
        let outcomes = Arc::clone(self.lock().entry(source.clone()).or_default());
        outcomes.note(&OutcomeKey::of(status), took);
    }

    /// Forgets sources that are no more.
    pub(super) fn retain(&self, is_there: impl Fn(&SourceName) -> bool) {
        self.lock().retain(|source, _| is_there(source));
    }

    /// The outcomes of all sources that have sent something.
    #[must_use]
    pub fn all(&self) -> Vec<(SourceName, Arc<OutcomeHistograms>)> {
        self.lock().iter().map(|(source, outcomes)| (source.clone(), Arc::clone(outcomes))).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SourceName, Arc<OutcomeHistograms>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
