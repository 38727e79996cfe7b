//! SIGUSR2: this process starts its successor by itself, from the program that is at its path now.
//!
//! The successor has the command line, the user, the control group and the restrictions of this process, so a package can
//! replace the program of a service and need not know how it was started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::{Context, Result};

/// The flag of `run` that makes a start a hot restart.
const FLAG: &str = "--hot-restart";

/// How this process was started.
pub(in crate::cli::run) struct OwnCommand {
    program: PathBuf,
    arguments: Vec<OsString>,
    is_starting: Arc<AtomicBool>,
}

impl OwnCommand {
    /// To be called at the start: once the program's file is replaced, the kernel no longer tells its path.
    pub(in crate::cli::run) fn read() -> Result<Self> {
        let program = std::env::current_exe().context("find the path of this program")?;
        let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        if !arguments.iter().any(|argument| argument == FLAG) {
            arguments.push(FLAG.into());
        }
        Ok(Self { program, arguments, is_starting: Arc::default() })
    }

    /// Starts the successor, which then asks for the handover like any other. One at a time.
    pub(in crate::cli::run) fn start_successor(&self) {
        if self.is_starting.swap(true, SeqCst) {
            tracing::warn!("a successor is starting already");
            return;
        }
        let started = Command::new(&self.program).args(&self.arguments).stdin(Stdio::null()).spawn();
        let outcome = started.context("start it").and_then(|successor| self.await_end(successor));
        if let Err(why) = outcome {
            self.is_starting.store(false, SeqCst);
            let (program, why) = (self.program.display(), format!("{why:#}"));
            tracing::error!(%program, why, "no successor was started: this process continues");
        }
    }

    /// Reports the end of a successor that ends before this process does. Its own log has the reason.
    fn await_end(&self, mut successor: Child) -> Result<()> {
        tracing::info!(pid = successor.id(), program = %self.program.display(), "a successor was started");
        let is_starting = Arc::clone(&self.is_starting);
        let wait = move || {
            let ended = successor.wait();
            is_starting.store(false, SeqCst);
            match ended {
                Ok(status) => tracing::warn!(pid = successor.id(), %status, "the successor has ended"),
                Err(why) => tracing::warn!(pid = successor.id(), %why, "the successor cannot be observed"),
            }
        };
        let thread = std::thread::Builder::new().name("successor-process".to_owned());
        thread.spawn(wait).context("no thread to wait for it").map(drop)
    }
}
