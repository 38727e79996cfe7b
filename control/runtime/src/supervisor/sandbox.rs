//! The sandbox of an instance, prepared before it runs: its record, its files, its control group, its variables, its
//! init containers and its sidecars.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use container::BindMount;

use super::InstanceRun;
use super::init_containers::InitContainers;
use super::sidecars::{SidecarContainer, SidecarState};
use crate::cgroup::InstanceCgroup;
use crate::cleanup::records::InstanceRecord;
use crate::environment::{InstanceVariables, environment};
use crate::host::HostContext;
use crate::host::prefork_pool::PreforkProcess;
use crate::launch::container_launcher::{ContainerLauncher, scratch_folder};
use crate::launch::launcher::Launcher;
use crate::logs::instance_log::InstanceLog;
use crate::logs::termination_message::TerminationMessage;
use crate::mounts::volume_store::{FileOwner, VolumeStore};
use crate::names::{host_name, instance_name};
use crate::sandbox_spec::SandboxSpec;
use crate::user_ids::UserIdBlock;
use crate::{InstanceExit, InstancePorts, InstanceSpec, Sidecar, TerminationMessagePath, may_mount};

pub(crate) struct Sandbox {
    pub(crate) record: InstanceRecord,
    pub(crate) launcher: Rc<Launcher>,
    pub(crate) environment: Rc<[(String, String)]>,
    pub(crate) termination_message: TerminationMessage,
    /// Its control group, for its port and its resource limits.
    pub(crate) group: InstanceCgroup,
    /// Where its container ports are.
    pub(crate) ports: Rc<InstancePorts>,
    pub(crate) init_containers: InitContainers,
    /// Its running sidecars.
    pub(crate) sidecars: Vec<SidecarContainer>,
}

impl Sandbox {
    pub(crate) fn create(
        host: &HostContext,
        run: &InstanceRun,
        ports: &InstancePorts,
        mut waiting: Option<&mut PreforkProcess>,
    ) -> io::Result<Self> {
        let InstanceRun { id, line, ref spec, .. } = *run;
        if spec.command.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the instance has no command"));
        }
        let record = waiting.as_ref().map_or_else(InstanceRecord::new, |waiting| waiting.record().clone());
        let store = VolumeStore::new(&host.records.folder(&spec.namespace, &spec.revision), id);
        store.write_files(&spec.volumes, FileOwner::of(spec))?;
        let others = spec.init_containers.iter().chain(&spec.sidecars).flat_map(|one| &one.spec.mounts);
        store.create_instance_dirs(&spec.volumes, spec.mounts.iter().chain(others))?;
        VolumeStore::create_persistent_dirs(&spec.volumes, &spec.credentials)?;
        let termination_message = TerminationMessage::new(&host.records.folder(&spec.namespace, &spec.revision), id);
        let message_path = spec
            .termination_message
            .as_ref()
            .map(|_| termination_message.create(&spec.credentials).map(|()| termination_message.path()))
            .transpose()?;
        let containers = host.containers_of(spec)?;
        let user_ids = user_ids(host, spec)?;
        let has_port = waiting.as_ref().is_some_and(|waiting| waiting.has_port());
        let group = waiting.as_mut().map_or_else(|| InstanceCgroup::new(id.to_string()), |it| it.take_cgroup());
        let prefork = host.placement(group, has_port, spec, ports.clone());
        let ports = Rc::new(prefork.ports);
        if !spec.other_ports.is_empty() {
            run.reporter.ports(InstancePorts::clone(&ports));
        }
        let name = instance_name(spec, line);
        let own = InstanceVariables {
            port: Some(prefork.port),
            name: &name,
            mark: &record.mark,
            volumes: store.volumes_dir(),
            termination_message: message_path,
        };
        let place_of = |spec: &InstanceSpec| SandboxSpec {
            resolver: prefork.resolver.clone().filter(|_| may_mount()),
            hostname: may_mount().then(|| host_name(&name).to_owned()),
            ..sandbox_spec(host.sandbox_spec(&prefork.group), spec, &store, &termination_message)
        };
        let scratch = scratch_folder(&host.records.folder(&spec.namespace, &spec.revision), id);
        let launcher = |spec: &InstanceSpec, name: &str| {
            let sandbox = place_of(spec);
            let image = spec.image.as_ref().zip(containers.clone());
            let container = image.map(|(image, host)| {
                ContainerLauncher::new(host, (&scratch, name), (spec, image), (&sandbox, user_ids.clone()))
            });
            Rc::new(Launcher { init: host.init.clone(), sandbox, container, targets: host.targets() })
        };
        let posts = |kind: &str, others: &[Sidecar]| -> Vec<SidecarContainer> {
            let one = |one: &Sidecar| {
                sidecar_container(host, one, (id, &ports), launcher(&one.spec, &format!("{kind}-{}", one.name)), own)
            };
            others.iter().map(one).collect()
        };
        Ok(Self {
            launcher: launcher(spec, "main"),
            environment: environment(spec, own).into(),
            init_containers: InitContainers::new(posts("init", &spec.init_containers)),
            sidecars: posts("sidecar", &spec.sidecars),
            termination_message: termination_message.clone(),
            group: prefork.group,
            ports: Rc::clone(&ports),
            record: record.clone(),
        })
    }

    pub(crate) fn has_init_containers(&self) -> bool {
        !self.init_containers.is_empty()
    }

    /// Runs the init containers. An error ends the instance.
    pub(crate) async fn run_init_containers(
        &mut self,
        host: &HostContext,
        run: &mut InstanceRun,
    ) -> Result<(), InstanceExit> {
        let spec = &run.spec;
        host.records.write(spec, run.id, &self.record); // no process is ever without one
        // They have no other resources than the instance's own.
        InstanceLog::prune(&host.records.folder(&spec.namespace, &spec.revision));
        let (times, group) = ((run.deadline(), run.grace()), &self.group);
        let starved = || group.was_out_of_memory();
        self.init_containers.run(&mut run.commands, &run.reporter, times, starved).await
    }

    /// The start ends here: an init container failed.
    pub(crate) async fn tear_down(self, host: &HostContext) {
        host.process_reaper.reap(self.record).await;
        self.group.remove().await;
    }
}

/// A block of ids for all containers of the instance: they share volumes.
fn user_ids(host: &HostContext, spec: &InstanceSpec) -> io::Result<Option<Rc<UserIdBlock>>> {
    let has_one = |one: &InstanceSpec| one.credentials.has_user_namespace;
    if spec.all_containers().any(|one| has_one(one) && one.image.is_none()) {
        return Err(io::Error::other("hostUsers: false needs an image: the instance is a process of this host"));
    }
    let block = || host.user_ids.allocate(|below| fastrand::u32(..below)).map(Rc::new);
    spec.all_containers().any(has_one).then(block).transpose()
}

/// The sandbox and the launcher of a sidecar of the instance `id`.
fn sidecar_container(
    host: &HostContext,
    sidecar: &Sidecar,
    (id, ports): (u64, &Rc<InstancePorts>),
    launcher: Rc<Launcher>,
    own: InstanceVariables<'_>,
) -> SidecarContainer {
    let spec = &sidecar.spec;
    let folder = host.records.folder(&spec.namespace, &spec.revision);
    let log = InstanceLog::open_sidecar(&folder, id, (&spec.revision, &sidecar.name), &host.output);
    SidecarContainer {
        sidecar: sidecar.clone(),
        launcher,
        environment: environment(spec, InstanceVariables { port: None, termination_message: None, ..own }).into(),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, ports.host_port(spec.port))),
        ports: Rc::clone(ports),
        log: Rc::new(RefCell::new(log)),
        state: SidecarState::default(),
    }
}

/// The sandbox in the group `at`, as the manifest specifies it.
fn sandbox_spec(
    at: SandboxSpec,
    spec: &InstanceSpec,
    store: &VolumeStore,
    termination_message: &TerminationMessage,
) -> SandboxSpec {
    let bind = |mount| BindMount {
        source: store.source(&spec.volumes, mount),
        sub_path: mount.sub_path.as_ref().map(PathBuf::from),
        target: mount.path.clone(),
        read_only: VolumeStore::is_read_only(&spec.volumes, mount),
        is_own: false,
    };
    // Its own files are in the appliance's folder, which is masked: the variables name their real paths.
    let kept = spec.termination_message.is_some().then(|| termination_message.path().to_owned());
    let volumes = (!spec.volumes.is_empty()).then(|| store.volumes_dir().to_owned());
    let persistent = spec.volumes.iter().filter_map(|volume| volume.persistent_dir().map(Path::to_owned));
    let message = match &spec.termination_message {
        Some(TerminationMessagePath::Path(path)) => {
            let source = termination_message.path().to_owned();
            Some(BindMount { source, sub_path: None, target: path.clone(), read_only: false, is_own: true })
        }
        Some(TerminationMessagePath::Variable) | None => None,
    };
    SandboxSpec {
        binds: spec.mounts.iter().map(bind).chain(message).collect(),
        unmasked: volumes.into_iter().chain(kept).chain(persistent).collect(),
        working_dir: spec.working_dir.clone(),
        credentials: spec.credentials,
        read_only_root: spec.read_only_root,
        ..at
    }
}
