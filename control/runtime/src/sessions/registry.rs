//! The running instances, for sessions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use rustix::process::Pid;
use tokio::sync::{Notify, watch};

use super::{RunningContainer, SessionError};
use crate::launch::launcher::Launcher;
use crate::usage::InstanceProcesses;
use crate::{InstancePorts, InstanceSpec};

/// Instances by their ids.
#[derive(Default)]
pub(crate) struct SessionRegistry {
    instances: RefCell<HashMap<u64, Rc<InstanceSessions>>>,
}

impl SessionRegistry {
    /// The processes of all of them.
    pub(super) fn processes(&self) -> Vec<InstanceProcesses> {
        self.instances.borrow().values().filter_map(|one| one.processes.borrow().clone()).collect()
    }

    /// The instances of a revision.
    pub(crate) fn of_revision(&self, namespace: &str, revision: &str) -> Vec<Rc<InstanceSessions>> {
        let instances = self.instances.borrow();
        let is_of = |spec: &InstanceSpec| (spec.namespace.as_str(), spec.revision.as_str()) == (namespace, revision);
        instances.values().filter(|one| one.spec.as_deref().is_some_and(is_of)).cloned().collect()
    }

    pub(super) fn get(&self, instance: u64) -> Option<Rc<InstanceSessions>> {
        self.instances.borrow().get(&instance).cloned()
    }
}

/// One running instance.
pub(crate) struct InstanceSessions {
    containers: Vec<SessionContainer>,
    /// Where its container ports are.
    pub(super) ports: Rc<InstancePorts>,
    /// Sessions that are open.
    open: Cell<usize>,
    /// The first session was opened, or the last one closed.
    open_changed: Notify,
    frozen: Cell<bool>,
    thawed: Notify,
    ended: watch::Sender<bool>,
    processes: RefCell<Option<InstanceProcesses>>,
    spec: Option<Arc<InstanceSpec>>,
}

pub(super) struct SessionContainer {
    /// `None`: the one that serves.
    pub(super) sidecar: Option<String>,
    pub(super) launcher: Rc<Launcher>,
    pub(super) environment: Rc<[(String, String)]>,
    /// Its container port.
    pub(super) port: u16,
}

impl InstanceSessions {
    pub(crate) fn new(ports: Rc<InstancePorts>) -> Self {
        Self {
            containers: Vec::new(),
            ports,
            open: Cell::default(),
            open_changed: Notify::new(),
            frozen: Cell::default(),
            thawed: Notify::new(),
            ended: watch::Sender::new(false),
            processes: RefCell::default(),
            spec: None,
        }
    }

    /// What it was started from.
    pub(crate) fn with_spec(self, spec: Arc<InstanceSpec>) -> Self {
        Self { spec: Some(spec), ..self }
    }

    /// The process that runs its program; `None` once it has ended.
    pub(crate) fn leader(&self) -> Option<Pid> {
        let processes = self.processes.borrow();
        let leader = processes.as_ref().filter(|_| !*self.ended.borrow())?.leader;
        Pid::from_raw(leader)
    }

    /// What clients learn of its use of resources.
    pub(crate) fn with_processes(self, processes: InstanceProcesses) -> Self {
        Self { processes: RefCell::new(Some(processes)), ..self }
    }

    pub(crate) fn with_container(
        mut self,
        (sidecar, port): (Option<String>, u16),
        launcher: &Rc<Launcher>,
        environment: &Rc<[(String, String)]>,
    ) -> Self {
        let (launcher, environment) = (Rc::clone(launcher), Rc::clone(environment));
        self.containers.push(SessionContainer { sidecar, launcher, environment, port });
        self
    }

    pub(super) fn container(&self, sidecar: Option<&str>) -> Option<&SessionContainer> {
        self.containers.iter().find(|one| one.sidecar.as_deref() == sidecar)
    }

    pub(super) fn containers(&self) -> &[SessionContainer] {
        &self.containers
    }

    pub(super) fn running_container(&self, sidecar: Option<&str>) -> Option<RunningContainer> {
        let container = self.container(sidecar)?;
        Some(RunningContainer { is_process: container.launcher.container.is_none(), ended: self.ended.subscribe() })
    }

    /// Waits until the instance runs, and keeps it from being frozen until the result is dropped.
    pub(super) async fn hold(self: &Rc<Self>) -> Result<SessionHold, SessionError> {
        self.open.update(|open| open + 1);
        self.open_changed.notify_one();
        let hold = SessionHold(Rc::clone(self));
        let mut ended = hold.ended();
        loop {
            let thawed = self.thawed.notified();
            if !self.frozen.get() {
                return Ok(hold);
            }
            tokio::select! {
                () = thawed => {}
                _ = ended.wait_for(|has_ended| *has_ended) => return Err(SessionError::NotRunning),
            }
        }
    }
}

/// An open session of an instance.
pub(super) struct SessionHold(Rc<InstanceSessions>);

impl SessionHold {
    pub(super) fn ended(&self) -> watch::Receiver<bool> {
        self.0.ended.subscribe()
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        self.0.open.update(|open| open - 1);
        self.0.open_changed.notify_one();
    }
}

/// Keeps an instance in the registry.
pub(crate) struct InstanceRegistration {
    registry: Rc<SessionRegistry>,
    id: u64,
    sessions: Rc<InstanceSessions>,
}

impl InstanceRegistration {
    pub(crate) fn new(registry: &Rc<SessionRegistry>, id: u64, sessions: InstanceSessions) -> Self {
        let (registry, sessions) = (Rc::clone(registry), Rc::new(sessions));
        registry.instances.borrow_mut().insert(id, Rc::clone(&sessions));
        Self { registry, id, sessions }
    }

    /// Whether the instance may be frozen now: it has no open session.
    pub(crate) fn freeze(&self) -> bool {
        let may_freeze = self.sessions.open.get() == 0;
        self.sessions.frozen.set(may_freeze);
        may_freeze
    }

    /// Returns when a session was opened or closed since the last call.
    pub(crate) async fn open_changed(&self) {
        self.sessions.open_changed.notified().await;
    }

    pub(crate) fn thaw(&self) {
        self.sessions.frozen.set(false);
        self.sessions.thawed.notify_waiters();
    }

    /// Another process leads its group: its program was started again.
    pub(crate) fn set_leader(&self, pid: i32) {
        self.sessions.processes.borrow_mut().iter_mut().for_each(|processes| processes.leader = pid);
    }

    /// Ends its sessions.
    pub(crate) fn end(&self) {
        self.sessions.ended.send_replace(true);
        self.registry.instances.borrow_mut().remove(&self.id);
    }
}

impl Drop for InstanceRegistration {
    fn drop(&mut self) {
        self.end();
    }
}
