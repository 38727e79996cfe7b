//! The built binary as a fixture: started on its own folder, with free ports, killed when
//! dropped.
//!
//! Its stderr is captured and printed when a test panics, so that a failure in CI shows its reason.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{HttpCall, KitApi, TIMEOUT, wait};

/// How much of stderr a failure message shows, in bytes from the end.
const STDERR_SHOWN_MAX: usize = 8 * 1024;
/// How long an ended process' stderr may stay open: a child that outlives it may hold it.
const LAST_WORDS_MAX: Duration = Duration::from_secs(2);
/// Flags that name a port, in the order of the ready line.
const PORTS: [&str; 4] = ["http", "events", "api", "admin"];

/// How to start the binary. Cheap to clone; the data folder is shared by all clones.
#[derive(Debug, Clone)]
pub struct ApplianceSetup {
    binary: PathBuf,
    folder: Arc<TempDir>,
    /// Values of the flags that every start needs: `data`, and an address for each port.
    needed: Vec<(String, String)>,
    further: Vec<(String, String)>,
    switches: Vec<String>,
    env: Vec<(String, String)>,
}

/// The addresses to listen on, in the order of the ready line: http, events, api, admin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub http: SocketAddr,
    pub events: SocketAddr,
    pub api: SocketAddr,
    pub admin: SocketAddr,
}

/// What a start came to that did not end in a ready line.
#[derive(Debug, Clone)]
pub struct StartFailure {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl ApplianceSetup {
    /// `binary` is `env!("CARGO_BIN_EXE_sluicegate")` in tests of the root package.
    pub fn new(binary: &str) -> Self {
        let folder = Arc::new(TempDir::new().unwrap());
        let data = folder.path().join("data").to_string_lossy().into_owned();
        let mut needed = vec![("data".to_owned(), data)];
        needed.extend(PORTS.map(|name| (name.to_owned(), "127.0.0.1:0".to_owned())));
        Self {
            binary: PathBuf::from(binary),
            folder,
            needed,
            further: Vec::new(),
            switches: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Adds a flag with its value to `run`. A flag that every start needs is changed instead.
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        match self.needed.iter_mut().find(|(n, _)| n == name) {
            Some((_, present)) => *present = value.to_owned(),
            None => self.further.push((name.to_owned(), value.to_owned())),
        }
        self
    }

    /// Adds a flag without a value to `run`.
    pub fn switch(mut self, name: &str) -> Self {
        if !self.switches.iter().any(|given| given == name) {
            self.switches.push(name.to_owned());
        }
        self
    }

    pub fn route(self, host: &str, to: SocketAddr) -> Self {
        self.flag("route", &format!("{host}={to}"))
    }

    /// Maps an image to the example application that the binary itself brings.
    pub fn hello_image(self, image: &str) -> Self {
        let value = format!("{image}={} example hello", self.binary.display());
        self.flag("image", &value)
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn ports(self, ports: Ports) -> Self {
        let addresses = [ports.http, ports.events, ports.api, ports.admin];
        let named = PORTS.into_iter().zip(addresses);
        named.fold(self, |setup, (name, address)| setup.flag(name, &address.to_string()))
    }

    /// `--data`.
    pub fn data(&self) -> PathBuf {
        PathBuf::from(&self.needed[0].1)
    }

    /// Writes a file next to the data folder, for `--config` and `--manifests`.
    pub fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Starts it and waits for the ready line; panics with stderr when there is none.
    pub fn start(&self) -> Appliance {
        match self.try_start() {
            Ok(appliance) => appliance,
            Err(refusal) => panic!("the appliance did not start: {refusal}"),
        }
    }

    /// Starts it and waits for the ready line or the end of the process.
    pub fn try_start(&self) -> Result<Appliance, StartFailure> {
        let mut process = ChildProcess::spawn(self.command());
        let line = match process.line(|line| line.starts_with("ready ")) {
            Ok(line) => line,
            Err(stdout) => {
                let code = process.finish().code();
                return Err(StartFailure { code, stdout, stderr: process.stderr() });
            }
        };
        match Ports::parse(&line) {
            Some(ports) => {
                let [https, private, private_https, console] =
                    ["https", "private", "private-https", "console"].map(|name| address(&line, name));
                Ok(Appliance { setup: self.clone(), ports, https, private, private_https, console, process })
            }
            None => panic!("cannot read {line:?}"),
        }
    }

    /// The start that is expected to fail: waits for the end of the process.
    pub fn refused(&self) -> StartFailure {
        match self.try_start() {
            Err(refusal) => refusal,
            Ok(appliance) => panic!("started, but should not have: {:?}", appliance.ports),
        }
    }

    /// `run` with everything that was asked for.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("run");
        for (name, value) in self.needed.iter().chain(&self.further) {
            command.arg(format!("--{name}")).arg(value);
        }
        command.args(self.switches.iter().map(|name| format!("--{name}")));
        // The environment of the test run must not configure the appliance under test.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLUICEGATE_") {
                command.env_remove(name);
            }
        }
        command.envs(self.env.iter().cloned()).current_dir(self.folder.path());
        command
    }
}

impl Ports {
    /// Reads `ready http=ADDR events=ADDR api=ADDR admin=ADDR`; further words may follow. `api=-` of an appliance that
    /// follows another's API is port 0.
    pub fn parse(line: &str) -> Option<Self> {
        let line = &line.replace(" api=- ", " api=0.0.0.0:0 ");
        let [http, events, api, admin] = PORTS.map(|name| address(line, name));
        Some(Self { http: http?, events: events?, api: api?, admin: admin? })
    }
}

fn address(ready: &str, name: &str) -> Option<SocketAddr> {
    let mut words = ready.strip_prefix("ready ")?.split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// A running appliance.
#[derive(Debug)]
pub struct Appliance {
    setup: ApplianceSetup,
    ports: Ports,
    https: Option<SocketAddr>,
    private: Option<SocketAddr>,
    private_https: Option<SocketAddr>,
    console: Option<SocketAddr>,
    process: ChildProcess,
}

impl Appliance {
    /// The proxy's address.
    pub fn http(&self) -> SocketAddr {
        self.ports.http
    }

    /// The proxy's address for TLS, which `--https` must have asked for.
    pub fn https(&self) -> SocketAddr {
        match self.https {
            Some(address) => address,
            None => panic!("the ready line names no https address"),
        }
    }

    /// The proxy's address for callers inside, which `--private` must have asked for.
    pub fn private(&self) -> SocketAddr {
        match self.private {
            Some(address) => address,
            None => panic!("the ready line names no private address"),
        }
    }

    /// The same for TLS, which `--private-https` must have asked for.
    pub fn private_https(&self) -> SocketAddr {
        match self.private_https {
            Some(address) => address,
            None => panic!("the ready line names no private-https address"),
        }
    }

    /// The console's address, which `--console` must have asked for.
    pub fn console(&self) -> SocketAddr {
        match self.console {
            Some(address) => address,
            None => panic!("the ready line names no console address"),
        }
    }

    /// Where brokers and channels take events in.
    pub fn events(&self) -> SocketAddr {
        self.ports.events
    }

    pub fn admin(&self) -> SocketAddr {
        self.ports.admin
    }

    /// The sum of a metric's lines that have `label` in them; 0 if there are none.
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        let text = HttpCall::get("/metrics").send(self.ports.admin).text();
        let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values = lines.filter(|line| line.contains(label)).filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    }

    pub fn ports(&self) -> Ports {
        self.ports
    }

    pub fn api(&self) -> KitApi {
        KitApi::at(self.ports.api)
    }

    pub fn setup(&self) -> &ApplianceSetup {
        &self.setup
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// What it has written to stderr so far.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Waits until its standard error holds `text`: what was written is read by a thread, so it may come later than
    /// the answer that it is about.
    pub fn wait_says(&self, text: &str) {
        wait::until(TIMEOUT, text, || self.stderr().contains(text).then_some(()));
    }

    pub fn is_running(&mut self) -> bool {
        self.process.child.try_wait().unwrap().is_none()
    }

    /// SIGKILL: it gets no chance to tidy up.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// SIGINT, as Ctrl-C sends it.
    pub fn interrupt(&mut self) {
        self.signal(Signal::INT);
    }

    /// SIGHUP: read the certificates again.
    pub fn reload(&mut self) {
        self.signal(Signal::HUP);
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.finish()
    }

    /// Starts again on the same data folder, on new ports, after a SIGKILL if it still runs.
    pub fn restart(&mut self) {
        self.kill();
        *self = self.setup.start();
    }

    /// Another process takes over from this one, which continues until its last request is answered.
    pub fn successor(&self) -> Self {
        self.setup.clone().ports(self.ports).switch("hot-restart").start()
    }

    /// As [`Appliance::restart`], on the ports it had.
    pub fn restart_on_same_ports(&mut self) {
        self.kill();
        let again = self.setup.clone().ports(self.ports).start();
        // A later restart on new ports is still possible.
        let setup = self.setup.clone();
        *self = again;
        self.setup = setup;
    }

    fn signal(&mut self, signal: Signal) {
        // A process that has been waited for must not be signalled: its number may be another's.
        if self.is_running() {
            let pid = Pid::from_child(&self.process.child);
            kill_process(pid, signal).unwrap();
        }
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            eprintln!("stderr of the appliance:\n{}", self.process.stderr());
        }
    }
}

/// A child whose output is read by threads, so that it never blocks on a full pipe.
#[derive(Debug)]
struct ChildProcess {
    child: Child,
    lines: Receiver<String>,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Fills `stderr` until the last holder of the pipe has closed it.
    stderr_reader: JoinHandle<()>,
}

impl ChildProcess {
    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(why) => panic!("{command:?}: {why}"),
        };
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let (mut pipe, kept) = (child.stderr.take().unwrap(), Arc::clone(&stderr));
        let stderr_reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut piece) {
                kept.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        Self { child, lines, stderr, stderr_reader }
    }

    /// The first line of stdout that `wanted` takes; all of stdout when it ends without.
    fn line(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String, String> {
        let mut others = String::new();
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if wanted(&line) => return Ok(line),
                Ok(line) => others.push_str(&format!("{line}\n")),
                Err(_) => return Err(others), // stdout is closed, or patience is over
            }
        }
    }

    /// Waits for the end and for its last words; a process that does not end is killed and fails the
    /// test.
    fn finish(&mut self) -> ExitStatus {
        let ended = wait::try_until(TIMEOUT, || self.child.try_wait().unwrap());
        match ended {
            Some(status) => {
                let _ = wait::try_until(LAST_WORDS_MAX, || self.stderr_reader.is_finished().then_some(()));
                status
            }
            None => {
                self.kill();
                panic!("pid {} did not end in {TIMEOUT:?}:\n{}", self.child.id(), self.stderr());
            }
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn stderr(&self) -> String {
        let kept = self.stderr.lock().unwrap();
        String::from_utf8_lossy(&kept[kept.len().saturating_sub(STDERR_SHOWN_MAX)..]).into_owned()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {:?}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in for the binary: `/bin/sh` takes the verb `run` for a script in its folder.
    fn setup(script: &str) -> ApplianceSetup {
        let setup = ApplianceSetup::new("/bin/sh");
        setup.write_file("run", script);
        setup
    }

    const READY: &str = "echo ready http=127.0.0.1:1 events=127.0.0.1:2 api=127.0.0.1:3 admin=127.0.0.1:4";

    #[test]
    fn the_ready_line_names_the_ports() {
        let appliance = setup(&format!("echo hello; {READY}; exec sleep 60")).start();
        assert_eq!(appliance.http().port(), 1);
        assert_eq!(appliance.events().port(), 2);
        assert_eq!(appliance.admin().port(), 4);
        assert_eq!(Ports::parse("ready http=127.0.0.1:1 events=x"), None);
    }

    #[test]
    fn a_start_that_fails_gives_its_code_and_its_words() {
        let refusal = setup("echo so; echo because >&2; exit 2").refused();
        assert_eq!((refusal.code, refusal.stdout.trim()), (Some(2), "so"));
        assert_eq!(refusal.stderr.trim(), "because");
    }

    #[test]
    fn a_terminated_process_can_tidy_up_and_a_killed_one_cannot() {
        let script = format!("trap 'exit 7' TERM; {READY}; while :; do sleep 0.01; done");
        assert_eq!(setup(&script).start().terminate().code(), Some(7));
        let mut killed = setup(&script).start();
        killed.kill();
        assert_eq!(killed.wait().code(), None);
    }

    #[test]
    fn a_restart_keeps_the_folder_and_changes_the_process() {
        let mut appliance = setup(&format!("mkdir -p data; echo x >> data/starts; {READY}; exec sleep 60")).start();
        let pid = appliance.pid();
        appliance.restart();
        assert_ne!(appliance.pid(), pid);
        let starts = std::fs::read_to_string(appliance.setup().data().join("starts")).unwrap();
        assert_eq!(starts.lines().count(), 2);
    }
}
