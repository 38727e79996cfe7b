//! The built program as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::http::get;
use super::wait;

pub(crate) struct Adapter {
    pub(crate) child: Child,
    pub(crate) port: u16,
    log: Arc<Mutex<String>>,
}

/// `kind` and variables.
pub(crate) fn command(kind: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate-adapters"));
    command.arg(kind).env_clear().envs(variables.iter().copied());
    command.env("PORT", "0");
    command
}

impl Adapter {
    pub(crate) fn start(kind: &str, variables: &[(&str, &str)]) -> Adapter {
        Adapter::spawn(command(kind, variables))
    }

    pub(crate) fn spawn(mut command: Command) -> Adapter {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (written, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = written.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut adapter = Adapter { child, port: 0, log };
        adapter.port = wait("the health listener", || adapter.logged_port("health listener is open"));
        adapter
    }

    /// The port that a log line with this message names.
    pub(crate) fn logged_port(&self, message: &str) -> Option<u16> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains(message))?;
        line.split("\"port\":").nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The body of /readyz.
    pub(crate) fn readiness(&self) -> String {
        get(self.port, "/readyz").map(|response| response.text()).unwrap_or_default()
    }

    pub(crate) fn wait_ready(self) -> Adapter {
        wait("readiness", || get(self.port, "/readyz").ok().filter(|response| response.status() == 200));
        self
    }

    /// Waits until /readyz is not ready for this reason.
    pub(crate) fn wait_reason(&self, reason: &str) -> String {
        wait(&format!("reason {reason}, log {}", self.log()), || {
            Some(self.readiness()).filter(|body| body.contains(reason) && body.contains("\"ready\":false"))
        })
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = get(self.port, "/metrics").unwrap().text();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")))
            .unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM and the exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        wait("the end of the adapter", || self.child.try_wait().unwrap()).code()
    }

    pub(crate) fn wait_exit(mut self) -> (Option<i32>, String) {
        let status = wait("the end of the adapter", || self.child.try_wait().unwrap());
        (status.code(), self.log())
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the adapter:\n{}", self.log());
        }
    }
}
