//! The task that owns all revisions: it receives messages, lets the revision scaler concerned decide, and sleeps
//! until the next deadline. Without instances and messages it does not wake at all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use contract::allocator;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::revision_scaler::{RevisionScaler, ScalerContext};
use super::{AutoscalerMessage, AutoscalerSnapshot, EndpointSink, RevisionSnapshot};
use runtime::{InstanceIds, InstanceReport, Runtime};

pub(super) async fn run(
    runtime: Arc<dyn Runtime>,
    sink: Arc<dyn EndpointSink>,
    ids: InstanceIds,
    mut inbox: UnboundedReceiver<AutoscalerMessage>,
    snapshot: Arc<AutoscalerSnapshot>,
) {
    let (queue, mut reports) = mpsc::unbounded_channel();
    let context = ScalerContext { runtime, sink, reports: queue, ids, started_at: Instant::now() };
    let (scalers, wakeups, owners) = (HashMap::new(), BTreeSet::new(), HashMap::new());
    let mut manager = AutoscalerTask { scalers, wakeups, owners, context, snapshot, shutdown_waiters: None };
    let mut closed = false;

    while !((manager.shutdown_waiters.is_some() || closed) && manager.scalers.is_empty()) {
        let due = manager.wakeups.first().map(|(at, _)| *at);
        tokio::select! {
            mail = inbox.recv(), if !closed => match mail {
                Some(mail) => manager.handle_message(mail, Instant::now()),
                None => {
                    closed = true; // all handles are gone: no message can come any more
                    manager.shut_down(Instant::now());
                }
            },
            Some((id, report)) = reports.recv() => manager.handle_report(id, report, Instant::now()),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => manager.sample_due(Instant::now()),
        }
    }
    for done in manager.shutdown_waiters.into_iter().flatten() {
        let _ = done.send(()); // the caller may have gone
    }
}

struct AutoscalerTask {
    /// Boxed: a map allocates up to twice as many slots as it needs.
    scalers: HashMap<Arc<str>, Box<RevisionScaler>>,
    /// The scalers that have to be checked, and when: idle ones are not visited.
    wakeups: BTreeSet<(Instant, Arc<str>)>,
    /// The revision of an instance id.
    owners: HashMap<u64, Arc<str>>,
    context: ScalerContext,
    snapshot: Arc<AutoscalerSnapshot>,
    /// Callers that wait for the end of a shutdown, once it has begun.
    shutdown_waiters: Option<Vec<oneshot::Sender<()>>>,
}

impl AutoscalerTask {
    fn handle_message(&mut self, mail: AutoscalerMessage, now: Instant) {
        match mail {
            AutoscalerMessage::Declare(key, plan) if self.shutdown_waiters.is_none() => {
                // Only the plan and its scaler are left of a revision without instances.
                let stays = allocator::long_lived();
                let (key, plan) = (Arc::from(&*key), plan.deep_clone());
                match self.scalers.get_mut(&key) {
                    Some(scaler) => scaler.update_plan(plan, now, &self.context),
                    None => {
                        let scaler = RevisionScaler::new(Arc::clone(&key), plan, &self.context, now);
                        self.scalers.insert(Arc::clone(&key), Box::new(scaler));
                    }
                }
                drop(stays);
                self.reconcile(&key, now);
            }
            AutoscalerMessage::Declare(..) => {} // too late: we are leaving
            AutoscalerMessage::Retire(key) => self.update_scaler(&key, now, |scaler| scaler.retire()),
            AutoscalerMessage::Restart(key, id) => {
                self.update_scaler(&key, now, |scaler| scaler.drain_instance(id, now))
            }
            AutoscalerMessage::Demand(key) => self.update_scaler(&key, now, |scaler| scaler.record_demand(now)),
            AutoscalerMessage::Unreachable(key, endpoint) => {
                self.update_scaler(&key, now, |scaler| scaler.on_unreachable(endpoint))
            }
            AutoscalerMessage::Shutdown(done) => {
                self.shut_down(now);
                self.shutdown_waiters.get_or_insert_default().push(done);
            }
        }
    }

    fn handle_report(&mut self, id: u64, report: InstanceReport, now: Instant) {
        let owner = match report {
            InstanceReport::Exited(_) => self.owners.remove(&id),
            _ => self.owners.get(&id).cloned(),
        };
        let Some(key) = owner else { return };
        self.update_scaler(&key, now, |scaler| match report {
            InstanceReport::Ready { address, protocol } => scaler.on_ready(id, (address, protocol), now),
            // Requests of Revisions come to one port.
            InstanceReport::Ports(_) => {}
            // A program that is started again by itself is a Pod's.
            InstanceReport::Restarting(_) | InstanceReport::Restarted => {}
            InstanceReport::Unready => scaler.on_unready(id),
            InstanceReport::Sidecars(others) => scaler.on_sidecars(id, others),
            InstanceReport::NotReadyReason(why) => scaler.on_not_ready_reason(id, why),
            InstanceReport::Exited(gone) => scaler.on_exit(id, gone, now),
        });
    }

    fn sample_due(&mut self, now: Instant) {
        let keys: Vec<_> =
            self.wakeups.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| Arc::clone(key)).collect();
        let snapshot = Arc::clone(&self.snapshot);
        for key in keys {
            self.update_scaler(&key, now, |scaler| {
                let began = Instant::now();
                scaler.sample(now);
                snapshot.sample_durations.note(began.elapsed());
            });
        }
    }

    fn shut_down(&mut self, now: Instant) {
        self.shutdown_waiters.get_or_insert_default();
        let keys: Vec<_> = self.scalers.keys().cloned().collect();
        for key in keys {
            self.update_scaler(&key, now, |scaler| scaler.stop_all());
        }
    }

    /// Applies a change to a revision scaler, then carries out what it decides.
    fn update_scaler(&mut self, key: &Arc<str>, now: Instant, change: impl FnOnce(&mut RevisionScaler)) {
        if let Some(scaler) = self.scalers.get_mut(key) {
            change(scaler);
            self.reconcile(key, now);
        }
    }

    fn reconcile(&mut self, key: &Arc<str>, now: Instant) {
        let Some(scaler) = self.scalers.get_mut(key) else { return };
        for id in scaler.reconcile(now, &mut self.context) {
            self.owners.insert(id, Arc::clone(key));
        }
        let due = scaler.next_wakeup();
        let before = std::mem::replace(&mut scaler.wakes_at, due);
        if before != due {
            if let Some(at) = before {
                self.wakeups.remove(&(at, Arc::clone(key)));
            }
            if let Some(at) = due {
                self.wakeups.insert((at, Arc::clone(key)));
            }
        }
        if scaler.is_finished() {
            if self.shutdown_waiters.is_none() {
                scaler.remove_from_runtime(&self.context);
            }
            if let Some(at) = due {
                self.wakeups.remove(&(at, Arc::clone(key)));
            }
            self.scalers.remove(key);
            self.snapshot.publish(key, None);
            if self.scalers.is_empty() {
                self.context.runtime.idle();
            }
        } else {
            let seen = scaler.instance_statuses();
            self.snapshot.publish(
                key,
                Some(RevisionSnapshot { status: scaler.status(), instances: seen, figures: scaler.figures() }),
            );
        }
    }
}
