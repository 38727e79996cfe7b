//! What an instance stands on before it runs: its record, its files, its seat, its variables, and who runs before and
//! beside it.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use super::Life;
use crate::runtime::cgroups::Group;
use crate::runtime::environment::{Own, environment};
use crate::runtime::init_containers::InitContainers;
use crate::runtime::last_words::LastWords;
use crate::runtime::launch::Launcher;
use crate::runtime::log::InstanceLog;
use crate::runtime::mounts::Bind;
use crate::runtime::orphans::Record;
use crate::runtime::room::Room;
use crate::runtime::seats::Waiting;
use crate::runtime::sidecars::{Post, State};
use crate::runtime::volumes::Shelf;
use crate::runtime::words::Place;
use crate::runtime::{Gone, InstanceSpec, LastWordsAt, Sidecar, host_name, may_mount, pod_name};

pub(super) struct Ground {
    pub(super) record: Record,
    pub(super) launcher: Launcher,
    pub(super) environment: Vec<(String, String)>,
    pub(super) last_words: LastWords,
    /// Where it has its port, and is held to what its manifest allows.
    pub(super) group: Group,
    pub(super) init_containers: InitContainers,
    /// Who runs beside it.
    pub(super) posts: Vec<Post>,
}

impl Ground {
    pub(super) fn lay(
        room: &Room,
        life: &Life,
        port: u16,
        mut waiting: Option<&mut Waiting>,
    ) -> io::Result<Self> {
        let Life { id, line, ref spec, .. } = *life;
        if spec.command.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the instance has no command"));
        }
        let record = waiting.as_ref().map_or_else(Record::fresh, |waiting| waiting.record().clone());
        let shelf = Shelf::new(&room.records.folder(&spec.namespace, &spec.revision), id);
        shelf.fill(&spec.volumes)?;
        let others = spec.init_containers.iter().chain(&spec.sidecars).flat_map(|one| &one.spec.mounts);
        shelf.open(&spec.volumes, spec.mounts.iter().chain(others))?;
        let last_words = LastWords::new(&room.records.folder(&spec.namespace, &spec.revision), id);
        let words_at = spec
            .last_words
            .as_ref()
            .map(|_| last_words.open(&spec.identity).map(|()| last_words.path()))
            .transpose()?;
        let has_port = waiting.as_ref().is_some_and(|waiting| waiting.has_port());
        let group = waiting.as_mut().map_or_else(|| Group::named(id.to_string()), |it| it.leave_group());
        let seat = room.seat(group, has_port, spec, port);
        let name = pod_name(&spec.revision, line);
        let own = Own {
            port: Some(seat.port),
            name: &name,
            mark: &record.mark,
            volumes: shelf.root(),
            last_words: words_at,
        };
        let place_of = |spec: &InstanceSpec| Place {
            resolver: seat.resolver.clone().filter(|_| may_mount()),
            hostname: may_mount().then(|| host_name(&name).to_owned()),
            ..place(room.place(&seat.group), spec, &shelf, &last_words)
        };
        let posts = |others: &[Sidecar]| -> Vec<Post> {
            others.iter().map(|one| post(room, one, id, place_of(&one.spec), own)).collect()
        };
        Ok(Self {
            launcher: Launcher { init: room.init.clone(), place: place_of(spec), targets: room.targets() },
            environment: environment(spec, own),
            init_containers: InitContainers::new(posts(&spec.init_containers)),
            posts: posts(&spec.sidecars),
            last_words: last_words.clone(),
            group: seat.group,
            record: record.clone(),
        })
    }

    pub(super) fn has_init_containers(&self) -> bool {
        !self.init_containers.is_empty()
    }

    /// Has those run who run before it. An error is its end.
    pub(super) async fn begin(&mut self, room: &Room, life: &mut Life) -> Result<(), Gone> {
        let spec = &life.spec;
        room.records.write(spec, life.id, &self.record); // no process is ever without one
        // They are no more kept than the instance's own.
        InstanceLog::make_room(&room.records.folder(&spec.namespace, &spec.revision));
        let (deadline, group) = (life.deadline(), &self.group);
        let starved = || group.was_out_of_memory();
        self.init_containers.run(&mut life.orders, &life.reporter, deadline, starved).await
    }

    /// Nothing runs on it: one of those before it failed.
    pub(super) async fn leave(self, room: &Room) {
        room.sweeper.end(self.record).await;
        self.group.remove().await;
    }
}

/// Where a sidecar of the instance `id` runs, and by what.
fn post(room: &Room, sidecar: &Sidecar, id: u64, place: Place, own: Own<'_>) -> Post {
    let spec = &sidecar.spec;
    let folder = room.records.folder(&spec.namespace, &spec.revision);
    let log = InstanceLog::beside(&folder, id, (&spec.revision, &sidecar.name), &room.output);
    Post {
        sidecar: sidecar.clone(),
        launcher: Launcher { init: room.init.clone(), place, targets: room.targets() },
        environment: environment(spec, Own { port: None, last_words: None, ..own }),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, spec.port)),
        log: Rc::new(RefCell::new(log)),
        state: State::default(),
    }
}

/// The place `at` some group, with what the manifest says of it.
fn place(at: Place, spec: &InstanceSpec, shelf: &Shelf, last_words: &LastWords) -> Place {
    let bind = |mount| Bind {
        source: shelf.source(&spec.volumes, mount),
        target: mount.path.clone(),
        read_only: mount.read_only,
    };
    // Its own files lie in the appliance's folder, which is masked: the variables name them where they are.
    let kept = spec.last_words.is_some().then(|| last_words.path().to_owned());
    let volumes = (!spec.volumes.is_empty()).then(|| shelf.root().to_owned());
    let words = match &spec.last_words {
        Some(LastWordsAt::Path(path)) => {
            let source = last_words.path().to_owned();
            Some(Bind { source, target: path.clone(), read_only: false })
        }
        Some(LastWordsAt::Variable) | None => None,
    };
    Place {
        binds: spec.mounts.iter().map(bind).chain(words).collect(),
        unmasked: volumes.into_iter().chain(kept).collect(),
        working_dir: spec.working_dir.clone(),
        identity: spec.identity,
        read_only_root: spec.read_only_root,
        ..at
    }
}
