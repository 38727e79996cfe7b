//! Instances as processes of this host, and as containers: processes with an image's files and namespaces of their own.
//!
//! One long-lived runtime thread starts and watches all of them: an instance's parent-death signal follows
//! the *thread* that started it, starting blocks for a millisecond, and logs are written to disk. Per
//! instance there is one task on that thread, which ends when the whole process group is gone and reaped.
//!
//! Differences from a container (RT-LIFE-08): same file system and network as the appliance, and the same user
//! unless the manifest names one. Its container port is its own where the kernel supports it; else PORT is a free
//! port on loopback (see [`crate::host`]).

mod commands;
mod exit;
mod freezer;
mod init_containers;
mod lifetime;
mod sandbox;
mod sidecars;
mod supervise;
mod volume_changes;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use contract::allocator;
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, LocalSet, spawn_local};
use tokio::time::Instant;

use crate::cgroup::{CgroupManager, InstanceCgroup, reaper};
use crate::cleanup::generations::Generation;
use crate::cleanup::records::{InstanceRecord, InstanceRecords};
use crate::cleanup::{INSTANCES_DIR, Unclaimed, clear_up, clear_up_after_others};
use crate::environment::command;
use crate::host::prefork_pool::{PreforkKind, PreforkPool, PreforkProcess, StartGuard};
use crate::host::{HostConfig, HostContext};
use crate::launch::InitProgram;
use crate::launch::container_launcher::scratch_folder;
use crate::launch::launcher::Launcher;
use crate::logs::instance_log::InstanceLog;
use crate::logs::output_capture::capture;
use crate::logs::termination_message::TerminationMessage;
use crate::mounts::volume_store::{VolumeStore, is_in_memory};
use crate::probes::LastProbeError;
use crate::process::child::{pid, signal_group};
use crate::sessions::{self, InstanceRegistration, InstanceSessions, SessionClient, SessionCommand, SessionRegistry};
use crate::usage::InstanceProcesses;
use crate::{InstanceExit, InstanceHandle, InstancePorts, InstanceReporter, InstanceSpec, Runtime};
use commands::{GracePeriod, InstanceCommand, ProcessHandle};
use exit::not_started;
use freezer::Freezer;
use sandbox::Sandbox;
use sidecars::{SidecarContainer, Sidecars};

/// Runs instances as processes.
pub struct ProcessRuntime {
    commands: UnboundedSender<RuntimeCommand>,
    first_id: u64,
}

impl ProcessRuntime {
    /// Ends what crashed appliances left behind in `data`, then accepts instances. Logs and records are stored in
    /// `data/instances`. Blocks for as long as the leftovers take to vanish.
    ///
    /// The caller holds the lock on `data`. Instances of an appliance that still runs, because it gave `data` away and has
    /// requests to end, are left alone until it has ended.
    pub fn open(data: &Path, init: InitProgram, around: HostConfig) -> io::Result<Self> {
        Self::open_with(data, init, around, Unclaimed::Ended)
    }

    /// The same next to an appliance that was just replaced. If that is an earlier version, no claim says that its instances
    /// are its own; [`crate::kill_leftovers`] is due when it has ended.
    pub fn open_alongside(data: &Path, init: InitProgram, around: HostConfig) -> io::Result<Self> {
        Self::open_with(data, init, around, Unclaimed::Running)
    }

    fn open_with(data: &Path, init: InitProgram, around: HostConfig, unclaimed: Unclaimed) -> io::Result<Self> {
        let folder = data.join(INSTANCES_DIR);
        let records = InstanceRecords::open(&folder)?;
        // Instances get ids that grow from start to start, so the newest logs are those with the highest.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let generation = Generation::claim(&folder, u64::try_from(now.as_millis()).unwrap_or(u64::MAX >> 1))?;
        let first_id = generation.first;
        clear_up(data, unclaimed)?;
        clear_up_after_others(data, first_id)?;
        let cgroups = CgroupManager::open(data).map_err(|why| why.to_string());
        let (jobs, inbox) = mpsc::unbounded_channel();
        let reactor = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        std::thread::Builder::new().name("instances".into()).spawn(move || {
            LocalSet::new().block_on(&reactor, async {
                let host = Rc::new(HostContext::new((records, generation), init, cgroups, around));
                let preforks = Rc::new(PreforkPool::new(Rc::clone(&host), host.prefork_processes()));
                let sessions = Rc::default();
                run_commands(RuntimeThread { host, preforks, sessions }, inbox).await;
            });
        })?;
        Ok(Self { commands: jobs, first_id })
    }

    /// The first id that this appliance may assign to an instance.
    #[must_use]
    pub fn first_id(&self) -> u64 {
        self.first_id
    }

    /// The sessions of clients.
    #[must_use]
    pub fn sessions(&self) -> SessionClient {
        let commands = self.commands.clone();
        SessionClient::new(move |command| commands.send(RuntimeCommand::Session(command)).is_ok())
    }
}

/// After so many ended instances, memory is trimmed when the last of them has ended.
const TRIM_AFTER_EXITS: u32 = 64;

impl Runtime for ProcessRuntime {
    fn start(
        &self,
        id: u64,
        line: u64,
        spec: Arc<InstanceSpec>,
        reporter: InstanceReporter,
    ) -> Box<dyn InstanceHandle> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let spawned = Arc::<OnceLock<Instant>>::default();
        let (reports, is_spawned, began) = (reporter.clone(), Arc::clone(&spawned), Instant::now());
        let (kill_at, requested) = watch::channel(None);
        let instance = InstanceRun {
            id,
            line,
            spec,
            reporter: reports,
            commands: inbox,
            kill_at: requested,
            began_at: began,
            spawned: is_spawned,
        };
        if self.commands.send(RuntimeCommand::Run(instance)).is_err() {
            reporter.exited(not_started(&io::Error::other("the thread that runs instances has ended")));
        }
        Box::new(ProcessHandle { kill_at, commands: orders, spawned })
    }

    fn refresh(&self, spec: Arc<InstanceSpec>) {
        let _ = self.commands.send(RuntimeCommand::Refresh(spec));
    }

    fn remove_revision(&self, namespace: &str, revision: &str) {
        let _ = self.commands.send(RuntimeCommand::Forget { namespace: namespace.into(), revision: revision.into() });
    }

    fn idle(&self) {
        let _ = self.commands.send(RuntimeCommand::Idle);
    }
}

enum RuntimeCommand {
    Run(InstanceRun),
    Refresh(Arc<InstanceSpec>),
    Forget { namespace: String, revision: String },
    Session(SessionCommand),
    Idle,
}

struct InstanceRun {
    id: u64,
    line: u64,
    spec: Arc<InstanceSpec>,
    reporter: InstanceReporter,
    commands: UnboundedReceiver<InstanceCommand>,
    /// When SIGKILL follows a stop, if it is to be another time than the manifest's.
    kill_at: watch::Receiver<Option<Instant>>,
    began_at: Instant,
    spawned: Arc<OnceLock<Instant>>,
}

impl InstanceRun {
    /// From SIGTERM to SIGKILL.
    fn grace(&self) -> GracePeriod {
        GracePeriod { manifest: self.spec.termination_grace_period, kill_at: self.kill_at.clone() }
    }

    /// The deadline of its start.
    fn deadline(&self) -> Instant {
        self.began_at + self.spec.startup_timeout
    }
}

/// State that the instances of the runtime's thread share.
#[derive(Clone)]
struct RuntimeThread {
    host: Rc<HostContext>,
    preforks: Rc<PreforkPool>,
    /// The instances that clients' sessions can reach.
    sessions: Rc<SessionRegistry>,
}

async fn run_commands(thread: RuntimeThread, mut jobs: UnboundedReceiver<RuntimeCommand>) {
    let RuntimeThread { host, preforks, sessions } = &thread;
    let (mut running, mut lived) = (JoinSet::new(), 0);
    drop(spawn_local(Rc::clone(preforks).run())); // these end with this thread
    host.cgroups.iter().for_each(|cgroups| drop(spawn_local(reaper::run(cgroups.clone()))));
    loop {
        let job = tokio::select! {
            job = jobs.recv() => job,
            // A finished task holds 5.6 KB until it is joined.
            Some(_) = running.join_next() => {
                if running.is_empty() && lived >= TRIM_AFTER_EXITS {
                    lived = 0;
                    allocator::give_cache_back();
                }
                continue;
            }
        };
        match job {
            Some(RuntimeCommand::Run(instance)) => {
                lived += 1;
                drop(running.spawn_local(run_instance(thread.clone(), instance)));
            }
            Some(RuntimeCommand::Refresh(spec)) => volume_changes::apply(host, sessions, &spec),
            Some(RuntimeCommand::Forget { namespace, revision }) => {
                host.records.remove_revision(&namespace, &revision, host.generation.first)
            }
            Some(RuntimeCommand::Session(command)) => sessions::handle(sessions, host, command),
            Some(RuntimeCommand::Idle) => preforks.clear(),
            None => break,
        }
    }
    // The runtime was dropped; each instance ends when its handle is dropped too.
    while running.join_next().await.is_some() {}
}

/// One instance from start to end.
async fn run_instance(thread: RuntimeThread, mut instance: InstanceRun) {
    let RuntimeThread { host, preforks, .. } = &thread;
    // A prefork process has its mount namespace already, and would not see what is mounted for the instance now. It has
    // also dropped the capabilities that instances do not keep.
    let spec = &instance.spec;
    let kind = PreforkKind { port: spec.port, is_container: spec.image.is_some() };
    let is_usual = spec.init_containers.is_empty()
        && spec.other_ports.is_empty()
        && !spec.volumes.iter().any(is_in_memory)
        && (kind.is_container || spec.credentials.capabilities.within_defaults());
    let waiting = if is_usual { preforks.acquire(instance.id, kind) } else { None };
    let ports = match &waiting {
        Some(waiting) => Ok(InstancePorts::new(spec.port, waiting.host_port)),
        None => host.allocate_ports(spec),
    };
    let gone = match ports {
        Ok(ports) => {
            let started = start_and_run(&thread, &mut instance, (&ports, waiting)).await;
            host.release_ports(&ports);
            started.unwrap_or_else(|why| not_started(&why))
        }
        Err(why) => not_started(&why),
    };
    host.records.remove_record(&instance.spec, instance.id);
    let folder = host.records.folder(&instance.spec.namespace, &instance.spec.revision);
    VolumeStore::new(&folder, instance.id).remove_instance_dirs(&instance.spec.volumes);
    host.remove_scratch(scratch_folder(&folder, instance.id));
    TerminationMessage::new(&folder, instance.id).remove();
    instance.reporter.exited(gone);
}

/// Starts it with these `ports` of the host, and supervises it.
async fn start_and_run(
    thread: &RuntimeThread,
    instance: &mut InstanceRun,
    (ports, mut waiting): (&InstancePorts, Option<PreforkProcess>),
) -> io::Result<InstanceExit> {
    let host = &thread.host;
    let mut created = Sandbox::create(host, instance, ports, waiting.as_mut())?;
    // Boxed: few instances have init containers.
    if created.has_init_containers()
        && let Err(gone) = Box::pin(created.run_init_containers(host, instance)).await
    {
        created.tear_down(host).await;
        return Ok(gone);
    }
    let process = InstanceProcess::start(thread, instance, created, waiting)?;
    let _ = instance.spawned.set(Instant::now()); // a life is started once
    Ok(process.run(host, instance).await)
}

/// The containers of an instance that sessions can reach: its own and its sidecars.
fn reachable_containers(
    instance: &InstanceRun,
    sidecars: &[SidecarContainer],
    launcher: &Rc<Launcher>,
    environment: &Rc<[(String, String)]>,
    ports: &Rc<InstancePorts>,
) -> InstanceSessions {
    let own = InstanceSessions::new(Rc::clone(ports));
    let own = own.with_container((None, instance.spec.port), launcher, environment);
    sidecars.iter().fold(own, |all, SidecarContainer { sidecar, launcher, environment, .. }| {
        all.with_container((Some(sidecar.name.clone()), sidecar.spec.port), launcher, environment)
    })
}

/// A started process with all its resources.
struct InstanceProcess {
    child: Child,
    pidfd: AsyncFd<OwnedFd>,
    address: SocketAddr,
    ports: Rc<InstancePorts>,
    record: InstanceRecord,
    environment: Rc<[(String, String)]>,
    launcher: Rc<Launcher>,
    log: Rc<RefCell<InstanceLog>>,
    output_tasks: Vec<JoinHandle<()>>,
    freezer: Freezer,
    /// The sessions of clients.
    sessions: InstanceRegistration,
    sidecars: Sidecars,
    termination_message: TerminationMessage,
    /// Its control group, for its port and its resource limits.
    group: InstanceCgroup,
    /// Until it was ready once.
    start_guard: Cell<Option<StartGuard>>,
    last_probe_error: LastProbeError,
}

impl InstanceProcess {
    fn start(
        RuntimeThread { host, preforks, sessions }: &RuntimeThread,
        instance: &InstanceRun,
        created: Sandbox,
        mut waiting: Option<PreforkProcess>,
    ) -> io::Result<Self> {
        let underway = preforks.start_guard();
        let InstanceRun { id, ref spec, ref reporter, .. } = *instance;
        let Sandbox { record, launcher, environment, termination_message, group, ports, sidecars, init_containers } =
            created;
        // No instance is ever without a record; that of a prefork process is removed at the end of this.
        let note = || host.records.write(spec, id, &record);
        let is_container = |spec: &InstanceSpec| spec.image.is_some();
        let freezer = if spec.all_containers().any(is_container) {
            Freezer::by_cgroup(group.freeze_switch())
        } else {
            Freezer::default()
        };
        let mut child = launcher.start(
            waiting.as_mut().map(|waiting| &mut waiting.process),
            &command(spec, &environment),
            &environment,
            note,
        )?;
        let log =
            InstanceLog::open(&host.records.folder(&spec.namespace, &spec.revision), id, &spec.revision, &host.output);
        let log = Rc::new(RefCell::new(log));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.serving()));
        match capture(&mut child, &log) {
            Ok((pidfd, readers)) => {
                let record = record.with_leader(pid(&child));
                host.records.write(spec, id, &record);
                let processes = InstanceProcesses {
                    instance: id,
                    leader: pid(&child).as_raw_nonzero().get(),
                    cgroups: group.folders().to_vec(),
                    began: std::time::Instant::now(),
                };
                let all = reachable_containers(instance, &sidecars, &launcher, &environment, &ports);
                let all = all.with_processes(processes).with_spec(Arc::clone(spec));
                Ok(Self {
                    sessions: InstanceRegistration::new(sessions, id, all),
                    child,
                    pidfd,
                    address,
                    ports,
                    record,
                    environment,
                    launcher,
                    log,
                    output_tasks: readers,
                    freezer,
                    sidecars: Sidecars::start(sidecars, init_containers.statuses(), reporter),
                    group,
                    termination_message,
                    start_guard: Cell::new(Some(underway)),
                    last_probe_error: LastProbeError::default(),
                })
            }
            Err(why) => {
                signal_group(&child, Signal::KILL);
                child.wait()?;
                Err(why)
            }
        }
    }
}
