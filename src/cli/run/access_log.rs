//! The thread that writes the access log: cores pass it chunks, which it writes to a file or to stderr.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::access_log::{AccessLogConfig, PIECES_WAITING_MAX};

use crate::config::{AccessFormat, RunConfig};

/// How long the end of the program waits for the last chunks to be written: a file takes them at once, and
/// the reader of stderr may have stopped.
const LAST_PIECES_MAX: Duration = Duration::from_secs(2);

/// The thread, which ends with the last core.
pub(super) struct AccessLogThread {
    thread: JoinHandle<()>,
    /// Closed when it ends.
    ended: Receiver<()>,
    reopen: Arc<AtomicBool>,
}

/// Also started without an access log: the request log, which shares its output, can be enabled at any
/// time.
///
/// # Errors Its file cannot be opened.
pub(super) fn start(config: &RunConfig) -> Result<(AccessLogConfig, AccessLogThread)> {
    let format = match config.access_log {
        AccessFormat::Off => None,
        AccessFormat::Common => Some(dataplane::access_log::AccessLogFormat::Common),
        AccessFormat::Json => Some(dataplane::access_log::AccessLogFormat::Json),
    };
    let target = match &config.access_log_file {
        Some(path) => {
            let file = open(path).with_context(|| format!("access-log-file: {}", path.display()))?;
            AccessLogTarget::File(path.clone(), file)
        }
        None => AccessLogTarget::Stderr,
    };
    let (sender, pieces) = sync_channel(PIECES_WAITING_MAX);
    let (ends, ended) = channel();
    let reopen = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&reopen);
    let thread = std::thread::Builder::new()
        .name("access-log".to_owned())
        .spawn(move || {
            let _ends = ends;
            write(target, &pieces, &asked);
        })
        .context("no thread for the access log")?;
    Ok((AccessLogConfig { format, writer: sender }, AccessLogThread { thread, ended, reopen }))
}

impl AccessLogThread {
    /// The file was rotated: the next chunk goes into a new one.
    pub(super) fn reopen(&self) {
        self.reopen.store(true, Relaxed);
    }

    /// Waits until the last chunk is written, unless the reader has stopped. The cores have ended.
    pub(super) fn finish(self) {
        if self.ended.recv_timeout(LAST_PIECES_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the access log's output is stalled: its last lines are lost");
        } else if self.thread.join().is_err() {
            tracing::error!("the access log's thread panicked; see its message above");
        }
    }
}

enum AccessLogTarget {
    File(PathBuf, File),
    Stderr,
}

fn write(mut target: AccessLogTarget, pieces: &Receiver<Vec<u8>>, reopen: &AtomicBool) {
    let mut failing = false;
    for piece in pieces {
        if reopen.swap(false, Relaxed)
            && let AccessLogTarget::File(path, file) = &mut target
        {
            match open(path) {
                Ok(fresh) => *file = fresh,
                Err(why) => {
                    tracing::error!(%why, path = %path.display(), "the access log stays in its old file")
                }
            }
        }
        let written = match &mut target {
            AccessLogTarget::File(_, file) => file.write_all(&piece),
            AccessLogTarget::Stderr => io::stderr().lock().write_all(&piece),
        };
        // Logged once, not for every chunk: a full disk would fill the other log as well.
        match written {
            Ok(()) => failing = false,
            Err(why) if !std::mem::replace(&mut failing, true) => {
                tracing::error!(%why, "the access log cannot be written; lines are lost");
            }
            Err(_) => {}
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}
