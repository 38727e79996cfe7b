//! The health of the appliance: the verdict that `/readyz` of the admin listener and of the API report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use control::api::{Check, Readiness};
use control::cross_origin::Rejections;
use control::expiry::Expiries;
use control::store::ObjectStore;
use dataplane::target_policy::TargetPolicy;

use super::{AcmeCounters, SpanCounters};

/// Why a process orphaned by a hot restart is not healthy.
pub(super) const ORPHANED: &str =
    "a hot restart failed: requests are served, API and events are not; run --hot-restart again, or restart\n";

/// The state reported by the parts of the process.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The stop was requested; requests in flight end.
    pub(crate) draining: AtomicBool,
    /// A core's log failed: events are rejected until a restart.
    pub(crate) log_failed: AtomicBool,
    /// Stalled cores.
    pub(crate) stalls: Stalls,
    /// A hot restart failed late: API, events and logs are gone, and requests are still served.
    pub(crate) orphaned: AtomicBool,
    /// Which addresses objects may name, and the number of rejected connects.
    pub(crate) targets: Arc<TargetPolicy>,
    /// The object store; empty in an appliance that follows another API.
    pub(crate) store: OnceLock<Weak<ObjectStore>>,
    /// Counters of exported spans.
    pub(crate) spans: Arc<SpanCounters>,
    /// The state of the files of `--manifests`.
    pub(crate) manifests: Arc<control::manifests::ManifestMetrics>,
    /// The results of the events of PingSources.
    pub(crate) pings: Arc<control::controllers::sources::PingOutcomes>,
    /// The output of instances.
    pub(crate) output: Arc<control::runtime::OutputTally>,
    /// Rejected requests that web pages may have sent.
    pub(crate) rejections: Arc<Rejections>,
    /// The certificates in use.
    pub(crate) expiries: Arc<Expiries>,
    /// Certificates by ACME.
    pub(crate) acme: Arc<AcmeCounters>,
    /// The outcome of reloads.
    pub(crate) config: ReloadOutcome,
}

/// Whether the settings in force are those of the files.
#[derive(Debug, Default)]
pub(crate) struct ReloadOutcome {
    /// Why the last reload failed.
    problem: Mutex<Option<String>>,
    pub(crate) reloads: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl ReloadOutcome {
    pub(crate) fn succeeded(&self) {
        *self.lock() = None;
        self.reloads.fetch_add(1, Relaxed);
    }

    pub(crate) fn failed(&self, why: String) {
        *self.lock() = Some(why);
        self.failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn problem(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stalled cores, with a sentence for each.
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
    pub(super) fn report(&self) -> Option<String> {
        let stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!stalls.is_empty()).then(|| stalls.values().map(|what| format!("{what}\n")).collect())
    }
}

impl Health {
    /// Every check that readiness depends on, with the reason of a failure.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let failed = |flag: &AtomicBool, why: &str| if flag.load(Relaxed) { Err(why.to_owned()) } else { Ok(()) };
        let mut checks = vec![
            ("drain", failed(&self.draining, "draining")),
            ("takeover", failed(&self.orphaned, ORPHANED.trim_end())),
            ("event-log", failed(&self.log_failed, "an event log failed: see the process's log, then restart it")),
        ];
        checks.push(("cores", self.stalls.report().map_or(Ok(()), |stalls| Err(stalls.trim_end().to_owned()))));
        // After a hot restart the successor has the store.
        if let Some(store) = self.store.get().and_then(Weak::upgrade).filter(|_| !self.orphaned.load(Relaxed)) {
            checks.push(("store", store.health().map_err(|why| why.to_string())));
        }
        checks
    }

    /// All reasons against it, a line each.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let mut reasons = String::new();
        for why in self.checks().into_iter().filter_map(|(_, outcome)| outcome.err()) {
            let _ = writeln!(reasons, "{why}"); // writing to a String cannot fail
        }
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// What an operator should look at although requests are served: files that are not in force. It is no reason against
    /// readiness: a broken file must not take a gateway that works out of service.
    pub(crate) fn warnings(&self) -> String {
        let mut warnings = String::new();
        if let Some(why) = self.config.problem() {
            // Writing to a String cannot fail.
            let _ = writeln!(warnings, "warning: the previous settings stay in force: {why}");
        }
        let errors = self.manifests.failed.load(Relaxed);
        if errors > 0 {
            let _ = writeln!(
                warnings,
                "warning: {errors} documents or files of --manifests are not applied; the log names them"
            );
        }
        warnings
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
