//! Events at which a core stopped.
//!
//! The code that evaluates a filter or encodes a request for an event records it beforehand
//! ([`CoreActivity`]). A watchdog that finds the core stuck records that next to the log
//! ([`write`](fn@write)), and removes it when the core continues. So what the next start finds there
//! ([`read`]) is what the process was ended for, and it is not tried again: the event is set aside for that
//! subscriber and for those whose work on the event is of the same kind ([`others_at_risk`]). Otherwise an event
//! that stops the filters of a hundred subscribers would cost a hundred restarts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use contract::filter::EventFilter;
use contract::table::{EventStream, Subscriber};
use ring::CurrentWork;
use serde::{Deserialize, Serialize};
use wal::LogPosition;

/// The file next to a log's segments.
const FILE: &str = "stalled-events.json";

/// Maximum number of stored events, the newest: each is a core that was stuck, and a process that was
/// killed for it.
const STALLED_EVENTS_MAX: usize = 256;

/// What is done with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is decoded, and a filter evaluated.
    Filter,
    /// A request is encoded from it.
    Request,
    /// The response to that is parsed.
    Reply,
    /// It is being received, and is in no log yet.
    Intake,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Filter, Self::Request, Self::Reply, Self::Intake];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Request => "request",
            Self::Reply => "reply",
            Self::Intake => "intake",
        }
    }
}

/// What a core works on. Stream and subscriber are identified by their addresses in memory, which are in
/// the table: that costs the core no look-up and no count, and only a watchdog reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreActivity {
    pub phase: Phase,
    /// Index among the core's logs.
    pub log: usize,
    /// Address of a [`contract::table::EventStream`]; 0: none.
    pub stream: usize,
    /// Address of a [`contract::table::Subscriber`]; 0: the whole stream.
    pub subscriber: usize,
    pub position: LogPosition,
}

impl CoreActivity {
    #[must_use]
    pub fn encode(self) -> CurrentWork {
        let Self { phase, log, stream, subscriber, position } = self;
        let code = (log << 8 | (phase as usize + 1)) as u64;
        [code, stream as u64, subscriber as u64, position.get()]
    }

    /// `None`: not working on an event.
    #[must_use]
    pub fn decode([code, stream, subscriber, position]: CurrentWork) -> Option<Self> {
        let word = |word: u64| usize::try_from(word).ok();
        let phase = word(code & 0xff)?.checked_sub(1).and_then(|nth| Phase::ALL.get(nth))?;
        Some(Self {
            phase: *phase,
            log: word(code >> 8)?,
            stream: word(stream)?,
            subscriber: word(subscriber)?,
            position: LogPosition::new(position),
        })
    }
}

/// An event that is not tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledEvent {
    /// Its name in the log.
    pub stream: String,
    /// Its uid; empty: the whole stream.
    pub subscriber: String,
    pub position: u64,
    pub phase: Phase,
    /// The uids of the other subscribers for which the event is set aside, if they have not finished it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_subscribers: Vec<String>,
}

/// The other subscribers of a stream that would probably stop a core at the same event. A request for it is encoded
/// alike for all. A filter that only compares attributes is evaluated although an expression stopped the core, and a
/// subscriber without a filter gets the event. A reply concerns its own subscriber alone.
pub fn others_at_risk<'a>(
    stream: &'a EventStream,
    stalled: &Subscriber,
    phase: Phase,
) -> impl Iterator<Item = &'a Arc<Subscriber>> {
    let is_at_risk = match (phase, stalled.filter.has_expression()) {
        (Phase::Reply | Phase::Intake, _) => |_: &EventFilter| false,
        (Phase::Request, _) => |_: &EventFilter| true,
        (Phase::Filter, true) => EventFilter::has_expression,
        (Phase::Filter, false) => |filter: &EventFilter| *filter != EventFilter::Everything,
    };
    let name = stalled.name.clone();
    stream.subscribers.iter().filter(move |other| other.name != name && is_at_risk(&other.filter))
}

/// Reads those of the log in this folder. A file that cannot be read is logged, and counts as empty.
#[must_use]
pub fn read(folder: &Path) -> Vec<StalledEvent> {
    let path = folder.join(FILE);
    let outcome = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(why),
    };
    outcome.unwrap_or_else(|why| {
        tracing::error!(path = %path.display(), %why, "cannot read which events stopped a core: they are retried");
        Vec::new()
    })
}

/// Replaces them, durably: after a crash either all of the new ones are there, or the old ones.
///
/// # Errors Those of the disk.
pub fn write(folder: &Path, events: &[StalledEvent]) -> io::Result<()> {
    let newest = &events[events.len().saturating_sub(STALLED_EVENTS_MAX)..];
    let (path, next) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
    let mut file = File::create(&next)?;
    file.write_all(&serde_json::to_vec_pretty(newest)?)?;
    file.sync_all()?;
    fs::rename(&next, &path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_round_trip_is_exact() {
        for (nth, phase) in Phase::ALL.into_iter().enumerate() {
            let activity =
                CoreActivity { phase, log: nth, stream: 0xfff0, subscriber: 0, position: LogPosition::new(1 << 40) };
            assert_eq!(CoreActivity::decode(activity.encode()), Some(activity));
        }
        assert_eq!(CoreActivity::decode(CurrentWork::default()), None);
        assert_eq!(CoreActivity::decode([u64::MAX; 4]), None);
    }

    #[test]
    fn stalled_events_survive_restart() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), []);
        let event = |position| StalledEvent {
            stream: "broker/ns/b/1".into(),
            subscriber: "u".into(),
            position,
            phase: Phase::Filter,
            other_subscribers: vec!["v".into(); usize::from(position == 2)],
        };
        let all: Vec<_> = (0..STALLED_EVENTS_MAX as u64 + 2).map(event).collect();
        write(folder.path(), &all).unwrap();
        assert_eq!(read(folder.path()), all[2..], "the newest");
        let older = r#"[{"stream": "s", "subscriber": "u", "position": 1, "phase": "reply"}]"#;
        fs::write(folder.path().join(FILE), older).unwrap();
        assert_eq!(read(folder.path())[0].other_subscribers, [""; 0], "as an older version writes it");
        write(folder.path(), &[]).unwrap();
        assert_eq!(read(folder.path()), []);
        fs::write(folder.path().join(FILE), "[{").unwrap();
        assert_eq!(read(folder.path()), [], "damaged: logged, and no reason not to start");
    }
}
