//! `attach`: streams the further output of a container, read from its log.

use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::super::logs::log_files::InstanceLogFiles;
use crate::streaming::instance_streams::{ExecExit, ExecProcess, RequestedStdio};

/// Short for a reader, long against the cost of a look.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Ends when the instance has `ended`.
pub(super) fn follow(log: &Path, stdio: RequestedStdio, ended: BoxFuture<'static, ()>) -> io::Result<ExecProcess> {
    let mut files = InstanceLogFiles::open(log);
    while !files.read().is_empty() {} // what was written before
    let (stdout_end, stdout) = io::pipe()?;
    let (stderr_end, stderr) = io::pipe()?;
    let mut outputs = AttachedOutputs {
        stdout: stdio.stdout.then(|| pipe::Sender::from_owned_fd(stdout.into())).transpose()?,
        stderr: stdio.stderr.then(|| pipe::Sender::from_owned_fd(stderr.into())).transpose()?,
    };
    let (report, exit) = oneshot::channel();
    let task = tokio::spawn(async move {
        outputs.follow(files, ended).await;
        let _ = report.send(()); // the client may have left
    });
    Ok(ExecProcess {
        stdin: None,
        stdout: stdio.stdout.then(|| stdout_end.into()),
        stderr: stdio.stderr.then(|| stderr_end.into()),
        terminal: None,
        exit: Box::pin(async move {
            if exit.await.is_err() {
                pending::<()>().await; // the task was aborted, because the client has left
            }
            ExecExit::Detached
        }),
        guard: Box::new(FollowTask(task)),
    })
}

struct FollowTask(tokio::task::JoinHandle<()>);

impl Drop for FollowTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct AttachedOutputs {
    stdout: Option<pipe::Sender>,
    stderr: Option<pipe::Sender>,
}

impl AttachedOutputs {
    async fn follow(&mut self, mut files: InstanceLogFiles, mut ended: BoxFuture<'static, ()>) {
        let mut has_ended = false;
        loop {
            let entries = files.read();
            if entries.is_empty() && has_ended {
                return;
            }
            for entry in entries.split_inclusive(|byte| *byte == b'\n') {
                self.write(entry).await;
            }
            if entries.is_empty() {
                tokio::select! {
                    () = &mut ended => has_ended = true,
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
        }
    }

    /// Output is lost if the client has disconnected.
    async fn write(&mut self, entry: &[u8]) {
        let Some(LogEntry { origin, tag, text }) = LogEntry::parse(entry) else { return };
        let output = if origin == b"stderr" { &mut self.stderr } else { &mut self.stdout };
        let Some(output) = output else { return };
        let _ = output.write_all(text).await;
        if tag != b"P" {
            let _ = output.write_all(b"\n").await;
        }
    }
}

/// `TIME ORIGIN TAG TEXT`.
#[derive(Debug, PartialEq, Eq)]
struct LogEntry<'a> {
    origin: &'a [u8],
    /// `P`: the next entry continues with the line.
    tag: &'a [u8],
    text: &'a [u8],
}

impl<'a> LogEntry<'a> {
    fn parse(entry: &'a [u8]) -> Option<Self> {
        let mut parts = entry.strip_suffix(b"\n").unwrap_or(entry).splitn(4, |byte| *byte == b' ').skip(1);
        Some(Self { origin: parts.next()?, tag: parts.next()?, text: parts.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_entry_is_split_at_its_first_three_blanks() {
        let entry = LogEntry::parse(b"2026-01-31T12:00:00Z stderr P a b  c\n").unwrap();
        assert_eq!(entry, LogEntry { origin: b"stderr", tag: b"P", text: b"a b  c" });
        assert_eq!(LogEntry::parse(b"torn"), None);
    }
}
