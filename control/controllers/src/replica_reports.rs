//! Ready means every replica: of several appliances that follow one API server each reports what its cores serve
//! (`replica_reporter`), and the leader says Ready of an object only when all of them have what it has itself.
//!
//! A replica reports in a Lease of its own, with an annotation that names the newest resourceVersion of each kind that it follows.
//! It writes the report after all work that the changes up to there have caused is done. The leader compares it with the newest
//! object of each kind in its own caches. A replica that has not renewed its Lease for 15 s counts as gone.
//! Resource versions of one API server are numbers that grow (KEP-5504).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use tokio::time::{Instant, timeout};

use crate::revisions::Revisions;
use crate::roles::LEASE_NAMESPACE;

/// The label of the Leases of replicas.
pub(crate) const REPLICA_LABEL: &str = "sluicegate.dev/replica";
/// What a replica serves: JSON, the newest resourceVersion of each kind.
pub(crate) const SERVED: &str = "sluicegate.dev/served";
/// A replica that has not renewed for this long is gone: as long as the leader's Lease.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Interval between two reports with news, and between two looks at those of others while an object waits: what a change takes to
/// become Ready at most, besides the work itself.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// How long one request may take.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Leases of replicas that ended long ago are deleted.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Replicas that are compared; more cannot be told apart from a fault.
const REPLICAS_MAX: usize = 1_000;

/// Some replica has not got a change yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the replica {replica} does not serve it yet")]
pub struct ReplicaBehind {
    replica: String,
}

impl ReplicaBehind {
    /// When to look again.
    pub(crate) const RETRY_AFTER: Duration = REPORT_INTERVAL;
}

/// The report of another replica.
#[derive(Debug)]
struct ReplicaReport {
    renewed: Option<MicroTime>,
    /// By our own clock.
    since: Instant,
    served: BTreeMap<String, u64>,
}

impl ReplicaReport {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.since) < LEASE_DURATION
    }

    /// Kinds that the replica does not follow do not concern it.
    fn has(&self, wanted: &Revisions) -> bool {
        wanted.iter().all(|(kind, revision)| self.served.get(*kind).is_none_or(|served| served >= revision))
    }
}

/// What an object waits for.
#[derive(Debug)]
struct AwaitedRevisions {
    generation: Option<i64>,
    wanted: Revisions,
    looked_at: Instant,
}

/// The reports of the other replicas, and the objects that wait for them.
#[derive(Debug, Default)]
pub struct ReplicaReports {
    state: Mutex<ReportState>,
}

#[derive(Debug, Default)]
struct ReportState {
    /// `None`: not read yet.
    read_at: Option<Instant>,
    reports: HashMap<String, ReplicaReport>,
    /// By the uid of the object.
    awaited: HashMap<String, AwaitedRevisions>,
}

impl ReplicaReports {
    /// Whether every replica serves the object. `me` is this one, and `newest` what it has now.
    ///
    /// # Errors
    /// One does not yet: the object is to be looked at again after [`ReplicaBehind::RETRY_AFTER`].
    pub(crate) async fn check(
        &self,
        (client, me): (&Client, &str),
        object: &ObjectMeta,
        newest: Revisions,
    ) -> Result<(), ReplicaBehind> {
        if self.is_stale(Instant::now()) {
            self.read(client, me).await;
        }
        self.check_known(object, newest, Instant::now())
    }

    /// Reads the reports of the others. If the server does not answer, those that were read last count.
    pub(crate) async fn read(&self, client: &Client, me: &str) {
        let api: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
        let listed = timeout(REQUEST_TIMEOUT, api.list(&ListParams::default().labels(REPLICA_LABEL))).await;
        let Ok(Ok(leases)) = listed else { return };
        for name in self.update(me, leases.items, Instant::now()) {
            tracing::info!(name, "the Lease of a replica that ended is deleted");
            // If it is not, the next look tries again.
            drop(timeout(REQUEST_TIMEOUT, api.delete(&name, &DeleteParams::default())).await);
        }
    }

    /// Whether every known replica serves what the object depends on: all that the leader had when it was first asked about this
    /// generation of the object. `newest` is what the leader has now.
    fn check_known(&self, object: &ObjectMeta, newest: Revisions, now: Instant) -> Result<(), ReplicaBehind> {
        let mut state = self.lock();
        let ReportState { reports, awaited, .. } = &mut *state;
        let uid = object.uid.clone().unwrap_or_default();
        let known = awaited.remove(&uid).filter(|known| known.generation == object.generation);
        // An object that is gone again since cannot be waited for.
        let wanted = match known {
            Some(known) => oldest(known.wanted, &newest),
            None => newest,
        };
        let behind = reports.iter().find(|(_, report)| report.is_alive(now) && !report.has(&wanted));
        let Some((replica, _)) = behind else { return Ok(()) };
        let behind = ReplicaBehind { replica: replica.clone() };
        awaited.retain(|_, other| now.duration_since(other.looked_at) < FORGOTTEN_AFTER);
        awaited.insert(uid, AwaitedRevisions { generation: object.generation, wanted, looked_at: now });
        Err(behind)
    }

    /// Takes in the Leases of all replicas but `me`; returns those that ended long ago.
    fn update(&self, me: &str, leases: Vec<Lease>, now: Instant) -> Vec<String> {
        let mut state = self.lock();
        state.read_at = Some(now);
        let mut before = std::mem::take(&mut state.reports);
        let mut forgotten = Vec::new();
        for lease in leases.into_iter().take(REPLICAS_MAX) {
            let (Some(name), spec) = (lease.metadata.name, lease.spec.unwrap_or_default()) else { continue };
            if spec.holder_identity.as_deref() == Some(me) {
                continue;
            }
            let annotation = lease.metadata.annotations.as_ref().and_then(|all| all.get(SERVED));
            let served = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let since = before.remove(&name).filter(|known| known.renewed == spec.renew_time).map(|known| known.since);
            let report = ReplicaReport { renewed: spec.renew_time, since: since.unwrap_or(now), served };
            if now.duration_since(report.since) >= FORGOTTEN_AFTER {
                forgotten.push(name.clone());
            }
            state.reports.insert(name, report);
        }
        forgotten
    }

    /// Whether it is time to read the reports again.
    fn is_stale(&self, now: Instant) -> bool {
        self.lock().read_at.is_none_or(|at| now.duration_since(at) >= REPORT_INTERVAL)
    }

    pub(crate) fn is_awaited(&self) -> bool {
        !self.lock().awaited.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, ReportState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn oldest(mut wanted: Revisions, newest: &Revisions) -> Revisions {
    for (kind, revision) in &mut wanted {
        *revision = (*revision).min(newest.get(kind).copied().unwrap_or(0));
    }
    wanted
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    fn lease(name: &str, renewed: i64, served: &str) -> Lease {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some([(SERVED.to_owned(), served.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let spec = LeaseSpec {
            holder_identity: Some(name.to_owned()),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    fn object(generation: i64) -> ObjectMeta {
        ObjectMeta { uid: Some("u".to_owned()), generation: Some(generation), ..ObjectMeta::default() }
    }

    fn revisions(ingresses: u64, secrets: u64) -> Revisions {
        [("ingresses", ingresses), ("secrets", secrets)].into()
    }

    #[test]
    fn object_waits_for_every_replica_that_is_alive() {
        let (reports, start) = (ReplicaReports::default(), Instant::now());
        let served = |text: &str| vec![lease("me", 1, "{}"), lease("other", 1, text)];
        reports.update("me", served(r#"{"ingresses":10,"secrets":5}"#), start);
        assert!(reports.check_known(&object(1), revisions(10, 5), start).is_ok());
        let behind = reports.check_known(&object(1), revisions(11, 5), start).unwrap_err();
        assert_eq!(behind.to_string(), "the replica other does not serve it yet");
        // It has not renewed, and counts as gone.
        assert!(reports.check_known(&object(1), revisions(11, 5), start + LEASE_DURATION).is_ok());
        // A kind that it does not follow does not concern it.
        reports.update("me", served(r#"{"ingresses":11}"#), start);
        assert!(reports.check_known(&object(1), revisions(11, 99), start).is_ok());
    }

    /// Other objects change all the time, and an object that was deleted is never served.
    #[test]
    fn object_waits_for_what_was_there_when_it_was_first_ready() {
        let (reports, now) = (ReplicaReports::default(), Instant::now());
        let other = |served: &str| vec![lease("other", 1, served)];
        reports.update("me", other(r#"{"ingresses":9,"secrets":5}"#), now);
        assert!(reports.check_known(&object(1), revisions(10, 8), now).is_err());
        reports.update("me", other(r#"{"ingresses":10,"secrets":7}"#), now);
        assert!(reports.check_known(&object(1), revisions(20, 8), now).is_err(), "the secret is missing");
        assert!(reports.check_known(&object(1), revisions(20, 6), now).is_ok(), "the secret is gone");
        // A new generation waits again.
        assert!(reports.check_known(&object(1), revisions(20, 6), now).is_err());
        reports.update("me", other(r#"{"ingresses":20,"secrets":7}"#), now);
        assert!(reports.check_known(&object(2), revisions(21, 6), now).is_err());
    }

    #[test]
    fn replica_that_ended_is_forgotten() {
        let (reports, start) = (ReplicaReports::default(), Instant::now());
        let leases = || vec![lease("old", 1, "{}"), lease("bad", 1, "no JSON")];
        assert!(reports.update("me", leases(), start).is_empty());
        let mut later = vec![lease("old", 1, "{}"), lease("bad", 2, "{}")];
        assert_eq!(reports.update("me", later.clone(), start + FORGOTTEN_AFTER), ["old"]);
        later.remove(0);
        assert!(reports.update("me", later, start + FORGOTTEN_AFTER).is_empty());
    }
}
