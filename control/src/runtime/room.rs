//! What the tasks of the hand thread share, and where each instance is seated: its control group and its port.

use std::cell::{Cell, RefCell};

use dataplane::group_port::GroupPort;

use super::InstanceSpec;
use super::cgroups::{Cgroups, Group};
use super::orphans::Records;
use super::port::Ports;
use super::process::Init;
use super::sweeper::Sweeper;

pub(super) struct Room {
    pub(super) records: Records,
    pub(super) init: Init,
    pub(super) ports: RefCell<Ports>,
    pub(super) sweeper: Sweeper,
    /// Where control groups can be made, or why not.
    cgroups: Result<Cgroups, String>,
    /// Ports of loopback that are no business of an instance.
    closed: Vec<u16>,
    /// It was told that instances do not get their container port.
    told: Cell<bool>,
}

/// Where an instance is to be.
pub(super) struct Seat {
    pub(super) group: Group,
    /// The port that the instance is told.
    pub(super) port: u16,
}

impl Room {
    pub(super) fn new(
        records: Records,
        init: Init,
        cgroups: Result<Cgroups, String>,
        closed: Vec<u16>,
    ) -> Self {
        let (ports, sweeper) = (RefCell::new(Ports::of_this_host()), Sweeper::start());
        Self { records, init, ports, sweeper, cgroups, closed, told: Cell::new(false) }
    }

    /// RT-PORT-03, RT-ENV-01: a seat where the container port is the host's `real` one. Where that cannot be had the
    /// instance is told `real` itself, and what cannot be enforced of its resources is not; the log says both.
    pub(super) fn seat(&self, id: u64, spec: &InstanceSpec, real: u16) -> Seat {
        let mut group = Group::default();
        let cgroups = || self.cgroups.as_ref().map_err(Clone::clone);
        if spec.resources.any() {
            let added = cgroups().and_then(|cgroups| {
                cgroups.add_resources(&mut group, id, spec.resources).map_err(|why| why.to_string())
            });
            if let Err(why) = added {
                tracing::warn!(revision = spec.revision, %why, "resources are not enforced, or not all of them");
            }
        }
        let rule = GroupPort { named: spec.port, real, closed: &self.closed };
        let added = cgroups()
            .and_then(|cgroups| cgroups.add_port(&mut group, id, &rule).map_err(|why| why.to_string()));
        match added {
            Ok(()) => Seat { group, port: spec.port },
            Err(why) => {
                if !self.told.replace(true) {
                    tracing::warn!(%why, "instances get a free PORT instead of their containerPort; as root, with cgroup v2, they get it");
                }
                Seat { group, port: real }
            }
        }
    }
}
