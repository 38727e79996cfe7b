//! Prefork processes, so that a start only has to send one of them its launch spec.
//!
//! Most of a start is the same for all instances: this program's own start, a control group with its port, a mount
//! namespace, and joining the group, for which the kernel stops for some milliseconds if no process joined one
//! lately. A few processes have done that and wait for the rest of their arguments ([`super::init`]). They are no
//! instances: nothing of a manifest is known to them, and they end with the appliance.
//!
//! None is started before the first instance, nor while an instance is starting: a burst of starts goes as if there
//! were none.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::{Child, Stdio};
use std::rc::Rc;

use rustix::io::ioctl_fionbio;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::cgroups::InstanceCgroup;
use super::host_context::HostContext;
use super::instance_records::{InstanceRecord, RecordGuard};
use super::launcher::{pid, spawn_first_process, spawn_waiting};
use super::limits::{LAUNCH_SPEC_BYTES_MAX, PREFORK_DELAY, PREFORK_IDLE_WAIT_MAX};

/// Those that wait, and when there is time to make more of them.
pub(super) struct PreforkPool {
    capacity: usize,
    processes: RefCell<VecDeque<PreforkProcess>>,
    /// The id of the last start, and what it was: the next one is likely the same. `None`: none is to be expected.
    last_start: Cell<Option<(u64, PreforkKind)>>,
    created: Cell<u64>,
    starting: Cell<u32>,
    start_began: Notify,
    start_ended: Notify,
}

/// What has to be known of an instance before a process can wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreforkKind {
    pub(super) port: u16,
    /// It is a container: the process is the first of a pid namespace.
    pub(super) is_container: bool,
}

/// A process that waits.
pub(super) struct PreforkProcess {
    is_container: bool,
    /// There until it becomes an instance.
    child: Option<Child>,
    /// Written while there is time: a start that waits for the disk is a request that waits.
    record_guard: RecordGuard,
    group: InstanceCgroup,
    /// The container port that will be its own; `None` without control groups: then its port is `real`.
    instance_port: Option<u16>,
    /// The host's.
    pub(super) host_port: u16,
}

/// An instance that is starting.
pub(super) struct StartGuard(Rc<PreforkPool>);

impl PreforkPool {
    pub(super) fn new(most: usize) -> Self {
        Self {
            capacity: most,
            processes: RefCell::default(),
            last_start: Cell::default(),
            created: Cell::default(),
            starting: Cell::default(),
            start_began: Notify::new(),
            start_ended: Notify::new(),
        }
    }

    pub(super) fn start_guard(self: &Rc<Self>) -> StartGuard {
        self.starting.update(|starting| starting + 1);
        StartGuard(Rc::clone(self))
    }

    async fn until_idle(&self) {
        while self.starting.get() > 0 {
            self.start_ended.notified().await;
        }
    }

    /// The last start's id and kind, if one more should wait for the next.
    fn shortage(&self) -> Option<(u64, PreforkKind)> {
        let waiting = self.processes.borrow();
        self.last_start
            .get()
            .filter(|(_, kind)| waiting.len() < self.capacity || !waiting.iter().any(|one| one.fits(*kind)))
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.0.starting.update(|starting| starting - 1);
        self.0.start_ended.notify_one();
    }
}

/// One that can become the instance `id`, which is of this `kind`.
pub(super) fn acquire(host: &HostContext, id: u64, kind: PreforkKind) -> Option<PreforkProcess> {
    let preforks = &host.prefork_pool;
    if preforks.capacity == 0 {
        return None;
    }
    preforks.last_start.set(Some((id, kind)));
    preforks.start_began.notify_one();
    loop {
        let at = preforks.processes.borrow().iter().position(|one| one.fits(kind))?;
        let mut one = preforks.processes.borrow_mut().remove(at)?;
        if one.is_alive() {
            return Some(one);
        }
        host.ports.borrow_mut().release(one.host_port);
    }
}

/// Ends all prefork processes, until the next start.
pub(super) fn clear(host: &HostContext) {
    host.prefork_pool.last_start.set(None);
    for one in host.prefork_pool.processes.take() {
        host.ports.borrow_mut().release(one.host_port);
    }
}

/// Makes those that are missing, after each start.
pub(super) async fn run(host: Rc<HostContext>) {
    let preforks = &host.prefork_pool;
    loop {
        preforks.start_began.notified().await;
        while preforks.shortage().is_some() {
            let _ = timeout(PREFORK_IDLE_WAIT_MAX, preforks.until_idle()).await;
            sleep(PREFORK_DELAY).await;
            let Some((id, kind)) = preforks.shortage() else { break };
            if preforks.processes.borrow().len() == preforks.capacity {
                let oldest = preforks.processes.borrow_mut().pop_front();
                oldest.into_iter().for_each(|one| host.ports.borrow_mut().release(one.host_port));
            }
            match spawn(&host, id, kind) {
                Ok(one) => preforks.processes.borrow_mut().push_back(one),
                Err(why) => {
                    tracing::debug!(%why, "no process waits for the next instance; it starts a new one");
                    break;
                }
            }
        }
    }
}

fn spawn(host: &HostContext, id: u64, PreforkKind { port, is_container }: PreforkKind) -> io::Result<PreforkProcess> {
    let preforks = &host.prefork_pool;
    let real = host.ports.borrow_mut().allocate(|below| fastrand::u16(..below))?;
    preforks.created.update(|made| made + 1);
    let name = format!("{id}-{}", preforks.created.get());
    let mut group = InstanceCgroup::new(name.clone());
    let named = host.assign_port(&mut group, port, real).is_ok().then_some(port);
    let place = host.sandbox_spec(&group);
    let child = if is_container {
        host.container_program().and_then(|program| spawn_first_process(&host.init, &program, &place, Stdio::piped()))
    } else {
        spawn_waiting(&host.init, &place)
    };
    let child = child.inspect_err(|_| host.ports.borrow_mut().release(real))?;
    let noted = host.records.add_prefork(&name, InstanceRecord::new().with_leader(pid(&child)));
    Ok(PreforkProcess {
        is_container,
        child: Some(child),
        record_guard: noted,
        group,
        instance_port: named,
        host_port: real,
    })
}

impl PreforkProcess {
    pub(super) fn has_port(&self) -> bool {
        self.instance_port.is_some()
    }

    /// Of the instance as well, when it has become one.
    pub(super) fn record(&self) -> &InstanceRecord {
        &self.record_guard.record
    }

    /// The caller that takes the group removes it.
    pub(super) fn take_cgroup(&mut self) -> InstanceCgroup {
        std::mem::take(&mut self.group)
    }

    /// Sends the launch spec. `None`: it could not be sent, and the process is gone.
    pub(super) fn launch(&mut self, encoded: &[u8]) -> Option<Child> {
        if encoded.len() > LAUNCH_SPEC_BYTES_MAX {
            return None;
        }
        let mut stdin = self.child.as_mut()?.stdin.take()?;
        // A pipe may be smaller where a user has many, and the thread that runs all instances must not wait for one of them.
        ioctl_fionbio(&stdin, true).ok()?;
        stdin.write_all(encoded).ok()?; // and with the end of the pipe it has all of them
        self.child.take()
    }

    fn fits(&self, kind: PreforkKind) -> bool {
        self.is_container == kind.is_container && self.instance_port.is_none_or(|named| named == kind.port)
    }

    fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for PreforkProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may be over already
            let _ = child.wait(); // at once: nothing survives SIGKILL
        }
    }
}
