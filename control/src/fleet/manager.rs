//! The task that owns the fleet: it hears everybody, lets the crew concerned decide, and sleeps until the
//! next thing is due. Without instances and without mail it does not wake at all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use dataplane::heap;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::crew::{Crew, Hands};
use super::{Board, EndpointSink, Known, Mail};
use crate::runtime::{Report, Runtime};

pub(super) async fn run(
    runtime: Arc<dyn Runtime>,
    sink: Arc<dyn EndpointSink>,
    first_id: u64,
    mut inbox: UnboundedReceiver<Mail>,
    board: Arc<Board>,
) {
    let (queue, mut reports) = mpsc::unbounded_channel();
    let hands = Hands { runtime, sink, queue, next_id: first_id, epoch: Instant::now() };
    let (crews, due, owners) = (HashMap::new(), BTreeSet::new(), HashMap::new());
    let mut manager = Manager { crews, due, owners, hands, board, leaving: None };
    let mut closed = false;

    while !((manager.leaving.is_some() || closed) && manager.crews.is_empty()) {
        let due = manager.due.first().map(|(at, _)| *at);
        tokio::select! {
            mail = inbox.recv(), if !closed => match mail {
                Some(mail) => manager.hear(mail, Instant::now()),
                None => {
                    closed = true; // all handles are gone: nobody can ask for anything any more
                    manager.leave(Instant::now());
                }
            },
            Some((id, report)) = reports.recv() => manager.learn(id, report, Instant::now()),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => manager.wake(Instant::now()),
        }
    }
    for done in manager.leaving.into_iter().flatten() {
        let _ = done.send(()); // who asked may have gone
    }
}

struct Manager {
    /// Boxed: a map has up to twice as many places as it needs.
    crews: HashMap<Arc<str>, Box<Crew>>,
    /// The crews that have to be looked at, and when: of many that sleep none is asked.
    due: BTreeSet<(Instant, Arc<str>)>,
    /// Whose instance an id is.
    owners: HashMap<u64, Arc<str>>,
    hands: Hands,
    board: Arc<Board>,
    /// Who waits for the end, once it has begun.
    leaving: Option<Vec<oneshot::Sender<()>>>,
}

impl Manager {
    fn hear(&mut self, mail: Mail, now: Instant) {
        match mail {
            Mail::Declare(key, plan) if self.leaving.is_none() => {
                // The plan and its crew are what is left of a revision that sleeps.
                let stays = heap::stays();
                let (key, plan) = (Arc::from(&*key), plan.anew());
                match self.crews.get_mut(&key) {
                    Some(crew) => crew.replan(plan, now, &self.hands),
                    None => {
                        let crew = Crew::new(Arc::clone(&key), plan, &self.hands, now);
                        self.crews.insert(Arc::clone(&key), Box::new(crew));
                    }
                }
                drop(stays);
                self.settle(&key, now);
            }
            Mail::Declare(..) => {} // too late: we are leaving
            Mail::Retire(key) => self.with(&key, now, |crew| crew.retire()),
            Mail::Restart(key, id) => self.with(&key, now, |crew| crew.restart(id, now)),
            Mail::Demand(key) => self.with(&key, now, |crew| crew.asked(now)),
            Mail::Unreachable(key, endpoint) => self.with(&key, now, |crew| crew.doubt(endpoint)),
            Mail::Shutdown(done) => {
                self.leave(now);
                self.leaving.get_or_insert_default().push(done);
            }
        }
    }

    fn learn(&mut self, id: u64, report: Report, now: Instant) {
        let owner = match report {
            Report::Gone(_) => self.owners.remove(&id),
            _ => self.owners.get(&id).cloned(),
        };
        let Some(key) = owner else { return };
        self.with(&key, now, |crew| match report {
            Report::Ready { address, protocol } => crew.ready(id, (address, protocol), now),
            Report::Unready => crew.unready(id),
            Report::Beside(others) => crew.beside(id, others),
            Report::Hindered(why) => crew.hindered(id, why),
            Report::Gone(gone) => crew.gone(id, gone, now),
        });
    }

    fn wake(&mut self, now: Instant) {
        let keys: Vec<_> =
            self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| Arc::clone(key)).collect();
        let board = Arc::clone(&self.board);
        for key in keys {
            self.with(&key, now, |crew| {
                let began = Instant::now();
                crew.sample(now);
                board.looks.note(began.elapsed());
            });
        }
    }

    fn leave(&mut self, now: Instant) {
        self.leaving.get_or_insert_default();
        let keys: Vec<_> = self.crews.keys().cloned().collect();
        for key in keys {
            self.with(&key, now, |crew| crew.dismiss());
        }
    }

    /// Something happened to a crew: it changes, then settles.
    fn with(&mut self, key: &Arc<str>, now: Instant, change: impl FnOnce(&mut Crew)) {
        if let Some(crew) = self.crews.get_mut(key) {
            change(crew);
            self.settle(key, now);
        }
    }

    fn settle(&mut self, key: &Arc<str>, now: Instant) {
        let Some(crew) = self.crews.get_mut(key) else { return };
        for id in crew.settle(now, &mut self.hands) {
            self.owners.insert(id, Arc::clone(key));
        }
        let due = crew.wake_at();
        let before = std::mem::replace(&mut crew.due, due);
        if before != due {
            if let Some(at) = before {
                self.due.remove(&(at, Arc::clone(key)));
            }
            if let Some(at) = due {
                self.due.insert((at, Arc::clone(key)));
            }
        }
        if crew.is_over() {
            if self.leaving.is_none() {
                crew.forget(&self.hands);
            }
            if let Some(at) = due {
                self.due.remove(&(at, Arc::clone(key)));
            }
            self.crews.remove(key);
            self.board.post(key, None);
            if self.crews.is_empty() {
                self.hands.runtime.rest();
            }
        } else {
            let seen = crew.seen();
            self.board.post(key, Some(Known { observed: crew.observed(), seen, figures: crew.figures() }));
        }
    }
}
