//! An instance's output: written to a file, repeated in the appliance's own log, and its end quoted when the
//! instance fails.
//!
//! Lines of the file have the shape that container runtimes write and log collectors read:
//! `2026-01-31T12:00:00.123456Z stdout F text`, with `P` for a part of a line that continues. A full disk costs lines, and
//! does not block the program on its pipe; only one that prints faster than [`super::pace`] allows is blocked there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use support::instance_logs::{PREVIOUS_SUFFIX, files_by_instance};
use tokio::net::unix::pipe;
use tokio::task::coop::consume_budget;

use crate::limits::{
    LINE_BYTES_MAX, LOG_BYTES_MAX, LOGS_RETAINED_MAX, OUTPUT_BYTES_PER_SECOND, TAIL_LINE_BYTES_MAX, TAIL_LINES_MAX,
};
use crate::logs::output_limiter::{OutputDecision, OutputLimiter};
use crate::logs::pace::{Output, OutputPace};

/// Which of its two outputs an instance wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Reads `pipe` to its end into `log`. Has a buffer only while there is something in it: most programs are silent most of
/// the time, and two for each would be a third of what an instance costs.
pub(crate) async fn copy_output(pipe: pipe::Receiver, origin: OutputStream, log: Rc<RefCell<InstanceLog>>) {
    let mut held = Vec::new();
    while pipe.readable().await.is_ok() {
        held.reserve_exact(2 * LINE_BYTES_MAX - held.len());
        match pipe.try_read_buf(&mut held) {
            Ok(0) => break,
            Ok(_) => {
                let used = log.borrow_mut().append(origin, &held);
                held.drain(..used);
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        if held.is_empty() {
            held = Vec::new();
        }
        let pause = log.borrow_mut().pause();
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        consume_budget().await; // one that writes without end must not starve the others
    }
    if !held.is_empty() {
        held.push(b'\n'); // it has no more time to end its line
        log.borrow_mut().append(origin, &held);
    }
}

/// Hands every line in `bytes` to `keep`, without its end, and pieces of lines that are too long; returns
/// how many bytes were used up.
fn split_lines(bytes: &[u8], mut keep: impl FnMut(&[u8], bool)) -> usize {
    let mut used = 0;
    loop {
        let rest = &bytes[used..];
        let window = &rest[..rest.len().min(LINE_BYTES_MAX)];
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                keep(&rest[..end], true);
                used += end + 1;
            }
            None if window.len() == LINE_BYTES_MAX => {
                keep(window, false);
                used += LINE_BYTES_MAX;
            }
            None => return used,
        }
    }
}

/// Where one instance's output goes.
#[derive(Debug)]
pub(crate) struct InstanceLog {
    id: u64,
    revision: String,
    path: PathBuf,
    /// The log of the program's run before this one.
    previous: PathBuf,
    /// `None` while the disk does not let us open it.
    file: Option<File>,
    bytes: u64,
    /// Lines that the disk did not take.
    lines_lost: u64,
    tail: VecDeque<String>,
    output_limiter: OutputLimiter,
    pace: OutputPace,
    /// Before the next is read.
    pause: Duration,
    /// The program has ended: the rest is read as it is.
    is_draining: bool,
}

impl Drop for InstanceLog {
    fn drop(&mut self) {
        let silent = self.output_limiter.take_dropped();
        if silent > 0 {
            self.log_dropped(silent);
        }
    }
}

impl InstanceLog {
    /// The log `folder/ID.log`; makes room for it among the logs of earlier instances.
    pub(crate) fn open(folder: &Path, id: u64, revision: &str, output: &Rc<Output>) -> Self {
        Self::prune(folder);
        let paths = (folder.join(format!("{id}.log")), folder.join(format!("{id}.{PREVIOUS_SUFFIX}.log")));
        Self::at(paths, id, revision, output)
    }

    /// ... which is due sooner if others write before it does.
    pub(crate) fn prune(folder: &Path) {
        if let Err(why) = remove_oldest(folder, LOGS_RETAINED_MAX - 1) {
            tracing::warn!(folder = %folder.display(), %why, "old instance logs stay behind");
        }
    }

    /// The log `folder/ID.NAME.log` of its sidecar.
    pub(crate) fn open_sidecar(folder: &Path, id: u64, (revision, name): (&str, &str), output: &Rc<Output>) -> Self {
        let file = |name: &str| folder.join(format!("{id}.{name}.log"));
        Self::at((file(name), file(&format!("{name}{PREVIOUS_SUFFIX}"))), id, revision, output)
    }

    fn at((path, previous): (PathBuf, PathBuf), id: u64, revision: &str, output: &Rc<Output>) -> Self {
        let tail = VecDeque::with_capacity(TAIL_LINES_MAX);
        let (revision, echo, pace) =
            (revision.to_owned(), OutputLimiter::default(), OutputPace::new(Rc::clone(output)));
        let (pause, is_draining) = (Duration::ZERO, false);
        Self {
            id,
            revision,
            path,
            previous,
            file: None,
            bytes: 0,
            lines_lost: 0,
            tail,
            output_limiter: echo,
            pace,
            pause,
            is_draining,
        }
    }

    /// Stores the lines in `bytes` and returns how many bytes those are. They are written at once: an instance that writes a thousand
    /// short lines keeps the others waiting for one write.
    fn append(&mut self, origin: OutputStream, bytes: &[u8]) -> usize {
        let name = origin.name();
        let now = format!("{} {name} ", jiff::Timestamp::now());
        let (mut entries, mut lines) = (Vec::new(), 0);
        let used = split_lines(bytes, |line, whole| {
            self.forward(name, line);
            for part in [now.as_bytes(), if whole { b"F " } else { b"P " }, line, b"\n"] {
                entries.extend_from_slice(part);
            }
            lines += 1;
        });
        if lines > 0
            && let Err(why) = self.write(&entries)
        {
            if self.lines_lost == 0 {
                tracing::warn!(path = %self.path.display(), %why, "instance log cannot be written");
            }
            self.lines_lost += lines;
        }
        self.pause += self.pace.charge(entries.len(), Instant::now());
        used
    }

    /// How long to wait before more is read.
    fn pause(&mut self) -> Duration {
        let pause = std::mem::take(&mut self.pause);
        if self.is_draining || pause.is_zero() {
            return Duration::ZERO;
        }
        if let Some(waited) = self.pace.take_due_report(Instant::now()) {
            tracing::warn!(
                target: "instance",
                revision = %self.revision, instance = self.id, waited_ms = waited.as_millis() as u64,
                "it prints more than {OUTPUT_BYTES_PER_SECOND} bytes a second, so its output is read slowly and it waits for \
                 that; nothing is lost"
            );
        }
        pause
    }

    /// The program was started again, and its output follows that of the run before.
    pub(crate) fn resume(&mut self) {
        self.is_draining = false;
    }

    /// The same, with a log of its own; that of the run before is kept beside it.
    pub(crate) fn begin_again(&mut self) {
        self.resume();
        self.tail.clear();
        (self.file, self.bytes) = (None, 0);
        let older = |path: &Path| path.with_extension("log.1");
        for (path, previous) in [(older(&self.path), older(&self.previous)), (self.path.clone(), self.previous.clone())]
        {
            let moved = match fs::rename(&path, &previous) {
                // It wrote nothing, and what it wrote before is older than the run before.
                Err(why) if why.kind() == io::ErrorKind::NotFound => fs::remove_file(&previous),
                moved => moved,
            };
            if let Err(why) = moved
                && why.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %why, "the log of the run before is not kept");
            }
        }
    }

    /// Reads what is left without pauses.
    pub(crate) fn start_drain(&mut self) {
        self.is_draining = true;
    }

    /// Repeats a line in the appliance's own log, as far as there is room, and remembers it for the instance's end.
    fn forward(&mut self, output: &str, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let decision = self.output_limiter.admit(line.len(), Instant::now());
        if let OutputDecision::LogAfterDrops { silent } = decision {
            self.log_dropped(silent);
        }
        if decision != OutputDecision::Drop {
            tracing::info!(
                target: "instance",
                revision = %self.revision, instance = self.id, output, "{text}"
            );
        }
        if self.tail.len() == TAIL_LINES_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(sanitize(&text));
    }

    fn log_dropped(&self, lines: u64) {
        tracing::warn!(
            target: "instance",
            revision = %self.revision, instance = self.id, lines,
            "its output exceeds the rate that is repeated here; the rest is in its own log"
        );
    }

    fn write(&mut self, entry: &[u8]) -> io::Result<()> {
        if self.bytes + entry.len() as u64 > LOG_BYTES_MAX && self.bytes > 0 {
            self.file = None;
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
                self.bytes = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        self.bytes += entry.len() as u64; // counted even if it fails: then too early a rotation is no harm
        file.write_all(entry)
    }

    /// The last lines, for users.
    pub(crate) fn tail(&self) -> String {
        Vec::from_iter(self.tail.iter().map(String::as_str)).join("\n")
    }
}

/// Bounded, and without characters that would play with a terminal.
fn sanitize(text: &str) -> String {
    let mut end = text.len().min(TAIL_LINE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().filter(|c| !c.is_control() || *c == '\t').collect()
}

/// Removes logs, oldest instance first, until those of `keep` instances are left; one that still runs (it
/// has a record) is not touched.
fn remove_oldest(folder: &Path, keep: usize) -> io::Result<()> {
    let mut logs = files_by_instance(folder)?;
    logs.retain(|id, _| !folder.join(format!("{id}.run")).exists());
    let surplus = logs.len().saturating_sub(keep);
    for names in logs.values().take(surplus) {
        for name in names {
            match fs::remove_file(folder.join(name)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8]) -> (Vec<(usize, bool)>, usize) {
        let mut list = Vec::new();
        let used = split_lines(bytes, |line, whole| list.push((line.len(), whole)));
        (list, used)
    }

    #[test]
    fn lines_are_cut_at_their_ends_and_a_started_one_waits() {
        assert_eq!(pieces(b"ab\n\ncde\nf"), (vec![(2, true), (0, true), (3, true)], 8));
        assert_eq!(pieces(b""), (vec![], 0));
    }

    #[test]
    fn output_without_line_ends_is_held_in_pieces_of_bounded_size() {
        let endless = vec![b'x'; 2 * LINE_BYTES_MAX + 5];
        assert_eq!(pieces(&endless), (vec![(LINE_BYTES_MAX, false); 2], 2 * LINE_BYTES_MAX));
    }

    /// RT-FD-02: however much is read at a time, each line is one, and what has no end yet waits for it.
    #[test]
    fn lines_are_kept_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = InstanceLog::open(dir.path(), 7, "r", &Rc::default());
        assert_eq!(log.append(OutputStream::Stdout, b"one\n\nthr"), 5);
        assert_eq!(log.append(OutputStream::Stderr, b"three\n"), 6);
        assert_eq!(log.append(OutputStream::Stderr, b"no end"), 0);
        let text = fs::read_to_string(dir.path().join("7.log")).unwrap();
        let lines: Vec<_> = text.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        assert_eq!(lines, ["stdout F one", "stdout F ", "stderr F three"]);
        assert_eq!(log.tail(), "one\n\nthree");
    }

    /// RT-LIFE-09: an instance that writes forever holds two files' worth of disk.
    #[test]
    fn a_log_is_rotated_before_it_passes_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = InstanceLog::open(dir.path(), 7, "r", &Rc::default());
        let entry = vec![b'x'; 1024 * 1024];
        for _ in 0..11 {
            log.write(&entry).unwrap();
        }
        let mut sizes: Vec<(String, u64)> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()))
            .collect();
        sizes.sort();
        let mib = 1024 * 1024;
        assert_eq!(sizes, [("7.log".to_owned(), 3 * mib), ("7.log.1".to_owned(), 4 * mib)]);
    }

    #[test]
    fn program_that_is_started_again_has_a_new_log_and_that_of_the_run_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = InstanceLog::open(dir.path(), 7, "r", &Rc::default());
        let mut sidecar = InstanceLog::open_sidecar(dir.path(), 7, ("r", "helper"), &Rc::default());
        for line in [b"one\n", b"two\n", b"six\n"] {
            for log in [&mut log, &mut sidecar] {
                log.begin_again();
                log.append(OutputStream::Stdout, line);
            }
        }
        assert_eq!(log.tail(), "six");
        let ends_with = |name: &str, text: &str| fs::read_to_string(dir.path().join(name)).unwrap().ends_with(text);
        assert!(ends_with("7.log", "F six\n") && ends_with("7._previous.log", "F two\n"));
        assert!(ends_with("7.helper.log", "F six\n") && ends_with("7.helper_previous.log", "F two\n"));
        log.begin_again();
        log.begin_again(); // it wrote nothing
        assert!(!dir.path().join("7._previous.log").exists());
    }

    /// RT-LIFE-09: a crash loop holds the logs of its last instances only.
    #[test]
    fn oldest_instance_logs_are_evicted_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["9.log.1", "9.helper.log", "9.helper.log.1"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        for id in 9..30 {
            InstanceLog::open(dir.path(), id, "r", &Rc::default()).write(b"x\n").unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["25.log", "26.log", "27.log", "28.log", "29.log"]);
    }

    #[test]
    fn a_quoted_line_is_short_and_plain() {
        assert_eq!(sanitize("a\x1b[31m\u{7}b\tc"), "a[31mb\tc");
        assert_eq!(sanitize(&"é".repeat(400)).len(), TAIL_LINE_BYTES_MAX);
    }
}
