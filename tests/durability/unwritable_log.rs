//! Logs that cannot be written: a full disk, a closed reader, a reader that does not read.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

use kit::manifest::{NAMESPACE, service};
use kit::{ApplianceSetup, HttpCall, Ports, TIMEOUT, TestUpstream, wait};
use rustix::process::{Pid, Signal, kill_process};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
/// More than a pipe holds, with one of these in each line.
const LONG_PATH_BYTES: usize = 8_000;
const LONG_LINES: usize = 100;

/// A process whose stderr is the test's own matter.
struct Running {
    child: Child,
    ports: Ports,
}

impl Running {
    fn start(setup: &ApplianceSetup, stderr: impl Into<Stdio>) -> Self {
        let mut child = setup.command().stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match Ports::parse(&line) {
            Some(ports) => Self { child, ports },
            None => panic!("no ready line, and it ended with {:?}", child.wait()),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGTERM, and the exit status.
    fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        wait::until(TIMEOUT, "the end", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// APP-15: the first line that could not be written ended the thread that had something to say, and with it the process.
#[test]
fn a_full_disk_or_a_reader_that_is_gone_costs_log_lines_and_nothing_else() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (what, stderr) in [("full", Stdio::from(full)), ("gone", Stdio::from(writer))] {
        let upstream = TestUpstream::start("one");
        let setup = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("access-log", "json");
        let mut running = Running::start(&setup, stderr);
        for _ in 0..3 {
            running.signal(Signal::HUP); // which says something
            assert_eq!(HttpCall::get("/").host(HOST).send(running.ports.http).status, 200, "{what}");
        }
        assert_eq!(running.terminate(), Some(0), "{what}");
    }
}

/// A log without a reader delays no request, and no shutdown.
#[test]
fn who_does_not_read_the_log_holds_nothing_up() {
    let (reader, writer) = std::io::pipe().unwrap();
    let upstream = TestUpstream::start("one");
    let setup = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("access-log", "json");
    let mut running = Running::start(&setup, writer);
    let path = format!("/{}", "x".repeat(LONG_PATH_BYTES));
    for _ in 0..LONG_LINES {
        assert_eq!(HttpCall::get(&path).host(HOST).send(running.ports.http).status, 200);
        running.signal(Signal::HUP);
    }
    assert_eq!(HttpCall::get("/healthz").send(running.ports.admin).status, 200);
    assert_eq!(running.terminate(), Some(0));
    drop(reader);
}

/// RT-LIFE-09: an instance that prints without end is read at its rate, waits for that, and answers anyway.
#[test]
fn instance_that_floods_its_output_is_throttled() {
    let program = format!("sh -c 'yes & exec {BIN} example hello'");
    let setup = ApplianceSetup::new(BIN).flag("image", &format!("example.com/flood={program}"));
    let appliance = setup.env("SLUICEGATE_LOG", "info,instance=warn").start(); // without what it prints
    appliance.api().create(&service("flood", "example.com/flood", "World"));
    let began = Instant::now();
    appliance.api().wait_ready("Service", NAMESPACE, "flood", TIMEOUT);
    wait::until(TIMEOUT, "output that waits", || {
        (appliance.metric("sluicegate_instance_log_throttled_milliseconds_total", "") > 1000).then_some(())
    });
    let kept = appliance.metric("sluicegate_instance_log_bytes_total", "");
    let rate = 2 << 20;
    assert!(kept <= rate * (began.elapsed().as_secs() + 4), "{kept} bytes in {:?}", began.elapsed());
    appliance.wait_says("its output is read slowly");
    assert_eq!(HttpCall::get("/").host("flood.default.localhost").send(appliance.http()).status, 200);
}
