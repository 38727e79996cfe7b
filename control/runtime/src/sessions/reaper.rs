//! Ends all processes that a client's command started, also those in the background.

use std::fs;
use std::time::Instant;

use rustix::process::Pid;

use support::blocking;

use crate::limits::LEFTOVER_EXIT_TIMEOUT;
use crate::process::host_processes::{self, HostProcess};

/// In the environment of each process of a session.
const VARIABLE: &str = "SLUICEGATE_SESSION";

#[derive(Debug, Clone)]
pub(super) struct SessionMark(String);

impl SessionMark {
    pub(super) fn new() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    pub(super) fn variable(&self) -> (String, String) {
        (VARIABLE.to_owned(), self.0.clone())
    }

    /// `leader` has ended; `None`: it is reaped already, and its number may be another process's. Returns when no process of
    /// its session is left.
    pub(super) async fn kill_all(self, leader: Option<Pid>) {
        let leader = leader.map(|leader| leader.as_raw_nonzero().get());
        // An error: there is no thread to be had, and what is left ends with the instance.
        let _ = blocking::run("session-reaper", move || self.kill_all_now(leader)).await;
    }

    fn kill_all_now(&self, leader: Option<i32>) {
        let began = Instant::now();
        // A process may start another while we look, so look again until none is left.
        while began.elapsed() < LEFTOVER_EXIT_TIMEOUT {
            let processes = host_processes::list();
            let of_session = processes.iter().filter(|process| self.is_of(process, leader));
            let of_session: Vec<_> = of_session.map(|process| &process.identity).collect();
            if host_processes::kill(&of_session, LEFTOVER_EXIT_TIMEOUT.saturating_sub(began.elapsed())) == 0 {
                return;
            }
        }
    }

    /// A daemon leaves the session and keeps its environment.
    fn is_of(&self, process: &HostProcess, leader: Option<i32>) -> bool {
        let wanted = format!("{VARIABLE}={}", self.0);
        let environment = || fs::read(format!("/proc/{}/environ", process.identity.pid)).unwrap_or_default();
        leader == Some(process.session) || environment().split(|byte| *byte == 0).any(|one| one == wanted.as_bytes())
    }
}
