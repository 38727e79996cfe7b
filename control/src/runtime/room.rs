//! What the tasks of the hand thread share, and where each instance is seated: its control group and its port.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use dataplane::group_port::GroupPort;
use dataplane::target_policy::TargetPolicy;

use super::InstanceSpec;
use super::cgroups::{Cgroups, Group};
use super::generations::Generation;
use super::orphans::Records;
use super::pace::{Output, OutputTally};
use super::port::Ports;
use super::process::Init;
use super::seats::Seats;
use super::sweeper::Sweeper;
use super::words::{self, Place};
use crate::names::{self, Gateway};

/// What instances meet on this host.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Ports of loopback that are no business of an instance (RT-LIFE-11).
    pub closed: Vec<u16>,
    /// Where names of Services lead to; or why they lead nowhere.
    pub gateway: Result<Gateway, String>,
    /// So many processes wait for an instance to become, from the first start on.
    pub seats: usize,
    /// Instances see the host's `/dev`, and have none of their own.
    pub host_devices: bool,
    /// Where probes may connect.
    pub targets: Arc<TargetPolicy>,
    /// Counts what instances print.
    pub output: Arc<OutputTally>,
    /// Folders and files of the appliance's own that instances do not see, where they can have a view of their own.
    pub masked: Vec<PathBuf>,
}

impl Surroundings {
    /// Nothing is closed, nobody answers for names, and nobody waits.
    #[must_use]
    pub fn bare() -> Self {
        let gateway = Err("nobody answers for names".to_owned());
        Self {
            closed: Vec::new(),
            gateway,
            seats: 0,
            host_devices: false,
            targets: Arc::default(),
            output: Arc::default(),
            masked: Vec::new(),
        }
    }
}

pub(super) struct Room {
    pub(super) records: Records,
    /// Held for as long as an instance of this process may run.
    pub(super) generation: Generation,
    pub(super) init: Init,
    pub(super) ports: RefCell<Ports>,
    pub(super) sweeper: Sweeper,
    pub(super) seats: Rc<Seats>,
    /// Where control groups can be made, or why not.
    pub(super) cgroups: Result<Cgroups, String>,
    pub(super) output: Rc<Output>,
    around: Surroundings,
    /// What instances find as `/etc/resolv.conf`, by namespace.
    resolvers: RefCell<HashMap<String, PathBuf>>,
    /// It was told that instances do not get their container port.
    told: Cell<bool>,
    /// It was told that they do not reach each other by name.
    told_of_names: Cell<bool>,
}

/// Where an instance is to be.
pub(super) struct Seat {
    pub(super) group: Group,
    /// The port that the instance is told.
    pub(super) port: u16,
    /// What it is to find as `/etc/resolv.conf`.
    pub(super) resolver: Option<PathBuf>,
}

impl Room {
    pub(super) fn new(
        (records, generation): (Records, Generation),
        init: Init,
        cgroups: Result<Cgroups, String>,
        around: Surroundings,
    ) -> Self {
        let (ports, sweeper) = (RefCell::new(Ports::of_this_host()), Sweeper::start());
        let output = Rc::new(Output::new(Arc::clone(&around.output)));
        let (told, told_of_names) = (Cell::new(false), Cell::new(false));
        let (resolvers, seats) = (RefCell::default(), Rc::new(Seats::new(around.seats)));
        Self {
            records,
            generation,
            init,
            ports,
            sweeper,
            seats,
            cgroups,
            output,
            around,
            resolvers,
            told,
            told_of_names,
        }
    }

    /// RT-PORT-03, RT-ENV-01: a seat in `group` where the container port is the host's `real` one, unless it `has_port`
    /// already. Where that cannot be had the instance is told `real` itself, and what cannot be enforced of its resources
    /// is not; the log says both.
    pub(super) fn seat(&self, mut group: Group, has_port: bool, spec: &InstanceSpec, real: u16) -> Seat {
        if spec.resources.any() {
            let cgroups = self.cgroups.as_ref().map_err(Clone::clone);
            let added = cgroups.and_then(|cgroups| {
                cgroups.add_resources(&mut group, spec.resources).map_err(|why| why.to_string())
            });
            if let Err(why) = added {
                tracing::warn!(revision = spec.revision, %why, "resources are not enforced, or not all of them");
            }
        }
        let added = if has_port { Ok(()) } else { self.give_port(&mut group, spec.port, real) };
        match added {
            Ok(()) => Seat { group, port: spec.port, resolver: self.resolver(&spec.namespace) },
            Err(why) => {
                if !self.told.replace(true) {
                    tracing::warn!(%why, "instances get a free PORT instead of their containerPort; as root, with cgroup v2, they get it");
                }
                Seat { group, port: real, resolver: None }
            }
        }
    }

    /// In `group`, the port `named` is the host's `real` one.
    pub(super) fn give_port(&self, group: &mut Group, named: u16, real: u16) -> Result<(), String> {
        let (closed, gateway) = (&*self.around.closed, self.around.gateway.as_ref().ok());
        let rule = GroupPort { named, real, closed, gateway: gateway.map(|gateway| gateway.real) };
        let cgroups = self.cgroups.as_ref().map_err(Clone::clone)?;
        cgroups.add_port(group, &rule).map_err(|why| why.to_string())
    }

    pub(super) fn targets(&self) -> Arc<TargetPolicy> {
        Arc::clone(&self.around.targets)
    }

    /// Where a process in `group` is, whatever it becomes.
    pub(super) fn place(&self, group: &Group) -> Place {
        Place {
            cgroups: self.seats_of(group),
            masks: self.around.masked.clone(),
            host_devices: self.around.host_devices,
            ..Place::default()
        }
    }

    /// `group` as its process joins and sees it.
    fn seats_of(&self, group: &Group) -> Vec<words::Seat> {
        let point = |folder: &PathBuf| self.cgroups.as_ref().ok()?.point_of(folder).map(PathBuf::from);
        let of = |folder: &PathBuf| words::Seat {
            folder: folder.clone(),
            mounted: point(folder).unwrap_or_else(|| folder.clone()),
        };
        group.folders().iter().map(of).collect()
    }

    /// What an instance in `namespace` is to find as `/etc/resolv.conf`: written once, and the same for all. Without it
    /// it asks whom the host asks, and the log says so once.
    fn resolver(&self, namespace: &str) -> Option<PathBuf> {
        if let Some(file) = self.resolvers.borrow().get(namespace) {
            return Some(file.clone());
        }
        let written = self.around.gateway.clone().and_then(|gateway| {
            let text = names::instance_file(namespace, gateway.server);
            self.write_resolver(namespace, gateway.server, &text).map_err(|why| why.to_string())
        });
        match written {
            Ok(file) => {
                self.resolvers.borrow_mut().insert(namespace.to_owned(), file.clone());
                Some(file)
            }
            Err(why) => {
                if !self.told_of_names.replace(true) {
                    tracing::warn!(%why, "instances do not reach Services by name; as root, with cgroup v2 and port 53 of loopback, they do");
                }
                None
            }
        }
    }

    /// Named by the name server, because each process on a data folder has its own, and they may run beside each other.
    fn write_resolver(&self, namespace: &str, server: Ipv4Addr, text: &str) -> io::Result<PathBuf> {
        let folder = self.records.namespace(namespace);
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?; // the instance may begin in another root
        let (new, file) =
            (folder.join(format!("resolv-{server}.conf.new")), folder.join(format!("resolv-{server}.conf")));
        fs::write(&new, text)?;
        fs::rename(new, &file)?; // who has the old one mounted keeps it
        Ok(file)
    }
}
