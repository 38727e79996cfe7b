//! The process that unpacks a layer, and its parent's side.
//!
//! The program starts itself under the hidden verb [`VERB`]: the compressed layer is its stdin, the folder and the limits
//! are its arguments, progress and the outcome are JSON lines on its stdout.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::{LayerSummary, UnpackError, apply, sandbox};
use crate::limits::LayerLimits;

/// The verb that the program's `main` hands to [`unpack_child_main`].
pub const VERB: &str = "unpack-layer";
/// One line of the child, with the longest name that an error shows.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the child's stderr in an error.
const STDERR_BYTES_MAX: u64 = 1000;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Progress(u64),
    Done(LayerSummary),
    Failed(UnpackError),
}

/// The child's work, as one argument.
#[derive(Debug, Serialize, Deserialize)]
struct UnpackRequest {
    folder: PathBuf,
    media_type: String,
    limits: LayerLimits,
}

/// Unpacks the layer on stdin; `arguments` are those after the verb. For `main` only: it gives up this process's rights.
pub fn unpack_child_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = parse(arguments).and_then(|request| unpack(&request));
    let line = match outcome {
        Ok(summary) => Line::Done(summary),
        Err(error) => Line::Failed(error),
    };
    let is_done = matches!(line, Line::Done(_));
    if write_line(&line).is_err() || !is_done { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<UnpackRequest, UnpackError> {
    let usage =
        || UnpackError::Storage { what: format!("{VERB} REQUEST < LAYER"), detail: "this verb is internal".into() };
    let request = arguments.into_iter().next().and_then(|request| request.into_string().ok()).ok_or_else(usage)?;
    serde_json::from_str(&request).map_err(|_| usage())
}

fn unpack(request: &UnpackRequest) -> Result<LayerSummary, UnpackError> {
    let failed = |why: io::Error| UnpackError::storage("the process that unpacks", &why);
    // It ends with the thread that waits for it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|why| failed(why.into()))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let layer = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let root = sandbox::enter(&request.folder).map_err(failed)?;
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
/// when `cancelled` is set.
pub(super) fn run(
    program: &Path,
    layer: File,
    media_type: &str,
    folder: &Path,
    limits: &LayerLimits,
    cancelled: &AtomicBool,
) -> Result<LayerSummary, UnpackError> {
    let request =
        UnpackRequest { folder: folder.to_owned(), media_type: media_type.to_owned(), limits: limits.clone() };
    let request =
        serde_json::to_string(&request).map_err(|why| UnpackError::storage("the request to unpack", &why.into()))?;
    let mut child = Command::new(program)
        .arg(VERB)
        .arg(request)
        .env_clear()
        .stdin(layer)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| UnpackError::storage(&format!("{} {VERB}", program.display()), &why))?;
    let outcome = child.stdout.take().map(|stdout| read_lines(stdout, cancelled));
    if !matches!(outcome, Some(Ok(Some(_)))) {
        let _ = child.kill(); // it may have ended by itself
    }
    finish(child, outcome.unwrap_or(Ok(None)))
}

fn read_lines(stdout: ChildStdout, cancelled: &AtomicBool) -> io::Result<Option<Line>> {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = String::new();
        if (&mut stdout).take(LINE_BYTES_MAX).read_line(&mut line)? == 0 || cancelled.load(Relaxed) {
            return Ok(None);
        }
        match serde_json::from_str(&line)? {
            Line::Progress(_) => {}
            outcome => return Ok(Some(outcome)),
        }
    }
}

fn finish(mut child: Child, outcome: io::Result<Option<Line>>) -> Result<LayerSummary, UnpackError> {
    let mut stderr_text = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(STDERR_BYTES_MAX).read_to_string(&mut stderr_text); // only a hint
    }
    let status = child.wait().map_err(|why| UnpackError::storage("the process that unpacks", &why))?;
    match outcome {
        Ok(Some(Line::Done(summary))) if status.success() => Ok(summary),
        Ok(Some(Line::Failed(error))) => Err(error),
        _ => Err(UnpackError::Storage {
            what: "the process that unpacks".into(),
            detail: format!("{status} without an outcome {}", stderr_text.trim()).trim_end().to_owned(),
        }),
    }
}
