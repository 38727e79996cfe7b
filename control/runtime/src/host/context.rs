//! State shared by the tasks of the runtime thread, and the placement of each instance: its control group and its
//! port.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use container::CgroupView;
use container::program::ProtectedProgram;
use contract::cgroup_ports::CgroupPortPrograms;
use contract::target_policy::TargetPolicy;

use super::port_allocator::PortAllocator;
use crate::cgroup::{CgroupManager, InstanceCgroup};
use crate::cleanup::generations::Generation;
use crate::cleanup::process_reaper::ProcessReaper;
use crate::cleanup::records::InstanceRecords;
use crate::dns::{self, InstanceGateway};
use crate::launch::InitProgram;
use crate::launch::container_launcher::ScratchReaper;
use crate::limits::OTHER_PORTS_MAX;
use crate::logs::pace::{Output, OutputTally};
use crate::sandbox_spec::SandboxSpec;
use crate::user_ids::UserIdAllocator;
use crate::{InstancePorts, InstanceSpec, ResourceLimits};

/// The host configuration of instances.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Loopback ports that instances must not connect to (RT-LIFE-11).
    pub blocked_ports: Vec<u16>,
    /// The gateway behind the names of Services; or why there is none.
    pub gateway: Result<InstanceGateway, String>,
    /// The number of prefork processes, from the first start on.
    pub prefork_processes: usize,
    /// Instances see the host's `/dev` instead of their own.
    pub host_devices: bool,
    /// The addresses that probes may connect to.
    pub targets: Arc<TargetPolicy>,
    /// Counts the output of instances.
    pub output: Arc<OutputTally>,
    /// The appliance's own folders and files that are hidden from instances with a mount namespace.
    pub masked: Vec<PathBuf>,
}

impl HostConfig {
    /// No ports are blocked, no DNS server runs, and no prefork processes wait.
    #[must_use]
    pub fn minimal() -> Self {
        let gateway = Err("no DNS server runs".to_owned());
        Self {
            blocked_ports: Vec::new(),
            gateway,
            prefork_processes: 0,
            host_devices: false,
            targets: Arc::default(),
            output: Arc::default(),
            masked: Vec::new(),
        }
    }
}

pub(crate) struct HostContext {
    pub(crate) records: InstanceRecords,
    /// Held for as long as an instance of this process may run.
    pub(crate) generation: Generation,
    pub(crate) init: InitProgram,
    pub(crate) ports: RefCell<PortAllocator>,
    pub(crate) user_ids: UserIdAllocator,
    pub(crate) process_reaper: ProcessReaper,
    /// The parent of control groups, or why there is none.
    pub(crate) cgroups: Result<CgroupManager, String>,
    pub(crate) output: Rc<Output>,
    config: HostConfig,
    /// The configuration of containers, from the first one on.
    containers: OnceCell<(Rc<ProtectedProgram>, ScratchReaper)>,
    /// The `/etc/resolv.conf` of instances, by namespace.
    resolvers: RefCell<HashMap<String, PathBuf>>,
    /// The missing container port of instances has been logged.
    warned_about_ports: Cell<bool>,
    /// The missing name resolution between instances has been logged.
    warned_about_names: Cell<bool>,
    /// The missing limit on processes has been logged.
    warned_about_processes: Cell<bool>,
}

/// The placement of an instance.
pub(crate) struct InstancePlacement {
    pub(crate) group: InstanceCgroup,
    /// The port in the instance's environment.
    pub(crate) port: u16,
    pub(crate) ports: InstancePorts,
    /// Its `/etc/resolv.conf`.
    pub(crate) resolver: Option<PathBuf>,
}

impl HostContext {
    pub(crate) fn new(
        (records, generation): (InstanceRecords, Generation),
        init: InitProgram,
        cgroups: Result<CgroupManager, String>,
        around: HostConfig,
    ) -> Self {
        let (ports, process_reaper) = (RefCell::new(PortAllocator::for_host()), ProcessReaper::start());
        let output = Rc::new(Output::new(Arc::clone(&around.output)));
        let (warned_about_ports, warned_about_names) = (Cell::new(false), Cell::new(false));
        Self {
            records,
            generation,
            init,
            ports,
            user_ids: UserIdAllocator::default(),
            process_reaper,
            cgroups,
            output,
            config: around,
            containers: OnceCell::new(),
            resolvers: RefCell::default(),
            warned_about_ports,
            warned_about_names,
            warned_about_processes: Cell::new(false),
        }
    }

    /// RT-PORT-03, RT-ENV-01: places the instance in `group`, where its ports are redirected to the host's, unless it
    /// `has_port` already. If that is not possible, the instance gets the host's port as its own, and
    /// resource limits that cannot be enforced are dropped; the log says both.
    pub(crate) fn placement(
        &self,
        mut group: InstanceCgroup,
        has_port: bool,
        spec: &InstanceSpec,
        ports: InstancePorts,
    ) -> InstancePlacement {
        if spec.resources.is_limited() || spec.image.is_some() {
            match self.assign_resources(&mut group, spec.resources) {
                Ok(()) => {}
                Err(why) if spec.resources.is_limited() => {
                    tracing::warn!(revision = spec.revision, %why, "resources are not enforced, or not all of them");
                }
                Err(why) if !self.warned_about_processes.replace(true) => {
                    tracing::warn!(%why, "the number of a container's processes is not limited");
                }
                Err(_) => {}
            }
        }
        let added = if has_port { Ok(()) } else { self.assign_ports(&mut group, &ports) };
        match added {
            Ok(()) => InstancePlacement { group, port: spec.port, ports, resolver: self.resolver(&spec.namespace) },
            Err(why) => {
                if !self.warned_about_ports.replace(true) {
                    tracing::warn!(%why, "instances get a free PORT instead of their containerPort; as root, with cgroup v2, they get it");
                }
                InstancePlacement { group, port: ports.serving(), ports: ports.shared_with_host(), resolver: None }
            }
        }
    }

    /// RT-CG-01: `group` has these limits, and the one on its processes. A container is always in such a group: it sees its own
    /// control groups, and what it starts is bounded.
    pub(crate) fn assign_resources(&self, group: &mut InstanceCgroup, resources: ResourceLimits) -> Result<(), String> {
        let cgroups = self.cgroups.as_ref().map_err(Clone::clone)?;
        cgroups.add_resources(group, resources).map_err(|why| why.to_string())
    }

    /// A port of the host for each that the instance wants for itself.
    pub(crate) fn allocate_ports(&self, spec: &InstanceSpec) -> io::Result<InstancePorts> {
        let mut ports = InstancePorts::default();
        for port in [spec.port].iter().chain(spec.other_ports.iter().take(OTHER_PORTS_MAX)) {
            let real = self.ports.borrow_mut().allocate(|below| fastrand::u16(..below));
            ports.add(*port, real.inspect_err(|_| self.release_ports(&ports))?);
        }
        Ok(ports)
    }

    pub(crate) fn release_ports(&self, ports: &InstancePorts) {
        ports.pairs().iter().for_each(|(_, real)| self.ports.borrow_mut().release(*real));
    }

    /// In `group`, the container `ports` are those of the host.
    pub(crate) fn assign_ports(&self, group: &mut InstanceCgroup, ports: &InstancePorts) -> Result<(), String> {
        let (closed, gateway) = (&*self.config.blocked_ports, self.config.gateway.as_ref().ok());
        let rule =
            CgroupPortPrograms { ports: ports.pairs(), closed, gateway: gateway.map(|gateway| gateway.host_ports) };
        let cgroups = self.cgroups.as_ref().map_err(Clone::clone)?;
        cgroups.add_port(group, &rule).map_err(|why| why.to_string())
    }

    /// This program's file, for the first process of a container.
    pub(crate) fn container_program(&self) -> io::Result<Rc<ProtectedProgram>> {
        Ok(self.containers()?.0)
    }

    /// The launchers of an instance's containers; `None` if it has none.
    pub(crate) fn containers_of(
        &self,
        spec: &InstanceSpec,
    ) -> io::Result<Option<(Rc<ProtectedProgram>, ScratchReaper)>> {
        let has_one = spec.all_containers().any(|one| one.image.is_some());
        has_one.then(|| self.containers()).transpose()
    }

    /// The same, and the thread that removes the files of containers.
    pub(crate) fn containers(&self) -> io::Result<(Rc<ProtectedProgram>, ScratchReaper)> {
        if let Some(containers) = self.containers.get() {
            return Ok(containers.clone());
        }
        // An error is not cached: a missing descriptor or thread may be available for the next start.
        let open = || Ok((Rc::new(ProtectedProgram::open(&self.init.program)?), ScratchReaper::start()?));
        let opened = open().map_err(|why: io::Error| {
            io::Error::other(format!(
                "containers cannot be started: {why}; run the appliance as root on Linux 5.10 or later"
            ))
        })?;
        Ok(self.containers.get_or_init(|| opened).clone())
    }

    /// Cleans up after an instance; does nothing if it was not a container.
    pub(crate) fn remove_scratch(&self, folder: PathBuf) {
        if let Some((_, reaper)) = self.containers.get() {
            reaper.remove(folder);
        }
    }

    /// Number of prefork processes.
    pub(crate) fn prefork_processes(&self) -> usize {
        self.config.prefork_processes
    }

    /// Loopback ports that instances must not connect to.
    pub(crate) fn blocked_ports(&self) -> &[u16] {
        &self.config.blocked_ports
    }

    pub(crate) fn targets(&self) -> Arc<TargetPolicy> {
        Arc::clone(&self.config.targets)
    }

    /// The sandbox of a process in `group`, whatever it becomes.
    pub(crate) fn sandbox_spec(&self, group: &InstanceCgroup) -> SandboxSpec {
        SandboxSpec {
            cgroups: self.cgroup_mounts(group),
            masks: self.config.masked.clone(),
            host_devices: self.config.host_devices,
            ..SandboxSpec::default()
        }
    }

    /// `group` as its process joins and sees it.
    fn cgroup_mounts(&self, group: &InstanceCgroup) -> Vec<CgroupView> {
        let point = |folder: &PathBuf| self.cgroups.as_ref().ok()?.mount_point_of(folder).map(PathBuf::from);
        let of = |folder: &PathBuf| CgroupView {
            folder: folder.clone(),
            mount_point: point(folder).unwrap_or_else(|| folder.clone()),
        };
        group.folders().iter().map(of).collect()
    }

    /// The `/etc/resolv.conf` of instances in `namespace`: written once, and shared by all. Without it an instance
    /// uses the host's name servers, and the log says so once.
    fn resolver(&self, namespace: &str) -> Option<PathBuf> {
        if let Some(file) = self.resolvers.borrow().get(namespace) {
            return Some(file.clone());
        }
        let written = self.config.gateway.clone().and_then(|gateway| {
            let text = dns::instance_file(namespace, gateway.server);
            self.write_resolver(namespace, gateway.server, &text).map_err(|why| why.to_string())
        });
        match written {
            Ok(file) => {
                self.resolvers.borrow_mut().insert(namespace.to_owned(), file.clone());
                Some(file)
            }
            Err(why) => {
                if !self.warned_about_names.replace(true) {
                    tracing::warn!(%why, "instances do not reach Services by name; as root, with cgroup v2 and port 53 of loopback, they do");
                }
                None
            }
        }
    }

    /// Named by the name server, because each process on a data folder has its own, and several may run at the same time.
    fn write_resolver(&self, namespace: &str, server: Ipv4Addr, text: &str) -> io::Result<PathBuf> {
        let folder = self.records.namespace(namespace);
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?; // the instance may begin in another root
        let (new, file) =
            (folder.join(format!("resolv-{server}.conf.new")), folder.join(format!("resolv-{server}.conf")));
        fs::write(&new, text)?;
        fs::rename(new, &file)?; // a mount of the old file keeps the old content
        Ok(file)
    }
}
