//! Files of JSON lines, stdin and stdout.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

use adapter::{Context, Error, Event, Intake, SendError, append_line, to_json};
use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};

use crate::offset_tracker::OffsetTracker;

mod tail;
use tail::{Checkpoint, Tail};

/// How often a followed file is checked once its end is reached.
const FOLLOW_PERIOD: std::time::Duration = std::time::Duration::from_millis(100);
/// Bytes of one line. A longer one ends the adapter with an error, because it is no event.
pub(crate) const LINE_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ReceiverConfig {
    /// Absent or `-`: stdin.
    path: Option<PathBuf>,
    /// Wait for more lines at the end of the file, and continue with its successor when it is rotated.
    #[serde(default)]
    follow: bool,
    /// The file that remembers how far events were accepted. Default: in the state directory, if there is one.
    checkpoint: Option<PathBuf>,
}

pub(crate) struct FileReceiver {
    config: ReceiverConfig,
    checkpoint: Option<PathBuf>,
    source: String,
}

impl adapter::Receiver for FileReceiver {
    type Config = ReceiverConfig;
    /// The position after the line.
    type Token = u64;

    fn new(config: ReceiverConfig, context: &Context) -> Result<Self, Error> {
        let path = config.path.clone().filter(|path| path.as_os_str() != "-");
        if path.is_none() && config.follow {
            return Err(Error::config("ADAPTER_RECEIVER: follow: needs a path"));
        }
        let source = format!("file://{}", path.as_ref().map_or("stdin".into(), |path| path.to_string_lossy()));
        let checkpoint =
            config.checkpoint.clone().or_else(|| context.state.as_ref().map(|state| state.join("checkpoint.json")));
        Ok(FileReceiver { config: ReceiverConfig { path, ..config }, checkpoint, source })
    }

    /// A file has the same positions after a restart; a pipe has none.
    fn qos_max(&self) -> u8 {
        if self.config.path.is_some() { 2 } else { 1 }
    }

    async fn receive(&mut self, intake: &mut Intake<u64>) -> Result<(), Error> {
        match self.config.path.clone() {
            Some(path) => self.receive_file(path, intake).await,
            None => self.receive_stdin(intake).await,
        }
    }
}

impl FileReceiver {
    async fn receive_stdin(&mut self, intake: &mut Intake<u64>) -> Result<(), Error> {
        intake.ready();
        let mut stop = intake.stop();
        let mut stdin = BufReader::new(tokio::io::stdin());
        let mut line = Vec::new();
        let mut ended = false;
        let mut number = 0;
        while !(intake.finished() || ended && intake.pending() == 0) {
            let (open, stopping) = (intake.has_room() && !ended, intake.stopping());
            tokio::select! {
                _ = intake.settled() => {}
                read = read_line(&mut stdin, &mut line), if open => {
                    read.map_err(|error| Error::config(format!("read stdin: {error}")))?;
                    ended = line.is_empty();
                    number += 1;
                    let text = line.strip_suffix(b"\n").unwrap_or(&line);
                    let text = text.strip_suffix(b"\r").unwrap_or(text);
                    if let Some(event) = self.event(text, || uuid::Uuid::new_v4().to_string()) {
                        intake.push(event, Some("stdin"), number);
                    }
                    line.clear();
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }

    async fn receive_file(&mut self, path: PathBuf, intake: &mut Intake<u64>) -> Result<(), Error> {
        let checkpoint = self.checkpoint.as_deref().map(Checkpoint::read).transpose()?.flatten();
        let mut tail = Tail::open(&path, checkpoint)?;
        intake.ready();
        let mut progress = OffsetTracker::default();
        let mut done = tail.position();
        let mut stop = intake.stop();
        loop {
            let mut at_end = false;
            while intake.has_room() {
                let Some(line) = tail.next_line()? else {
                    at_end = true;
                    break;
                };
                let (file, position) = tail.position();
                let id = || format!("{file:x}:{}", position - line.len() as u64 - 1);
                if let Some(event) = self.event(&line, id) {
                    progress.begin(position);
                    intake.push(event, Some("file"), position);
                }
            }
            if intake.finished() {
                return Ok(());
            }
            if at_end && intake.pending() == 0 {
                if tail.advance(&path)? {
                    progress = OffsetTracker::default();
                    done = tail.position();
                    continue;
                }
                if !self.config.follow {
                    // The last line needs no newline.
                    let rest = tail.rest();
                    let (file, position) = tail.position();
                    match self.event(&rest, || format!("{file:x}:{}", position - rest.len() as u64)) {
                        Some(event) => {
                            progress.begin(position);
                            intake.push(event, Some("file"), position);
                        }
                        None => return Ok(()),
                    }
                }
            }
            let stopping = intake.stopping();
            let settled = tokio::select! {
                settled = intake.settled() => Some(settled),
                () = tokio::time::sleep(FOLLOW_PERIOD), if at_end => None,
                () = stop.wait(), if !stopping => None,
            };
            let mut settled = settled;
            let before = done.1;
            while let Some((position, outcome)) = settled {
                if outcome == adapter::DeliveryResult::Accepted
                    && let Some(moved) = progress.settle(position)
                {
                    done.1 = moved;
                }
                settled = intake.try_settled();
            }
            if done.1 != before
                && let Some(path) = &self.checkpoint
            {
                Checkpoint { file: done.0, position: done.1 }.write(path)?;
            }
        }
    }

    /// A line is a structured event, or any text, which becomes the data of one. An empty line is skipped.
    fn event(&self, line: &[u8], id: impl Fn() -> String) -> Option<Event> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        if let Ok(event) = adapter::from_json(line) {
            return Some(event);
        }
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
        let content_type = if is_json { "application/json" } else { "text/plain" };
        Some(Event::new("dev.sluicegate.file.line", self.source.as_str(), id()).with_data(content_type, line.to_vec()))
    }
}

/// Reads up to the end of a line or of the input. Safe to use in `select!`: a part of a line stays in `line`.
async fn read_line(input: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> std::io::Result<()> {
    let left = (LINE_BYTES_MAX + 1).saturating_sub(line.len()) as u64;
    input.take(left).read_until(b'\n', line).await?;
    if line.len() > LINE_BYTES_MAX {
        return Err(std::io::Error::other(format!("a line is over {LINE_BYTES_MAX} bytes")));
    }
    Ok(())
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SenderConfig {
    /// Absent or `-`: stdout.
    path: Option<PathBuf>,
}

/// Appends a line an event.
pub(crate) struct FileSender {
    path: Option<PathBuf>,
    file: RefCell<Option<std::fs::File>>,
}

impl adapter::Sender for FileSender {
    type Config = SenderConfig;

    fn new(config: SenderConfig, _: &Context) -> Result<Self, Error> {
        let path = config.path.filter(|path| path.as_os_str() != "-");
        Ok(FileSender { path, file: RefCell::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        if let Some(path) = &self.path {
            let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let opened = opened.map_err(|error| Error::connection(format!("open {}: {error}", path.display())))?;
            *self.file.borrow_mut() = Some(opened);
        }
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        if event.opaque.is_some() {
            return Err(SendError::rejected("the event has a format that is not JSON"));
        }
        let mut line = to_json(event);
        line.push(b'\n');
        let mut file = self.file.borrow_mut();
        let written = match file.as_mut() {
            // The event is confirmed once it is on disk.
            Some(file) => append_line(file, &line),
            None => std::io::stdout().lock().write_all(&line).and_then(|()| std::io::stdout().lock().flush()),
        };
        written.map_err(|error| SendError::unavailable(format!("write the event: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_over_its_limit_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut line = Vec::new();
            let mut input = &b"a\n\xff"[..];
            for wanted in [&b"a\n"[..], b"\xff", b""] {
                read_line(&mut input, &mut line).await.unwrap();
                assert_eq!(line, wanted);
                line.clear();
            }
            let endless = vec![b'x'; 2 * LINE_BYTES_MAX];
            let mut input = endless.as_slice();
            assert!(read_line(&mut input, &mut line).await.is_err());
            assert_eq!(line.len(), LINE_BYTES_MAX + 1);
        });
    }
}
