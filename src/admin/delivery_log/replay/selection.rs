//! The events that a replay takes: from a start to an end, and by the subscriber's filter.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use axum::body::Bytes;
use dataplane::filter::matches;
use dataplane::filter::steps::Steps;
use dataplane::record::{EventPosition, EventRecord};
use dataplane::table::Subscriber;
use tokio::sync::mpsc;

use super::super::dead_letters::{self, DeadLetterQuery};
use super::super::{each_event, time};

/// Where to begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplayStart {
    Time(u64),
    /// In this core's log: other logs have positions of their own.
    Position(EventPosition),
    DeadLetters,
}

impl ReplayStart {
    /// `logs`: the number of logs.
    pub(super) fn read(text: &str, logs: usize) -> Result<Self> {
        match text {
            "dead-letters" => return Ok(Self::DeadLetters),
            "earliest" => return Ok(Self::Time(0)),
            _ => {}
        }
        if let Ok(position) = text.parse() {
            if logs > 1 {
                bail!(
                    "a position is one log's, and there are {logs}: write CORE:POSITION, as a trace shows it, like 0:{text}"
                );
            }
            return Ok(Self::Position((0, position)));
        }
        let pair = text.split_once(':').map(|(core, position)| (core.parse(), position.parse()));
        if let Some((Ok(core), Ok(position))) = pair {
            if core >= logs {
                bail!("core {core} has no log: their numbers are 0 to {}", logs.saturating_sub(1));
            }
            return Ok(Self::Position((core, position)));
        }
        let since = time(text).context("--from takes earliest, dead-letters, a time or CORE:POSITION")?;
        Ok(Self::Time(since))
    }

    fn takes(&self, position: EventPosition, at_ms: u64) -> bool {
        match self {
            Self::Time(since) => at_ms >= *since,
            Self::Position((core, first)) => position.0 == *core && position.1 >= *first,
            Self::DeadLetters => false, // one by one
        }
    }
}

/// From where to where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReplayRange {
    pub(super) start: ReplayStart,
    /// Events accepted at this time or later are not taken, in milliseconds since 1970.
    end_ms: u64,
}

impl ReplayRange {
    pub(super) fn read(from: &str, to_time: Option<&str>, logs: usize) -> Result<Self> {
        let start = ReplayStart::read(from, logs)?;
        let end_ms = to_time.map(time).transpose().context("--to-time takes a time")?.unwrap_or(u64::MAX);
        if let ReplayStart::Time(since) = start
            && since > end_ms
        {
            bail!("--to-time is before --from: no event is between them");
        }
        Ok(Self { start, end_ms })
    }

    fn takes(&self, position: EventPosition, at_ms: u64) -> bool {
        at_ms < self.end_ms && self.start.takes(position, at_ms)
    }
}

/// An event of the log that is to be sent again.
pub(super) struct SelectedEvent {
    pub(super) position: EventPosition,
    pub(super) at_ms: u64,
    pub(super) record: EventRecord,
}

/// Reads the events of a stream that a replay takes, on a thread that may block, and makes `T` of each there.
pub(super) struct EventReader<'a, T, F: Fn(SelectedEvent) -> T> {
    pub(super) logs: &'a [PathBuf],
    pub(super) stream: &'a str,
    /// At a broker, whose subscribers' filters see the time of arrival.
    pub(super) arrives: bool,
    pub(super) subscriber: &'a Subscriber,
    pub(super) range: &'a ReplayRange,
    pub(super) make: F,
    pub(super) events: mpsc::Sender<T>,
}

impl<T, F: Fn(SelectedEvent) -> T> EventReader<'_, T, F> {
    pub(super) fn read(&self) -> Result<()> {
        match self.range.start {
            ReplayStart::DeadLetters => self.dead_letters(),
            _ => self.history(),
        }
    }

    /// All dead letters that are open now, however many.
    fn dead_letters(&self) -> Result<()> {
        let query = DeadLetterQuery { subscriber: Some(&self.subscriber.name), until_ms: time("0s")? };
        dead_letters::each_page(self.logs, &query, |open| {
            let mut open: BTreeSet<EventPosition> = open.into_keys().map(|(position, _)| position).collect();
            if open.is_empty() {
                return Ok(());
            }
            each_event(self.logs, |position, stream, at_ms, payload| match open.remove(&position) {
                true if *stream == *self.stream && at_ms < self.range.end_ms => {
                    self.pass(position, at_ms, payload, |_| true)
                }
                _ => Ok(()),
            })?;
            Ok(())
        })
    }

    /// All events of the range that match the subscriber's filter. Copies are for one subscriber, and not part of the
    /// history.
    fn history(&self) -> Result<()> {
        let mut seen = BTreeSet::new();
        each_event(self.logs, |position, stream, at_ms, payload| {
            if *stream != *self.stream || !self.range.takes(position, at_ms) || !seen.insert(position) {
                return Ok(());
            }
            let seen = |record: &EventRecord| match record.clone() {
                record if self.arrives => record.arrived_at(at_ms),
                record => record,
            };
            let is_wanted = |record: &EventRecord| {
                !record.is_addressed && matches(&self.subscriber.filter, &seen(record), &Steps::default())
            };
            self.pass(position, at_ms, payload, is_wanted)
        })?;
        Ok(())
    }

    fn pass(
        &self,
        position: EventPosition,
        at_ms: u64,
        payload: &[u8],
        is_wanted: impl Fn(&EventRecord) -> bool,
    ) -> io::Result<()> {
        let record = EventRecord::decode(Bytes::copy_from_slice(payload)).ok().filter(is_wanted);
        let Some(record) = record else { return Ok(()) };
        let sent = self.events.blocking_send((self.make)(SelectedEvent { position, at_ms, record }));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into()) // the receiver is gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_names_log_when_there_are_several() {
        assert_eq!(ReplayStart::read("1:77", 2).unwrap(), ReplayStart::Position((1, 77)));
        assert_eq!(ReplayStart::read("77", 1).unwrap(), ReplayStart::Position((0, 77)));
        assert_eq!(ReplayStart::read("earliest", 2).unwrap(), ReplayStart::Time(0));
        assert_eq!(ReplayStart::read("1970-01-01T00:00:01Z", 2).unwrap(), ReplayStart::Time(1000));
        for (text, logs, why) in
            [("77", 2, "0:77"), ("2:77", 2, "0 to 1"), ("1:x", 2, "CORE:POSITION"), ("soon", 1, "dead-letters")]
        {
            let refused = format!("{:#}", ReplayStart::read(text, logs).unwrap_err());
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let from = ReplayStart::Position((1, 77));
        assert!(from.takes((1, 77), 0) && !from.takes((1, 76), 9) && !from.takes((0, 78), 9));
    }

    #[test]
    fn range_ends_before_its_end_time() {
        let second = |n: u64| format!("1970-01-01T00:00:0{n}Z");
        let range = ReplayRange::read(&second(1), Some(&second(3)), 1).unwrap();
        for (at_ms, is_taken) in [(999, false), (1000, true), (2999, true), (3000, false)] {
            assert_eq!(range.takes((0, 7), at_ms), is_taken, "{at_ms}");
        }
        assert!(ReplayRange::read("earliest", None, 1).unwrap().takes((0, 7), u64::MAX - 1));
        for (to, why) in [(second(0), "before --from"), ("later".to_owned(), "--to-time takes a time")] {
            let refused = format!("{:#}", ReplayRange::read(&second(1), Some(&to), 1).unwrap_err());
            assert!(refused.contains(why), "{refused}");
        }
    }
}
