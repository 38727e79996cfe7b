//! Whether the appliance is well: the one verdict that `/readyz` of the admin listener and of the API tell.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use control::api::{Check, Readiness};
use control::cross_origin::Rejections;
use control::expiry::Expiries;
use control::store::ObjectStore;
use dataplane::target_policy::TargetPolicy;

use super::SpanCounters;

/// Why a process that a takeover left behind is not to be counted on.
pub(super) const ORPHANED: &str =
    "a takeover failed: requests go on, API and events do not; run --takeover again, or restart\n";

/// What the parts of the process tell of themselves.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The stop was said; requests in flight end.
    pub(crate) draining: AtomicBool,
    /// A core's log failed: events are refused until a restart.
    pub(crate) log_failed: AtomicBool,
    /// Cores that are stalled.
    pub(crate) stalls: Stalls,
    /// A takeover failed late: API, events and logs are gone, and requests go on.
    pub(crate) orphaned: AtomicBool,
    /// Which addresses objects may name, and how many connects were refused.
    pub(crate) targets: Arc<TargetPolicy>,
    /// The object store; empty in an appliance that follows another API.
    pub(crate) store: OnceLock<Weak<ObjectStore>>,
    /// What became of spans that were to be sent.
    pub(crate) spans: Arc<SpanCounters>,
    /// How the files of `--manifests` are.
    pub(crate) manifests: Arc<control::manifests::ManifestMetrics>,
    /// What the events of PingSources came to.
    pub(crate) pings: Arc<control::controllers::sources::PingOutcomes>,
    /// What instances print.
    pub(crate) output: Arc<control::runtime::OutputTally>,
    /// Requests that web pages may have sent.
    pub(crate) rejections: Arc<Rejections>,
    /// The certificates in use.
    pub(crate) expiries: Arc<Expiries>,
}

/// The cores that are stalled, with a sentence for each.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<BTreeMap<usize, String>>);

impl Stalls {
    /// Records that a core is stalled, or that it runs again.
    pub(crate) fn set(&self, core: usize, what: Option<String>) {
        let mut stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Some(what) => drop(stalls.insert(core, what)),
            None => drop(stalls.remove(&core)),
        }
    }

    /// All of them, a line each; `None` while every core runs.
    pub(super) fn told(&self) -> Option<String> {
        let stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!stalls.is_empty()).then(|| stalls.values().map(|what| format!("{what}\n")).collect())
    }
}

impl Health {
    /// Everything that readiness depends on, and why it is not given.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let failed = |flag: &AtomicBool, why: &str| if flag.load(Relaxed) { Err(why.to_owned()) } else { Ok(()) };
        let mut checks = vec![
            ("drain", failed(&self.draining, "draining")),
            ("takeover", failed(&self.orphaned, ORPHANED.trim_end())),
            ("event-log", failed(&self.log_failed, "an event log failed: see the process's log, then restart it")),
        ];
        checks.push(("cores", self.stalls.told().map_or(Ok(()), |stalls| Err(stalls.trim_end().to_owned()))));
        // After a takeover the successor has the store.
        if let Some(store) = self.store.get().and_then(Weak::upgrade).filter(|_| !self.orphaned.load(Relaxed)) {
            checks.push(("store", store.health().map_err(|why| why.to_string())));
        }
        checks
    }

    /// All reasons against it, a line each.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let mut reasons = String::new();
        for why in self.checks().into_iter().filter_map(|(_, outcome)| outcome.err()) {
            let _ = writeln!(reasons, "{why}"); // a String takes everything
        }
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// The same for the API.
    pub(crate) fn readiness(self: &Arc<Self>) -> Readiness {
        let health = Arc::clone(self);
        Readiness::new(move || health.checks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_has_every_reason() {
        let health = Health::default();
        assert_eq!(health.verdict(), Ok(()));
        health.draining.store(true, Relaxed);
        health.log_failed.store(true, Relaxed);
        let reasons = health.verdict().unwrap_err();
        assert!(reasons.starts_with("draining\nan event log failed"), "{reasons}");
        assert_eq!(health.checks().len(), 4, "there is no store");
    }
}
