//! Events at which a core stopped.
//!
//! Whatever evaluates a filter or makes a request of an event says so beforehand ([`CoreActivity`]). A watchdog that finds the
//! core standing still writes that down beside the log ([`write`](fn@write)), and takes it back when the core goes on. So what
//! the next start finds there ([`read`]) is what the process was ended over, and it is not tried again: the event is
//! set aside for that subscriber, and all others go on.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use ring::CurrentWork;
use serde::{Deserialize, Serialize};
use wal::LogPosition;

/// The file beside a log's segments.
const FILE: &str = "stalled-events.json";

/// Events that are kept there, the newest: each is a core that was stuck, and a process that was killed for it.
const STALLED_EVENTS_MAX: usize = 256;

/// What is done with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is decoded, and a filter evaluated.
    Filter,
    /// A request is made of it.
    Request,
    /// The answer to that is read.
    Reply,
    /// It is being taken in, and stands in no log yet.
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

/// What a core works on. Stream and subscriber are known by their addresses in memory, which are in the table: that
/// costs the core no look-up and no count, and only a watchdog reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreActivity {
    pub phase: Phase,
    /// Which of the core's logs, in their order.
    pub log: usize,
    /// Of a [`crate::table::EventStream`]; 0: none.
    pub stream: usize,
    /// Of a [`crate::table::Subscriber`]; 0: all of the stream.
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

    /// `None`: nothing of events.
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
    /// By its name in the log.
    pub stream: String,
    /// By its uid; empty: all of the stream.
    pub subscriber: String,
    pub position: u64,
    pub phase: Phase,
}

/// Those of the log in this folder. A file that cannot be read is told, and counts as none.
#[must_use]
pub fn read(folder: &Path) -> Vec<StalledEvent> {
    let path = folder.join(FILE);
    let outcome = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(why),
    };
    outcome.unwrap_or_else(|why| {
        tracing::error!(path = %path.display(), %why, "cannot read which events stopped a core: they are tried again");
        Vec::new()
    })
}

/// Replaces them, durably: either all of the new ones are there after a crash, or the old ones.
///
/// # Errors
/// The disk's.
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
    fn activity_is_read_back_as_it_was_said() {
        for (nth, phase) in Phase::ALL.into_iter().enumerate() {
            let activity =
                CoreActivity { phase, log: nth, stream: 0xfff0, subscriber: 0, position: LogPosition::new(1 << 40) };
            assert_eq!(CoreActivity::decode(activity.encode()), Some(activity));
        }
        assert_eq!(CoreActivity::decode(CurrentWork::default()), None);
        assert_eq!(CoreActivity::decode([u64::MAX; 4]), None);
    }

    #[test]
    fn stalled_events_outlive_the_process() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), []);
        let event = |position| StalledEvent {
            stream: "broker/ns/b/1".into(),
            subscriber: "u".into(),
            position,
            phase: Phase::Filter,
        };
        let all: Vec<_> = (0..STALLED_EVENTS_MAX as u64 + 2).map(event).collect();
        write(folder.path(), &all).unwrap();
        assert_eq!(read(folder.path()), all[2..], "the newest");
        write(folder.path(), &[]).unwrap();
        assert_eq!(read(folder.path()), []);
        fs::write(folder.path().join(FILE), "[{").unwrap();
        assert_eq!(read(folder.path()), [], "damaged: told, and no reason not to start");
    }
}
