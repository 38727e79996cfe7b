//! Processes that wait where an instance is to be, so that a start has only to say what one of them becomes.
//!
//! Most of a start is the same for all instances: this program's own start, a control group with its port, a mount
//! namespace, and joining the group, for which the kernel stops for some milliseconds if nobody joined one lately. A few
//! processes have that behind them and wait for the rest of their words ([`super::init`]). They are no instances: nothing
//! of a manifest is known to them, and they end with the appliance.
//!
//! None is made before the first start, nor while an instance is starting: a burst of starts goes as if there were none.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use rustix::process::getpid;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::cgroups::Group;
use super::launch::pid;
use super::limits::{ORDERS_BYTES_MAX, SEAT_PATIENCE, SEAT_PAUSE};
use super::orphans::{Noted, Record};
use super::room::Room;
use super::words;

/// Those that wait, and when there is time to make more of them.
pub(super) struct Seats {
    most: usize,
    waiting: RefCell<VecDeque<Waiting>>,
    /// The id and the port of the last start: the next one's port is likely the same. `None`: none is to be expected.
    last: Cell<Option<(u64, u16)>>,
    made: Cell<u64>,
    starting: Cell<u32>,
    began: Notify,
    ended: Notify,
}

/// A process that waits.
pub(super) struct Waiting {
    /// There until it becomes an instance.
    child: Option<Child>,
    /// Written while there is time: a start that waits for the disk is a request that waits.
    noted: Noted,
    group: Group,
    /// The port that will be its own; `None` where there are none, and `real` is what it will be told.
    named: Option<u16>,
    /// The host's.
    pub(super) real: u16,
}

/// An instance that is starting.
pub(super) struct Underway(Rc<Seats>);

impl Seats {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            waiting: RefCell::default(),
            last: Cell::default(),
            made: Cell::default(),
            starting: Cell::default(),
            began: Notify::new(),
            ended: Notify::new(),
        }
    }

    pub(super) fn underway(self: &Rc<Self>) -> Underway {
        self.starting.update(|starting| starting + 1);
        Underway(Rc::clone(self))
    }

    async fn calm(&self) {
        while self.starting.get() > 0 {
            self.ended.notified().await;
        }
    }

    /// The last start's id and port, if one more should wait for the next.
    fn lacks(&self) -> Option<(u64, u16)> {
        let waiting = self.waiting.borrow();
        self.last
            .get()
            .filter(|(_, port)| waiting.len() < self.most || !waiting.iter().any(|one| one.suits(*port)))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.starting.update(|starting| starting - 1);
        self.0.ended.notify_one();
    }
}

/// One that can become the instance `id`, which is to have `port`.
pub(super) fn take(room: &Room, id: u64, port: u16) -> Option<Waiting> {
    let seats = &room.seats;
    if seats.most == 0 {
        return None;
    }
    seats.last.set(Some((id, port)));
    seats.began.notify_one();
    loop {
        let at = seats.waiting.borrow().iter().position(|one| one.suits(port))?;
        let mut one = seats.waiting.borrow_mut().remove(at)?;
        if one.is_alive() {
            return Some(one);
        }
        room.ports.borrow_mut().give_back(one.real);
    }
}

/// Nobody waits any more, until the next start.
pub(super) fn dismiss(room: &Room) {
    room.seats.last.set(None);
    for one in room.seats.waiting.take() {
        room.ports.borrow_mut().give_back(one.real);
    }
}

/// Makes those that are missing, after each start.
pub(super) async fn keep(room: Rc<Room>) {
    let seats = &room.seats;
    loop {
        seats.began.notified().await;
        while seats.lacks().is_some() {
            let _ = timeout(SEAT_PATIENCE, seats.calm()).await;
            sleep(SEAT_PAUSE).await;
            let Some((id, port)) = seats.lacks() else { break };
            if seats.waiting.borrow().len() == seats.most {
                let oldest = seats.waiting.borrow_mut().pop_front();
                oldest.into_iter().for_each(|one| room.ports.borrow_mut().give_back(one.real));
            }
            match make(&room, id, port) {
                Ok(one) => seats.waiting.borrow_mut().push_back(one),
                Err(why) => {
                    tracing::debug!(%why, "no process waits for the next instance; it starts a new one");
                    break;
                }
            }
        }
    }
}

fn make(room: &Room, id: u64, port: u16) -> io::Result<Waiting> {
    let seats = &room.seats;
    let real = room.ports.borrow_mut().take(|below| fastrand::u16(..below))?;
    seats.made.update(|made| made + 1);
    let name = format!("{id}-{}", seats.made.get());
    let mut group = Group::named(name.clone());
    let named = room.give_port(&mut group, port, real).is_ok().then_some(port);
    let child = Command::new(&room.init.program)
        .arg0("sluicegate")
        .args(&room.init.arguments)
        .args(words::waiting(getpid(), &room.place(&group)))
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .inspect_err(|_| room.ports.borrow_mut().give_back(real))?;
    let noted = room.records.note_waiting(&name, Record::fresh().with_leader(pid(&child)));
    Ok(Waiting { child: Some(child), noted, group, named, real })
}

impl Waiting {
    pub(super) fn has_port(&self) -> bool {
        self.named.is_some()
    }

    /// Of the instance as well, when it has become one.
    pub(super) fn record(&self) -> &Record {
        &self.noted.record
    }

    /// Whoever takes it, removes it.
    pub(super) fn leave_group(&mut self) -> Group {
        std::mem::take(&mut self.group)
    }

    /// Tells it what to become. `None`: it could not be told, and is gone.
    pub(super) fn becomes(&mut self, orders: &[u8]) -> Option<Child> {
        if orders.len() > ORDERS_BYTES_MAX {
            return None;
        }
        let child = self.child.as_mut()?;
        child.stdin.take()?.write_all(orders).ok()?; // and with the end of the pipe it has all of them
        self.child.take()
    }

    fn suits(&self, port: u16) -> bool {
        self.named.is_none_or(|named| named == port)
    }

    fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may be over already
            let _ = child.wait(); // at once: nothing survives SIGKILL
        }
    }
}
