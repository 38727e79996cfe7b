//! The supervisor of a child: records its acknowledgements, and kills it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::acknowledged::{AcknowledgedState, ChildRun};

/// How long a child may take to start, or to open a log of a few MiB: a disk that needs longer hangs.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// A child that is killed while it opens the log gets this fraction of the lifetime.
const EARLY: u32 = 16;

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
    let outcome = wait_for(word, &lines, promise, &mut work);
    let (begun, life) = (Instant::now(), if early { life / EARLY } else { life });
    while outcome.is_ok() && begun.elapsed() < life {
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
    outcome?;
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
            .with_context(|| format!("the appending child did not print {word:?}"))?;
        promise.record(&line, work)?;
        if line == word {
            return Ok(());
        }
    }
}
