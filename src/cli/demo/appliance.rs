//! The appliance as a child process of the demo.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};

/// The addresses in the line that `run` prints once everything listens.
#[derive(Debug, Clone)]
pub(super) struct ReadyLine {
    pub(super) http: SocketAddr,
    pub(super) events: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) console: SocketAddr,
}

pub(super) struct DemoAppliance {
    pub(super) ready: ReadyLine,
    child: Child,
    stopped: Arc<AtomicBool>,
    log: PathBuf,
    /// Deleted with the appliance.
    _folder: tempfile::TempDir,
}

impl DemoAppliance {
    /// Starts this binary on a temporary folder, on the usual ports where they are free.
    pub(super) fn start() -> Result<Self> {
        let me = std::env::current_exe().context("where is this program?")?;
        let folder = tempfile::tempdir().context("no temporary folder")?;
        let log = folder.path().join("appliance.log");
        let image =
            |name: &str, program: &str| format!("ghcr.io/sluicegate/{name}='{}' example {program}", me.display());
        let mut child = Command::new(&me)
            .arg("run")
            .args(["--data", &folder.path().join("data").to_string_lossy()])
            .args(["--http", &free(8080), "--events", &free(8081), "--api", &free(8001), "--admin", &free(9090)])
            .args(["--console", &free(9091)])
            .args(["--image", &image("example-hello", "hello")])
            .args(["--image", &image("example-sink", "sink")])
            .args(["--image", &image("example-failing", "sink --status 500")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start the appliance")?;

        let stopped = Arc::new(AtomicBool::new(false));
        pass_signals_on(Pid::from_child(&child), Arc::clone(&stopped))?;
        let stdout = child.stdout.take().context("the child has a stdout")?;
        let line = BufReader::new(stdout).lines().next().transpose()?.unwrap_or_default();
        let Some(ready) = parse_ready(&line) else {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(anyhow!("the appliance did not become ready: {line}\n{said}"));
        };
        Ok(Self { ready, child, stopped, log, _folder: folder })
    }

    /// Whether Ctrl-C or SIGTERM came.
    pub(super) fn was_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub(super) fn stop(&self) {
        // It may have ended by itself; `finish` reports that.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Waits for the end.
    pub(super) fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        anyhow::ensure!(status.success() || self.was_stopped(), "the appliance ended: {status}\n{}", self.log_tail());
        Ok(())
    }

    /// The last lines that it logged.
    pub(super) fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// Ctrl-C reaches the child by itself (same terminal); SIGTERM is sent to the demo only.
fn pass_signals_on(child: Pid, stopped: Arc<AtomicBool>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let again = stopped.swap(true, Relaxed);
            if signal == SIGTERM || !again {
                let _ = kill_process(child, Signal::TERM);
            }
        }
    });
    Ok(())
}

/// The usual address if it is free, else any.
fn free(port: u16) -> String {
    match TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => format!("127.0.0.1:{port}"),
        Err(_) => "127.0.0.1:0".to_owned(),
    }
}

fn parse_ready(line: &str) -> Option<ReadyLine> {
    let words = line.strip_prefix("ready ")?;
    let address =
        |name: &str| words.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
    Some(ReadyLine {
        http: address("http")?,
        events: address("events")?,
        api: address("api")?,
        admin: address("admin")?,
        console: address("console")?,
    })
}
