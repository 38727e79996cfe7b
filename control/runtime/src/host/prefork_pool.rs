//! Prefork processes, so that a start only has to send one of them its launch spec.
//!
//! Most of a start is the same for all instances: this program's own start, a control group with its port, a mount
//! namespace, and joining the group, for which the kernel stops for some milliseconds if no process joined one
//! lately. A few processes have done that and wait for the rest of their arguments ([`crate::launch::init`]). They are not
//! instances: they know nothing of a manifest, and they end with the appliance.
//!
//! None is started before the first instance, nor while an instance is starting: a burst of starts behaves as if there
//! were none.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::HostContext;
use crate::cgroup::InstanceCgroup;
use crate::cleanup::records::{InstanceRecord, RecordGuard};
use crate::launch::launcher::{spawn_first_process, spawn_waiting};
use crate::launch::waiting_process::WaitingProcess;
use crate::limits::{PREFORK_DELAY, PREFORK_IDLE_WAIT_MAX};
use crate::process::child::pid;
use crate::{InstancePorts, ResourceLimits};

/// The waiting processes, and when there is time to start more of them.
pub(crate) struct PreforkPool {
    host: Rc<HostContext>,
    capacity: usize,
    processes: RefCell<VecDeque<PreforkProcess>>,
    /// The id and the kind of the last start: the next one is likely the same. `None`: none is expected.
    last_start: Cell<Option<(u64, PreforkKind)>>,
    created: Cell<u64>,
    starting: Cell<u32>,
    start_began: Notify,
    start_ended: Notify,
}

/// The properties of an instance that a prefork process must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreforkKind {
    pub(crate) port: u16,
    /// It is a container: the process is the first of a pid namespace.
    pub(crate) is_container: bool,
}

/// A prefork process.
pub(crate) struct PreforkProcess {
    is_container: bool,
    /// It becomes the instance.
    pub(crate) process: WaitingProcess,
    /// Written ahead of time: a start that waits for the disk is a request that waits.
    record_guard: RecordGuard,
    group: InstanceCgroup,
    /// The container port that it will use; `None` without control groups: then its port is `real`.
    instance_port: Option<u16>,
    /// The host's port.
    pub(crate) host_port: u16,
}

/// An instance that is starting.
pub(crate) struct StartGuard(Rc<PreforkPool>);

impl PreforkPool {
    /// A pool of at most `capacity` processes.
    pub(crate) fn new(host: Rc<HostContext>, capacity: usize) -> Self {
        Self {
            host,
            capacity,
            processes: RefCell::default(),
            last_start: Cell::default(),
            created: Cell::default(),
            starting: Cell::default(),
            start_began: Notify::new(),
            start_ended: Notify::new(),
        }
    }

    pub(crate) fn start_guard(self: &Rc<Self>) -> StartGuard {
        self.starting.update(|starting| starting + 1);
        StartGuard(Rc::clone(self))
    }

    async fn until_idle(&self) {
        while self.starting.get() > 0 {
            self.start_ended.notified().await;
        }
    }

    /// The last start's id and kind, if another process should be started for the next.
    fn shortage(&self) -> Option<(u64, PreforkKind)> {
        let waiting = self.processes.borrow();
        self.last_start
            .get()
            .filter(|(_, kind)| waiting.len() < self.capacity || !waiting.iter().any(|one| one.fits(*kind)))
    }

    /// A prefork process for the instance `id` of this `kind`.
    pub(crate) fn acquire(&self, id: u64, kind: PreforkKind) -> Option<PreforkProcess> {
        if self.capacity == 0 {
            return None;
        }
        self.last_start.set(Some((id, kind)));
        self.start_began.notify_one();
        loop {
            let at = self.processes.borrow().iter().position(|one| one.fits(kind))?;
            let mut one = self.processes.borrow_mut().remove(at)?;
            if one.process.is_alive() {
                return Some(one);
            }
            self.host.ports.borrow_mut().release(one.host_port);
        }
    }

    /// Ends all prefork processes, until the next start.
    pub(crate) fn clear(&self) {
        self.last_start.set(None);
        for one in self.processes.take() {
            self.host.ports.borrow_mut().release(one.host_port);
        }
    }

    /// Starts missing processes, after each start.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            self.start_began.notified().await;
            while self.shortage().is_some() {
                let _ = timeout(PREFORK_IDLE_WAIT_MAX, self.until_idle()).await;
                sleep(PREFORK_DELAY).await;
                let Some((id, kind)) = self.shortage() else { break };
                if self.processes.borrow().len() == self.capacity {
                    let oldest = self.processes.borrow_mut().pop_front();
                    oldest.into_iter().for_each(|one| self.host.ports.borrow_mut().release(one.host_port));
                }
                match self.spawn(id, kind) {
                    Ok(one) => self.processes.borrow_mut().push_back(one),
                    Err(why) => {
                        tracing::debug!(%why, "no process waits for the next instance; it starts a new one");
                        break;
                    }
                }
            }
        }
    }

    fn spawn(&self, id: u64, PreforkKind { port, is_container }: PreforkKind) -> io::Result<PreforkProcess> {
        let host = &self.host;
        let real = host.ports.borrow_mut().allocate(|below| fastrand::u16(..below))?;
        self.created.update(|made| made + 1);
        let name = format!("{id}-{}", self.created.get());
        let mut group = InstanceCgroup::new(name.clone());
        if is_container {
            // Joined ahead of time. The limits of its manifest follow; what cannot be set is reported then.
            let _ = host.assign_resources(&mut group, ResourceLimits::default());
        }
        let named = host.assign_ports(&mut group, &InstancePorts::new(port, real)).is_ok().then_some(port);
        let place = host.sandbox_spec(&group);
        let child = if is_container {
            host.container_program()
                .and_then(|program| spawn_first_process(&host.init, &program, &place, Stdio::piped()))
        } else {
            spawn_waiting(&host.init, &place)
        };
        let child = child.inspect_err(|_| host.ports.borrow_mut().release(real))?;
        let noted = host.records.add_prefork(&name, InstanceRecord::new().with_leader(pid(&child)));
        Ok(PreforkProcess {
            is_container,
            process: WaitingProcess::new(child),
            record_guard: noted,
            group,
            instance_port: named,
            host_port: real,
        })
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.0.starting.update(|starting| starting - 1);
        self.0.start_ended.notify_one();
    }
}

impl PreforkProcess {
    pub(crate) fn has_port(&self) -> bool {
        self.instance_port.is_some()
    }

    /// The control group, which becomes the instance's.
    pub(crate) fn record(&self) -> &InstanceRecord {
        &self.record_guard.record
    }

    /// The caller that takes the group removes it.
    pub(crate) fn take_cgroup(&mut self) -> InstanceCgroup {
        std::mem::take(&mut self.group)
    }

    fn fits(&self, kind: PreforkKind) -> bool {
        self.is_container == kind.is_container && self.instance_port.is_none_or(|named| named == kind.port)
    }
}
