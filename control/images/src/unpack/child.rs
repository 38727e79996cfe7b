//! The process that unpacks a layer, and its parent's side.
//!
//! The program starts itself under the hidden verb [`VERB`]: the compressed layer is its stdin, the folder and the limits
//! are its arguments, progress and the outcome are JSON lines on its stdout.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::{LayerSummary, UnpackError, apply, sandbox};
use crate::limits::{LayerLimits, UNPACKER_CANCEL_INTERVAL, UNPACKER_EXIT_TIMEOUT};

/// The verb that the program's `main` hands to [`unpack_child_main`].
pub const VERB: &str = "unpack-layer";
/// One line of the child, with the longest name that an error shows.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the child's stderr in an error.
const STDERR_BYTES_MAX: u64 = 1000;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Progress(u64),
    Done(LayerSummary),
    Failed(UnpackError),
}

/// The child's work, as one argument; the folder is another one, because it may be any bytes.
#[derive(Debug, Serialize, Deserialize)]
struct UnpackRequest {
    media_type: String,
    limits: LayerLimits,
}

/// Unpacks the layer on stdin; `arguments` are those after the verb. For `main` only: it gives up this process's rights.
pub fn unpack_child_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = parse(arguments).and_then(|(request, folder)| unpack(&request, &folder));
    let line = match outcome {
        Ok(summary) => Line::Done(summary),
        Err(error) => Line::Failed(error),
    };
    let is_done = matches!(line, Line::Done(_));
    if write_line(&line).is_err() || !is_done { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(UnpackRequest, PathBuf), UnpackError> {
    let usage = || UnpackError::Storage {
        what: format!("{VERB} REQUEST FOLDER < LAYER"),
        detail: "this verb is internal".into(),
    };
    let mut arguments = arguments.into_iter();
    let request = arguments.next().and_then(|request| request.into_string().ok()).ok_or_else(usage)?;
    let folder = arguments.next().ok_or_else(usage)?;
    Ok((serde_json::from_str(&request).map_err(|_| usage())?, folder.into()))
}

fn unpack(request: &UnpackRequest, folder: &Path) -> Result<LayerSummary, UnpackError> {
    let failed = |why: io::Error| UnpackError::storage("the process that unpacks", &why);
    // It ends with the thread that waits for it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|why| failed(why.into()))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let layer = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let root = sandbox::enter(folder).map_err(failed)?;
    let mut progress = |bytes| drop(write_line(&Line::Progress(bytes)));
    apply::apply(layer, &request.media_type, root, &request.limits, &mut progress)
}

fn write_line(line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()
}

/// Starts a child of `program` that unpacks `layer`, from its start, to `folder`, and waits for its end. The child is killed
/// when `cancelled` is set, and when it reports nothing for longer than the limit.
pub(super) fn run(
    program: &Path,
    layer: File,
    media_type: &str,
    folder: &Path,
    limits: &LayerLimits,
    cancelled: &AtomicBool,
) -> Result<LayerSummary, UnpackError> {
    let request = UnpackRequest { media_type: media_type.to_owned(), limits: limits.clone() };
    let request =
        serde_json::to_string(&request).map_err(|why| UnpackError::storage("the request to unpack", &why.into()))?;
    let mut child = Command::new(program)
        .arg(VERB)
        .arg(request)
        .arg(folder)
        .env_clear()
        .stdin(layer)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| UnpackError::storage(&format!("{} {VERB}", program.display()), &why))?;
    let outcome = match child.stdout.take() {
        Some(stdout) => read_outcome(stdout, limits.progress_timeout, cancelled),
        None => Ok(ChildOutcome::Ended),
    };
    if matches!(outcome, Ok(ChildOutcome::Line(_))) {
        wait_for_exit(&child);
    }
    let _ = child.kill(); // it may have ended by itself
    finish(child, outcome, limits.progress_timeout)
}

/// How the child's reports end.
enum ChildOutcome {
    Line(Line),
    /// It reported nothing for too long.
    Silent,
    Cancelled,
    /// It closed its stdout without an outcome.
    Ended,
}

/// Reads reports until the outcome. Never blocks for longer than `silence_max`, whatever the child writes or does not write.
fn read_outcome(mut stdout: ChildStdout, silence_max: Duration, cancelled: &AtomicBool) -> io::Result<ChildOutcome> {
    let mut text = Vec::new();
    let mut last_report = Instant::now();
    loop {
        if cancelled.load(Relaxed) {
            return Ok(ChildOutcome::Cancelled);
        }
        let left = silence_max.saturating_sub(last_report.elapsed());
        if left.is_zero() {
            return Ok(ChildOutcome::Silent);
        }
        if !is_readable(&stdout, left.min(UNPACKER_CANCEL_INTERVAL))? {
            continue;
        }
        let mut piece = [0; 4096];
        let bytes = stdout.read(&mut piece)?;
        if bytes == 0 {
            return Ok(ChildOutcome::Ended);
        }
        text.extend_from_slice(&piece[..bytes]);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line = serde_json::from_slice(&text[..end])?;
            text.drain(..=end);
            match line {
                Line::Progress(_) => last_report = Instant::now(),
                outcome => return Ok(ChildOutcome::Line(outcome)),
            }
        }
        if text.len() > LINE_BYTES_MAX {
            return Err(io::Error::other(format!("it wrote a line of more than {LINE_BYTES_MAX} bytes")));
        }
    }
}

/// Also true at the end of the file behind `fd`.
fn is_readable(fd: impl AsFd, within: Duration) -> io::Result<bool> {
    let within = Timespec::try_from(within).ok();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], within.as_ref()) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Returns when the child has ended, or should have.
fn wait_for_exit(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let _ = ended.map(|ended| is_readable(ended, UNPACKER_EXIT_TIMEOUT)); // the caller kills it
}

fn finish(
    mut child: Child,
    outcome: io::Result<ChildOutcome>,
    silence_max: Duration,
) -> Result<LayerSummary, UnpackError> {
    let status = child.wait().map_err(|why| UnpackError::storage("the process that unpacks", &why))?;
    let detail = match outcome {
        Ok(ChildOutcome::Line(Line::Done(summary))) if status.success() => return Ok(summary),
        Ok(ChildOutcome::Line(Line::Failed(error))) => return Err(error),
        Ok(ChildOutcome::Silent) => {
            format!("no progress in {silence_max:?}, so it was killed; check the disk of the image store")
        }
        Ok(ChildOutcome::Cancelled) => "the pull was cancelled".to_owned(),
        Err(why) => format!("its report cannot be read: {why}"),
        _ => format!("{status} without an outcome {}", stderr_text(&mut child)).trim_end().to_owned(),
    };
    Err(UnpackError::Storage { what: "the process that unpacks".into(), detail })
}

/// The child's last output, for error messages.
fn stderr_text(child: &mut Child) -> String {
    let Some(stderr) = child.stderr.take() else { return String::new() };
    // A process that it left behind may hold the pipe open.
    if ioctl_fionbio(&stderr, true).is_err() {
        return String::new();
    }
    let mut bytes = Vec::new();
    let _ = stderr.take(STDERR_BYTES_MAX).read_to_end(&mut bytes); // only a hint
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The result of a child that runs `script`.
    fn outcome(script: &str, cancelled: bool) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("unpacker");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("set");
        let limits = LayerLimits { progress_timeout: Duration::from_millis(300), ..LayerLimits::default() };
        let layer = File::open("/dev/null").expect("opened");
        let error = run(&program, layer, "", folder.path(), &limits, &AtomicBool::new(cancelled));
        format!("{:?}", error.expect_err("no layer"))
    }

    #[test]
    fn silent_unpacker_is_killed_after_its_timeout() {
        for script in ["exec sleep 1000", "printf '{'; exec sleep 1000", "echo '{\"progress\":1}'; exec sleep 1000"] {
            assert!(outcome(script, false).contains("no progress in 300ms"), "{script}");
        }
    }

    #[test]
    fn unpacker_is_killed_when_the_pull_is_cancelled() {
        assert!(outcome("exec sleep 1000", true).contains("cancelled"));
    }

    #[test]
    fn unpacker_without_an_outcome_is_quoted() {
        assert!(outcome("echo out of memory >&2; exit 3", false).contains("out of memory"));
        assert!(outcome("sleep 5 & echo no >&2; exit 3", false).contains("no progress"), "its child holds the pipe");
        assert!(outcome("head -c 100000 /dev/zero; exec sleep 1000", false).contains("a line of more than"));
    }
}
