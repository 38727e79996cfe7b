//! Instances as processes of this host.
//!
//! One long-lived hand thread starts and watches all of them: an instance's parent-death signal follows
//! the *thread* that started it, starting blocks for a millisecond, and logs are written to disk. Per
//! instance there is one task on that thread, which ends when the whole process group is gone and reaped.
//!
//! Differences from a container (RT-LIFE-08): same file system and network as the appliance, and the same user
//! unless the manifest names one. Its container port is its own where the kernel can be told so; else PORT is a free
//! port on loopback (see [`super::room`]).

mod attend;
mod ground;

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use dataplane::heap;
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinHandle, JoinSet, LocalSet, spawn_local};
use tokio::time::Instant;

use super::cgroups::{Cgroups, Group};
use super::ending::{End, gone, not_started};
use super::environment::command;
use super::frost::Frost;
use super::generations::{self, Claims, Generation};
use super::last_words::LastWords;
use super::launch::{Launcher, pid, signal_group};
use super::log::InstanceLog;
use super::memory;
use super::orders::{Handle, Order};
use super::orphans::{Record, Records};
use super::output::{drain, watch};
use super::probe::Wrong;
use super::room::{Room, Surroundings};
use super::seats::{self, Underway, Waiting};
use super::sidecars::Sidecars;
use super::strays;
use super::volumes::{Shelf, Volume};
use super::{Gone, Instance, InstanceSpec, Reporter, Runtime};
use ground::Ground;

/// The program that becomes an instance: one whose `main` hands [`super::init::VERB`] to
/// [`super::init::run`].
#[derive(Debug, Clone)]
pub struct Init {
    pub program: PathBuf,
    /// Words before the verb.
    pub arguments: Vec<OsString>,
}

impl Init {
    /// This program itself, even if its file was replaced meanwhile.
    #[must_use]
    pub fn this_program() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: Vec::new() }
    }
}

/// Runs instances as processes.
pub struct ProcessRuntime {
    jobs: UnboundedSender<Job>,
    first_id: u64,
}

impl ProcessRuntime {
    /// Ends what crashed appliances left behind in `data`, then opens for work. Logs and records are kept in
    /// `data/instances`. Blocks for as long as the leftovers take to vanish.
    ///
    /// The caller holds the lock on `data`. Instances of an appliance that still runs, because it gave `data` away and has
    /// requests to end, are left alone until it has ended.
    pub fn open(data: &Path, init: Init, around: Surroundings) -> io::Result<Self> {
        Self::open_with(data, init, around, Unclaimed::Ended)
    }

    /// The same beside an appliance that was just replaced. If that is an earlier version, no claim says that its instances
    /// are its own; [`end_leftovers`] is due when it has ended.
    pub fn open_beside(data: &Path, init: Init, around: Surroundings) -> io::Result<Self> {
        Self::open_with(data, init, around, Unclaimed::Running)
    }

    fn open_with(data: &Path, init: Init, around: Surroundings, unclaimed: Unclaimed) -> io::Result<Self> {
        let folder = data.join(FOLDER);
        let records = Records::open(&folder)?;
        // Instances get ids that grow from start to start, so the newest logs are those with the highest.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let generation = Generation::claim(&folder, u64::try_from(now.as_millis()).unwrap_or(u64::MAX >> 1))?;
        let first_id = generation.first;
        clear_up(data, unclaimed)?;
        clear_up_after_others(data, first_id)?;
        let cgroups = Cgroups::open(data).map_err(|why| why.to_string());
        let (jobs, inbox) = mpsc::unbounded_channel();
        let reactor = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        std::thread::Builder::new().name("instances".into()).spawn(move || {
            LocalSet::new().block_on(&reactor, async {
                work(Rc::new(Room::new((records, generation), init, cgroups, around)), inbox).await;
            });
        })?;
        Ok(Self { jobs, first_id })
    }

    /// The first id that is this appliance's to give to an instance.
    #[must_use]
    pub fn first_id(&self) -> u64 {
        self.first_id
    }
}

/// Instances that leave enough behind to be looked after when the last of them has ended.
const MANY_LIVES: u32 = 64;

/// Below the data folder: logs and records of instances.
const FOLDER: &str = "instances";

/// What is taken of instances that no claim covers: an earlier version made none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unclaimed {
    Ended,
    Running,
}

/// Ends what appliances left behind in `data` that have ended. Blocks for as long as the leftovers take to vanish.
pub fn end_leftovers(data: &Path) -> io::Result<()> {
    clear_up(data, Unclaimed::Ended)
}

fn clear_up(data: &Path, unclaimed: Unclaimed) -> io::Result<()> {
    let folder = data.join(FOLDER);
    let claims = Claims::read(&folder)?;
    let is_left = |id| claims.has_ended(id).unwrap_or(unclaimed == Unclaimed::Ended);
    Records::open(&folder)?.end_leftovers(&is_left);
    memory::dismount_leftovers(&folder, &is_left);
    if let Ok(cgroups) = Cgroups::open(data) {
        cgroups.end_leftovers(&is_left);
    }
    claims.forget_ended();
    Ok(())
}

/// Clears up after each other appliance on `data` when it has ended, on a thread each.
fn clear_up_after_others(data: &Path, own: u64) -> io::Result<()> {
    for claim in Claims::read(&data.join(FOLDER))?.of_others(own) {
        let (claim, data) = (claim.to_owned(), data.to_owned());
        std::thread::Builder::new().name("leftovers".into()).spawn(move || {
            let cleared = generations::wait_for_end(&claim).and_then(|()| clear_up(&data, Unclaimed::Running));
            if let Err(why) = cleared {
                tracing::warn!(claim = %claim.display(), %why, "instances of another process may stay behind");
            }
        })?;
    }
    Ok(())
}

impl Runtime for ProcessRuntime {
    fn start(&self, id: u64, line: u64, spec: Arc<InstanceSpec>, reporter: Reporter) -> Box<dyn Instance> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let spawned = Arc::<OnceLock<Instant>>::default();
        let (reports, is_spawned, began) = (reporter.clone(), Arc::clone(&spawned), Instant::now());
        let life = Life { id, line, spec, reporter: reports, orders: inbox, began, spawned: is_spawned };
        if self.jobs.send(Job::Live(life)).is_err() {
            reporter.gone(not_started(&io::Error::other("the thread that runs instances is gone")));
        }
        Box::new(Handle { orders, spawned })
    }

    fn refresh(&self, spec: Arc<InstanceSpec>) {
        let _ = self.jobs.send(Job::Refresh(spec));
    }

    fn forget(&self, namespace: &str, revision: &str) {
        let _ = self.jobs.send(Job::Forget { namespace: namespace.into(), revision: revision.into() });
    }

    fn rest(&self) {
        let _ = self.jobs.send(Job::Rest);
    }
}

enum Job {
    Live(Life),
    Refresh(Arc<InstanceSpec>),
    Forget { namespace: String, revision: String },
    Rest,
}

struct Life {
    id: u64,
    line: u64,
    spec: Arc<InstanceSpec>,
    reporter: Reporter,
    orders: UnboundedReceiver<Order>,
    began: Instant,
    spawned: Arc<OnceLock<Instant>>,
}

impl Life {
    /// When its start has failed if it is not ready.
    fn deadline(&self) -> Instant {
        self.began + self.spec.startup_max
    }
}

async fn work(room: Rc<Room>, mut jobs: UnboundedReceiver<Job>) {
    let (mut lives, mut lived) = (JoinSet::new(), 0);
    drop(spawn_local(seats::keep(Rc::clone(&room)))); // these end with this thread
    room.cgroups.iter().for_each(|cgroups| drop(spawn_local(strays::clear(cgroups.clone()))));
    loop {
        let job = tokio::select! {
            job = jobs.recv() => job,
            // A life that has ended holds 5.6 KB until it is asked how that went.
            Some(_) = lives.join_next() => {
                if lives.is_empty() && lived >= MANY_LIVES {
                    lived = 0;
                    heap::give_cache_back();
                }
                continue;
            }
        };
        match job {
            Some(Job::Live(life)) => {
                lived += 1;
                drop(lives.spawn_local(live(Rc::clone(&room), life)));
            }
            Some(Job::Refresh(spec)) => refresh(&room, &spec),
            Some(Job::Forget { namespace, revision }) => {
                room.records.clear(&namespace, &revision, room.generation.first)
            }
            Some(Job::Rest) => seats::dismiss(&room),
            None => break,
        }
    }
    // The runtime was dropped; each life ends when its handle is dropped too.
    while lives.join_next().await.is_some() {}
}

/// Running instances see the new files at their next look; one that cannot be given them keeps the old.
fn refresh(room: &Room, spec: &InstanceSpec) {
    let shelf = Shelf::new(&room.records.folder(&spec.namespace, &spec.revision), 0);
    if let Err(why) = shelf.fill(&spec.volumes) {
        tracing::error!(revision = spec.revision, %why, "volumes keep their old files");
    }
}

/// One instance from start to end.
async fn live(room: Rc<Room>, mut life: Life) {
    // Who waits has looked at the host's mounts already, and would not see what is mounted for it now; and it has given up
    // what instances do not keep.
    let spec = &life.spec;
    let is_usual = spec.init_containers.is_empty()
        && !spec.volumes.iter().any(Volume::is_in_memory)
        && spec.identity.capabilities.are_usual();
    let waiting = if is_usual { seats::take(&room, life.id, life.spec.port) } else { None };
    let port = match &waiting {
        Some(waiting) => Ok(waiting.real),
        None => room.ports.borrow_mut().take(|below| fastrand::u16(..below)),
    };
    let gone = match port {
        Ok(port) => {
            let gone = lead(&room, &mut life, port, waiting).await.unwrap_or_else(|why| not_started(&why));
            room.ports.borrow_mut().give_back(port);
            gone
        }
        Err(why) => not_started(&why),
    };
    room.records.forget(&life.spec, life.id);
    let folder = room.records.folder(&life.spec.namespace, &life.spec.revision);
    Shelf::new(&folder, life.id).close(&life.spec.volumes);
    LastWords::new(&folder, life.id).forget();
    life.reporter.gone(gone);
}

/// Its life at the host's `port`.
async fn lead(room: &Room, life: &mut Life, port: u16, mut waiting: Option<Waiting>) -> io::Result<Gone> {
    let mut ground = Ground::lay(room, life, port, waiting.as_mut())?;
    // Boxed: few have somebody who runs before them.
    if ground.has_init_containers()
        && let Err(gone) = Box::pin(ground.begin(room, life)).await
    {
        ground.leave(room).await;
        return Ok(gone);
    }
    let process = Process::start(room, life, port, ground, waiting)?;
    let _ = life.spawned.set(Instant::now()); // a life is started once
    Ok(process.live(room, life).await)
}

/// A started process with everything that hangs on it.
struct Process {
    child: Child,
    pidfd: AsyncFd<OwnedFd>,
    address: SocketAddr,
    record: Record,
    environment: Vec<(String, String)>,
    launcher: Launcher,
    log: Rc<RefCell<InstanceLog>>,
    pumps: Vec<JoinHandle<()>>,
    frost: Frost,
    sidecars: Sidecars,
    last_words: LastWords,
    /// Where it has its port, and is held to what its manifest allows.
    group: Group,
    /// Until it was ready once.
    underway: Cell<Option<Underway>>,
    wrong: Wrong,
}

impl Process {
    fn start(
        room: &Room,
        life: &Life,
        port: u16,
        ground: Ground,
        mut waiting: Option<Waiting>,
    ) -> io::Result<Self> {
        let underway = Cell::new(Some(room.seats.underway()));
        let Life { id, ref spec, ref reporter, .. } = *life;
        let Ground { record, launcher, environment, last_words, group, posts, init_containers } = ground;
        // No instance is ever without a record; that of one that waited goes with it, at the end of this.
        let note = || room.records.write(spec, id, &record);
        let mut child = launcher.start(waiting.as_mut(), &command(spec, &environment), &environment, note)?;
        let log = InstanceLog::open(
            &room.records.folder(&spec.namespace, &spec.revision),
            id,
            &spec.revision,
            &room.output,
        );
        let log = Rc::new(RefCell::new(log));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match watch(&mut child, &log) {
            Ok((pidfd, pumps)) => {
                let record = record.with_leader(pid(&child));
                room.records.write(spec, id, &record);
                Ok(Self {
                    child,
                    pidfd,
                    address,
                    record,
                    environment,
                    launcher,
                    log,
                    pumps,
                    frost: Frost::default(),
                    sidecars: Sidecars::start(posts, init_containers.seen(), reporter),
                    group,
                    last_words,
                    underway,
                    wrong: Wrong::default(),
                })
            }
            Err(why) => {
                signal_group(&child, Signal::KILL);
                child.wait()?;
                Err(why)
            }
        }
    }

    async fn live(mut self, room: &Room, life: &mut Life) -> Gone {
        let end = self.serve(life).await;
        let asked = async {
            if !matches!(end, End::Itself) {
                self.terminate(&life.spec).await;
            }
        };
        tokio::join!(asked, self.sidecars.end(life.spec.grace));
        // The leader is dead and not reaped, so its number still means this group: nobody survives it.
        signal_group(&self.child, Signal::KILL);
        let status = self.child.wait();
        room.sweeper.end(self.record).await;
        drain(self.pumps, &self.log).await;
        let starved = self.group.was_out_of_memory();
        self.group.remove().await;
        let log = self.log.borrow();
        match status {
            Ok(status) => gone(&end, status, &life.spec, (&self.last_words.read(), &log.tail()), starved),
            Err(why) => not_started(&why), // not our child: cannot be, and is still worth a message
        }
    }
}
