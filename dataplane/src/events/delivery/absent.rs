//! Streams and subscribers that the log knows and the table does not name any more: forgotten after a while, with
//! what they had still to get. That is counted, told to whoever tells their owners, and noted in the journal.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::Tick;
use wal::{Bookmark, Position, StreamId};

use super::{Desk, Post};
use crate::events::journal::{self, Note};
use crate::events::keeper::HISTORY;
use crate::events::left_behind::Left;
use crate::events::limits::{ABSENT_PATIENCE, TIDY_EVERY};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Absent {
    Stream(StreamId, Box<str>),
    Subscriber(StreamId, Box<str>),
}

/// Where the log ended when subscribers did: what came in behind that was never for them.
pub(super) struct Ends {
    /// When the log was opened. Who was deleted by an earlier process is in no table since.
    opened: Position,
    /// Those that this process knew; each until it is forgotten.
    known: RefCell<HashMap<(StreamId, Box<str>), Position, RandomState>>,
}

impl Ends {
    pub(super) fn of(opened: Position) -> Self {
        Self { opened, known: RefCell::default() }
    }

    pub(super) fn note(&self, stream: StreamId, subscriber: &str, end: Position) {
        self.known.borrow_mut().insert((stream, subscriber.into()), end);
    }

    /// It runs again.
    pub(super) fn take_back(&self, stream: StreamId, subscriber: &str) {
        self.known.borrow_mut().remove(&(stream, subscriber.into()));
    }

    fn end(&self, stream: StreamId, subscriber: &str) -> Position {
        self.known.borrow().get(&(stream, subscriber.into())).copied().unwrap_or(self.opened)
    }

    fn forget(&self, absent: &Absent) {
        self.known.borrow_mut().retain(|(stream, name), _| match absent {
            Absent::Stream(gone, _) => stream != gone,
            Absent::Subscriber(of, gone) => (stream, name) != (of, gone),
        });
    }
}

impl<P: Post> Desk<P> {
    /// Forgets what nobody names any more. Runs for ever.
    pub async fn tidy(&self) {
        loop {
            self.shop.ring.sleep(TIDY_EVERY).await;
            if self.version.get() > 0 {
                self.forget_absent(self.shop.ring.now());
            }
        }
    }

    fn forget_absent(&self, now: Tick) {
        let mut since = std::mem::take(&mut *self.absent.borrow_mut());
        let mut still = HashMap::<_, _, RandomState>::default();
        for absent in self.find_absent() {
            let from = since.remove(&absent).unwrap_or(now);
            if now - from < ABSENT_PATIENCE {
                still.insert(absent, from);
                continue;
            }
            let events = self.leave_behind(&absent);
            tracing::info!(
                ?absent,
                events,
                "forgotten with its backlog: the table has not named it for {ABSENT_PATIENCE:?}"
            );
            self.ends.forget(&absent);
            match absent {
                Absent::Stream(_, name) => self.shop.keeper.forget_stream(&name),
                Absent::Subscriber(stream, name) => self.shop.keeper.forget_subscriber(stream, &name),
            }
        }
        self.absent.replace(still);
    }

    fn find_absent(&self) -> Vec<Absent> {
        let table = self.table.borrow();
        let named: HashSet<&str> = table.streams.values().map(|stream| &*stream.name).collect();
        let pumps = self.pumps.borrow();
        let log = self.shop.keeper.log();
        let mut absent = Vec::new();
        for (id, name) in log.streams() {
            if name == journal::STREAM {
                continue; // nobody's, and no subscriber holds it
            }
            if !named.contains(name) {
                absent.push(Absent::Stream(id, name.into()));
                continue;
            }
            let runs = |subscriber: &str| pumps.get(&id).is_some_and(|pumps| pumps.contains_key(subscriber));
            let lost =
                log.bookmarks(id).filter(|(subscriber, _)| *subscriber != HISTORY && !runs(subscriber));
            absent.extend(lost.map(|(subscriber, _)| Absent::Subscriber(id, subscriber.into())));
        }
        absent
    }

    /// Tells of the backlog that goes with it; how many events that is, each subscriber's counted.
    fn leave_behind(&self, absent: &Absent) -> u64 {
        let log = self.shop.keeper.log();
        let (id, stream, left): (_, &str, Vec<(&str, &Bookmark)>) = match absent {
            Absent::Stream(id, name) => {
                (*id, name, log.bookmarks(*id).filter(|(name, _)| *name != HISTORY).collect())
            }
            Absent::Subscriber(id, name) => {
                let stream = log.streams().find(|(known, _)| known == id).map_or("", |(_, name)| name);
                (*id, stream, log.how_far(*id, name).map(|mark| (&**name, mark)).into_iter().collect())
            }
        };
        let counted = left.into_iter().map(|(name, mark)| {
            let end = self.ends.end(id, name);
            (name, end, log.open_events_before(id, mark, end))
        });
        let open: Vec<_> = counted.filter(|(.., events)| *events > 0).collect();
        let events = open.iter().map(|(.., events)| events).sum();
        if events == 0 {
            return 0;
        }
        if let (Absent::Subscriber(..), Some(served)) = (absent, self.carried_out.borrow().get(&id)) {
            served.tally.abandoned.fetch_add(events, Relaxed);
        }
        let is_whole = matches!(absent, Absent::Stream(..));
        self.table.borrow().left_behind.tell(Left { stream: stream.into(), is_whole, events });
        let left: Vec<_> =
            open.iter().map(|(name, end, _)| (journal::left_name(stream, name), *end)).collect();
        drop(log); // a page of the journal that is full is appended at once
        if let Some(journal) = &self.shop.journal {
            left.iter().for_each(|(name, end)| journal.note(Note::left_behind(name, *end)));
        }
        events
    }
}
