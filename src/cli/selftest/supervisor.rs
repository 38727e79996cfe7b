//! The supervisor of a child: records its acknowledgements, and kills it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wal::{LogPosition, WriteAheadLog};

use super::content::{STREAMS, SUBSCRIBER};

/// How long a child may take to start, or to open a log of a few MiB: a disk that needs longer hangs.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// A child that is killed while it opens the log gets this fraction of the lifetime.
const EARLY: u32 = 16;
/// For a pattern: numbers below are streams.
const LAST: u64 = STREAMS.len() as u64;

/// What the log has acknowledged so far.
#[derive(Debug, Default)]
pub(super) struct AcknowledgedState {
    /// Batches below this were acknowledged.
    pub(super) acknowledged: u64,
    /// Batches below this may have been appended: the next child begins here.
    pub(super) next: u64,
    /// Everything below was reported durable. An acknowledgement may need several flushes, each of which
    /// relies on the one before.
    pub(super) durable: LogPosition,
    /// The durable position at the last acknowledgement.
    pub(super) acknowledged_at: LogPosition,
    /// Everything below was durable before the last acknowledged records were appended: damage in it can be
    /// distinguished from a torn write.
    pub(super) proven: LogPosition,
    /// For each stream: possible cursors, with the first batch that each leaves unread.
    pub(super) marks: [Vec<(LogPosition, u64)>; STREAMS.len()],
}

/// Results of one child.
#[derive(Debug, Default)]
pub(super) struct ChildRun {
    pub(super) flushes: Vec<Duration>,
    pub(super) bytes: u64,
    /// From its first line to its end, as far as it appended.
    pub(super) time: Duration,
    /// Acknowledged by this child.
    pub(super) batches: std::ops::Range<u64>,
}

impl AcknowledgedState {
    fn record(&mut self, line: &str, work: &mut ChildRun) -> Result<()> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match (kind, &numbers[..]) {
            ("ack", [batch, durable, nanos, bytes]) => {
                self.proven = self.acknowledged_at;
                (self.acknowledged, self.durable) = (*batch, LogPosition::new(*durable));
                self.acknowledged_at = self.durable;
                work.batches.end = *batch;
                work.bytes += bytes;
                work.flushes.push(Duration::from_nanos(*nanos));
            }
            ("flushed", [durable]) => self.durable = LogPosition::new(*durable),
            ("mark", [stream @ 0..LAST, position, batch]) => {
                self.marks[*stream as usize].push((LogPosition::new(*position), *batch));
            }
            ("opening" | "open", []) => {}
            _ => bail!("a child said {line:?}"),
        }
        Ok(())
    }

    /// After a successful check: the recovered state is the new reference.
    pub(super) fn settle(&mut self, log: &WriteAheadLog) {
        self.durable = log.durable();
        self.acknowledged_at = self.durable;
        for (nth, name) in STREAMS.iter().enumerate() {
            let stream = log.streams().find(|(_, known)| known == name);
            let mark = stream.and_then(|(id, _)| log.how_far(id, SUBSCRIBER));
            // `None`: its declaration was never durable.
            self.marks[nth].retain(|(put, _)| mark.is_some_and(|mark| *put == mark.low()));
        }
        self.next = super::check::end(log);
        self.acknowledged = self.next;
    }
}

/// Starts a child on the folder, lets it run for `life`, and kills it: after it has opened the log, or
/// (`early`) from its first line on.
pub(super) fn kill_a_writer(
    folder: &Path,
    seed: u64,
    promise: &mut AcknowledgedState,
    life: Duration,
    early: bool,
) -> Result<ChildRun> {
    let mut child = spawn(folder, seed, promise.next)?;
    let lines = lines(&mut child)?;
    let mut work = ChildRun { batches: promise.acknowledged..promise.acknowledged, ..ChildRun::default() };
    let word = if early { "opening" } else { "open" };
    let heard = wait_for(word, &lines, promise, &mut work);
    let (begun, life) = (Instant::now(), if early { life / EARLY } else { life });
    while heard.is_ok() && begun.elapsed() < life {
        match lines.recv_timeout(life.saturating_sub(begun.elapsed())) {
            Ok(line) => promise.record(&line, &mut work)?,
            Err(_) => break,
        }
    }
    work.time = begun.elapsed();
    let ended = child.try_wait()?;
    child.kill().context("the child cannot be killed")?;
    child.wait()?;
    if let Some(status) = ended {
        bail!("the child that appends ended by itself ({status}): see its error above");
    }
    heard?;
    // The rest of its output is in the pipe, and was true when it was written.
    lines.iter().try_for_each(|line| promise.record(&line, &mut work))?;
    Ok(work)
}

fn spawn(folder: &Path, seed: u64, from: u64) -> Result<Child> {
    let me = std::env::current_exe().context("this program's own file")?;
    let mut command = Command::new(me);
    command.args(["selftest", "--power-cut", "--data"]).arg(folder);
    command.args(["--seed", &seed.to_string(), "--append-from", &from.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().context("a child that appends cannot be started")
}

/// The child's output lines, read by a thread so that the child never waits.
fn lines(child: &mut Child) -> Result<Receiver<String>> {
    let stdout = child.stdout.take().context("the child's words")?;
    let (sender, lines) = channel();
    std::thread::Builder::new().name("selftest-ear".into()).spawn(move || {
        // A line without its end was cut by the kill: it does not count.
        let mut words = BufReader::new(stdout);
        let mut line = String::new();
        while words.read_line(&mut line).is_ok_and(|length| length > 0) && line.ends_with('\n') {
            if sender.send(line.trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    })?;
    Ok(lines)
}

fn wait_for(word: &str, lines: &Receiver<String>, promise: &mut AcknowledgedState, work: &mut ChildRun) -> Result<()> {
    let end = Instant::now() + OPEN_TIMEOUT;
    loop {
        let line = lines
            .recv_timeout(end.saturating_duration_since(Instant::now()))
            .with_context(|| format!("the child that appends did not come to its {word:?}"))?;
        promise.record(&line, work)?;
        if line == word {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An intermediate flush of an acknowledgement is durable all the same: no power cut takes it. But
    /// nothing was acknowledged after it yet, so damage in it may look like a torn write.
    #[test]
    fn intermediate_flush_is_durable_and_not_proven() {
        let (mut promise, mut work) = (AcknowledgedState::default(), ChildRun::default());
        let mut state_after = |line: &str| {
            promise.record(line, &mut work).unwrap();
            (promise.acknowledged, promise.durable.get(), promise.proven.get())
        };
        assert_eq!(state_after("ack 1 100 9 100"), (1, 100, 0));
        assert_eq!(state_after("flushed 150"), (1, 150, 0));
        assert_eq!(state_after("ack 2 200 9 100"), (2, 200, 100));
        assert_eq!(state_after("ack 3 300 9 100"), (3, 300, 200));
        assert!(promise.record("flushed", &mut work).is_err());
    }
}
