//! Streams and subscribers that are in the log and no longer in the table: deleted after a while, with
//! their undelivered events. Those are counted, reported to control, and recorded in the delivery log.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use contract::abandoned::AbandonedEvents;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::Tick;
use wal::{Cursor, LogPosition, StreamId};

use super::{Dispatcher, EventSender};
use crate::delivery_log::{self, DeliveryLogEntry};
use crate::limits::{REMOVAL_DELAY, TIDY_EVERY};
use crate::log_writer::HISTORY;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum AbsentStreams {
    Stream(StreamId, Box<str>),
    Subscriber(StreamId, Box<str>),
}

/// Where the log ended when subscribers were removed: later events were never for them.
pub(super) struct RemovalPositions {
    /// When the log was opened. Subscribers deleted by an earlier process are in no table since.
    opened: LogPosition,
    /// Those that this process ran; each until it is deleted.
    positions: RefCell<HashMap<(StreamId, Box<str>), LogPosition, RandomState>>,
}

impl RemovalPositions {
    pub(super) fn of(opened: LogPosition) -> Self {
        Self { opened, positions: RefCell::default() }
    }

    pub(super) fn note(&self, stream: StreamId, subscriber: &str, end: LogPosition) {
        self.positions.borrow_mut().insert((stream, subscriber.into()), end);
    }

    /// It runs again.
    pub(super) fn take_back(&self, stream: StreamId, subscriber: &str) {
        self.positions.borrow_mut().remove(&(stream, subscriber.into()));
    }

    fn end(&self, stream: StreamId, subscriber: &str) -> LogPosition {
        self.positions.borrow().get(&(stream, subscriber.into())).copied().unwrap_or(self.opened)
    }

    fn forget(&self, absent: &AbsentStreams) {
        self.positions.borrow_mut().retain(|(stream, name), _| match absent {
            AbsentStreams::Stream(gone, _) => stream != gone,
            AbsentStreams::Subscriber(of, gone) => (stream, name) != (of, gone),
        });
    }
}

impl<P: EventSender> Dispatcher<P> {
    /// Deletes what is no longer in the table. Runs forever.
    pub async fn remove_deleted(&self) {
        loop {
            self.context.ring.sleep(TIDY_EVERY).await;
            if self.version.get() > 0 {
                self.forget_absent(self.context.ring.now());
            }
        }
    }

    fn forget_absent(&self, now: Tick) {
        let mut since = std::mem::take(&mut *self.absent.borrow_mut());
        let mut still = HashMap::<_, _, RandomState>::default();
        for absent in self.find_absent() {
            let from = since.remove(&absent).unwrap_or(now);
            if now - from < REMOVAL_DELAY {
                still.insert(absent, from);
                continue;
            }
            let events = self.abandon(&absent);
            tracing::info!(
                ?absent,
                events,
                "deleted with its backlog: the table has not contained it for {REMOVAL_DELAY:?}"
            );
            self.ends.forget(&absent);
            match absent {
                AbsentStreams::Stream(_, name) => self.context.writer.forget_stream(&name),
                AbsentStreams::Subscriber(stream, name) => self.context.writer.forget_subscriber(stream, &name),
            }
        }
        self.absent.replace(still);
    }

    fn find_absent(&self) -> Vec<AbsentStreams> {
        let table = self.table.borrow();
        let named: HashSet<&str> = table.streams.values().map(|stream| &*stream.name).collect();
        let workers = self.workers.borrow();
        let log = self.context.writer.log();
        let mut absent = Vec::new();
        for (id, name) in log.streams() {
            if name == delivery_log::STREAM {
                continue; // internal: retained by no subscriber
            }
            if !named.contains(name) {
                absent.push(AbsentStreams::Stream(id, name.into()));
                continue;
            }
            let runs = |subscriber: &str| workers.get(&id).is_some_and(|workers| workers.contains_key(subscriber));
            let lost = log.cursors(id).filter(|(subscriber, _)| *subscriber != HISTORY && !runs(subscriber));
            absent.extend(lost.map(|(subscriber, _)| AbsentStreams::Subscriber(id, subscriber.into())));
        }
        absent
    }

    /// Reports the backlog that is deleted with it; returns the number of events, counted per subscriber.
    fn abandon(&self, absent: &AbsentStreams) -> u64 {
        let log = self.context.writer.log();
        let (id, stream, left): (_, &str, Vec<(&str, &Cursor)>) = match absent {
            AbsentStreams::Stream(id, name) => {
                (*id, name, log.cursors(*id).filter(|(name, _)| *name != HISTORY).collect())
            }
            AbsentStreams::Subscriber(id, name) => {
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
        if let (AbsentStreams::Subscriber(..), Some(served)) = (absent, self.carried_out.borrow().get(&id)) {
            served.tally.abandoned.fetch_add(events, Relaxed);
        }
        let is_whole = matches!(absent, AbsentStreams::Stream(..));
        self.table.borrow().abandoned.report(AbandonedEvents { stream: stream.into(), is_whole, events });
        let left: Vec<_> =
            open.iter().map(|(name, end, _)| (delivery_log::abandoned_name(stream, name), *end)).collect();
        drop(log); // a full page of the delivery log is appended at once
        if let Some(delivery_log) = &self.context.delivery_log {
            left.iter().for_each(|(name, end)| delivery_log.note(DeliveryLogEntry::abandoned(name, *end)));
        }
        events
    }
}
