//! Logs go to stderr: text on a terminal, JSON otherwise. `SLUICEGATE_LOG` filters (`debug`,
//! `info,instance=off`).
//!
//! A separate thread writes them. The logging thread, for example a core, does not wait for the reader; a
//! full disk, or a reader that is gone, costs lines and nothing else.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Lines that wait to be written: some 300 KiB. Further lines are lost, and counted.
const LINES_WAITING_MAX: usize = 1024;

/// How long the end of the program waits for its last lines to be written.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);

/// The default filter. Failed requests to a cluster's API are logged by our own code, with their purpose.
const USUAL: &str = "info,kube_client=off";

/// The channel to the thread.
#[derive(Clone)]
pub(super) struct LogSender {
    sender: SyncSender<LogMessage>,
    lost: Arc<AtomicU64>,
}

enum LogMessage {
    Line(Vec<u8>),
    /// Everything before it is written.
    Done(SyncSender<()>),
}

/// # Errors The filter does not parse, or there is no thread.
pub(super) fn start() -> Result<LogSender, String> {
    let filter = match std::env::var("SLUICEGATE_LOG") {
        Ok(text) if !text.trim().is_empty() => parse(&text).map_err(|why| format!("SLUICEGATE_LOG={text:?}: {why}"))?,
        _ => EnvFilter::new(USUAL),
    };
    let (words, hear) = sync_channel(LINES_WAITING_MAX);
    let log = LogSender { sender: words, lost: Arc::default() };
    let lost = Arc::clone(&log.lost);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write(&hear, &lost))
        .map_err(|why| format!("no thread for the log: {why}"))?;
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || writer.clone());
    if io::stderr().is_terminal() {
        subscriber.init();
    } else {
        subscriber.json().flatten_event(true).init();
    }
    Ok(log)
}

/// A directive without `=` is a level, or a target of ours: a misspelt level would be a target that logs nothing.
fn parse(text: &str) -> Result<EnvFilter, String> {
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.contains(['=', '[', ':'])) {
        let is_level = directive.parse::<LevelFilter>().is_ok();
        if !is_level && !directive.starts_with("sluicegate") {
            return Err(format!(
                "{directive:?} is not a level: error, warn, info, debug, trace or off; TARGET=LEVEL sets one target's"
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|why| why.to_string())
}

impl LogSender {
    /// A line without formatting, the last one of a program that failed.
    pub(super) fn send(&self, line: String) {
        if self.sender.try_send(LogMessage::Line(line.into_bytes())).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Waits until all is written, unless the reader has stopped.
    pub(super) fn finish(&self) {
        let (done, all_done) = sync_channel(1);
        if self.sender.try_send(LogMessage::Done(done)).is_ok() {
            let _ = all_done.recv_timeout(LAST_LINES_MAX); // either way the program ends
        }
    }
}

/// Each event comes as one chunk.
impl Write for LogSender {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(LogMessage::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(words: &Receiver<LogMessage>, lost: &AtomicU64) {
    for word in words {
        match word {
            // There is no other place to report this error.
            LogMessage::Line(line) => drop(io::stderr().lock().write_all(&line)),
            LogMessage::Done(done) => drop(done.try_send(())),
        }
        let count = lost.swap(0, Relaxed);
        if count > 0 {
            tracing::warn!(count, "lines of the log were lost because the queue was full");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_level_is_refused() {
        for text in
            ["debug", "INFO", "info,sluicegate_broker=debug", "warn,kube_client=off", "off", "sluicegate_proxy", "3"]
        {
            assert!(parse(text).is_ok(), "{text}");
        }
        for text in ["wran", "info,wran", "warning,a=b", "a=b=c", "info=wran"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
