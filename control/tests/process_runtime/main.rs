//! The process runtime with real processes: what they see, how they end, and what remains.

#![expect(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

#[path = "../common/mod.rs"]
mod common;
mod containers;
mod devices;
mod identity;
mod init_containers;
mod ports;
mod prefork_pool;
mod probes;
mod restarts;
mod sidecars;
mod user_namespaces;
mod volumes;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{TIMEOUT, example, init, listener, spec};
use sluicegate_control::runtime::{
    ExitCause, HostConfig, InitProgram, InstanceExit, InstanceHandle, InstanceReport, InstanceReporter, InstanceSpec,
    ProbeCheck, ProbeSpec, ProcessRuntime, Runtime,
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

struct TestRuntimeHost {
    dir: tempfile::TempDir,
    runtime: ProcessRuntime,
}

struct TestInstance {
    handle: Box<dyn InstanceHandle>,
    reports: UnboundedReceiver<(u64, InstanceReport)>,
}

impl TestRuntimeHost {
    fn new() -> Self {
        Self::without(Vec::new())
    }

    /// Its instances do not reach the ports `closed`.
    fn without(closed: Vec<u16>) -> Self {
        Self::with_config(HostConfig { blocked_ports: closed, ..HostConfig::minimal() })
    }

    fn with_config(around: HostConfig) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), around)
    }

    /// Its instances do not see its data.
    fn hidden() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let masked = vec![dir.path().to_owned()];
        Self::in_dir(dir, HostConfig { masked, ..HostConfig::minimal() })
    }

    fn in_dir(dir: tempfile::TempDir, around: HostConfig) -> Self {
        let runtime = ProcessRuntime::open(dir.path(), init(), around).unwrap();
        Self { dir, runtime }
    }

    fn start(&self, id: u64, spec: InstanceSpec) -> TestInstance {
        let (queue, reports) = mpsc::unbounded_channel();
        let handle = self.runtime.start(id, id, Arc::new(spec), InstanceReporter::new(id, queue));
        TestInstance { handle, reports }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("instances/default/hello-00001")
    }

    fn log(&self, id: u64) -> String {
        fs::read_to_string(self.folder().join(format!("{id}.log"))).unwrap()
    }

    /// Waits until an instance has written `text`. Its log is there from its first line on, and that may be later than
    /// its readiness.
    async fn wrote(&self, id: u64, text: &str) -> String {
        let path = self.folder().join(format!("{id}.log"));
        for _ in 0..TIMEOUT.as_millis() / 10 {
            if let Ok(log) = fs::read_to_string(&path)
                && log.contains(text)
            {
                return log;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{text:?} was not written: {}", self.log(id));
    }
}

impl TestInstance {
    /// What it says next, but for why it is not ready yet, which a slow machine says as well.
    async fn report(&mut self) -> InstanceReport {
        loop {
            let next = tokio::time::timeout(TIMEOUT, self.reports.recv()).await;
            match next.expect("the instance reports in time").expect("a report comes before the end").1 {
                InstanceReport::NotReadyReason(_) => {}
                report => return report,
            }
        }
    }

    /// Why it is not ready yet, said before anything else.
    async fn not_ready_reason(&mut self) -> String {
        match tokio::time::timeout(TIMEOUT, self.reports.recv()).await {
            Ok(Some((_, InstanceReport::NotReadyReason(why)))) => why,
            other => panic!("not hindered: {other:?}"),
        }
    }

    async fn ready(&mut self) -> SocketAddr {
        match self.report().await {
            InstanceReport::Ready { address, .. } => address,
            other => panic!("not ready: {other:?}"),
        }
    }

    /// No report may come before its end: `Ready` comes once for each start, `Unready` and `verify`, and never for a thaw alone.
    async fn gone(&mut self) -> InstanceExit {
        match self.report().await {
            InstanceReport::Exited(gone) => gone,
            other => panic!("not over: {other:?}"),
        }
    }
}

/// In a manifest's words `$$` is a dollar.
fn shell(script: &str) -> InstanceSpec {
    spec(&["/bin/sh", "-c", &script.replace('$', "$$")])
}

/// RT-PROBE-01, RT-LIFE-01, RT-LIFE-05, SRV-CON-35: a listening program is ready, SIGTERM ends it, and only its output stays.
#[tokio::test]
async fn a_program_that_listens_is_ready_and_ends_when_asked() {
    let host = TestRuntimeHost::new();
    let mut instance = host.start(1, listener());
    let address = instance.ready().await;
    assert!(address.ip().is_loopback());
    TcpStream::connect(address).unwrap();
    host.wrote(1, " stdout F listening on ").await; // written after it listens; a stop before that would lose it

    instance.handle.stop();
    assert_eq!(instance.gone().await.cause, ExitCause::Signaled(15));
    assert!(TcpStream::connect(address).is_err());
    assert!(!host.folder().join("1.run").exists(), "the record outlived the instance");
}

/// RT-LIFE-07: the exit code and the last output of a failed program are reported.
#[tokio::test]
async fn failure_is_reported_with_code_and_last_lines() {
    let host = TestRuntimeHost::new();
    let gone = host
        .start(1, shell("for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line$i; done; echo no db >&2; exit 3"))
        .gone()
        .await;
    assert_eq!(gone.cause, ExitCause::Exited(3));
    assert_eq!(gone.cause.to_string(), "ExitCode3");
    assert!(gone.message.contains("line11") && gone.message.contains("no db"), "{}", gone.message);
    assert!(!gone.message.contains("line1\n"), "more than the last lines: {}", gone.message);
}

/// RT-ENV-01, RT-ENV-02, RT-ENV-03, RT-ENV-04, RT-ENV-05, SRV-CON-18: exactly the documented environment, and no
/// variable of the appliance.
#[tokio::test]
async fn a_program_sees_its_own_environment_and_nothing_of_the_appliances() {
    let host = TestRuntimeHost::new();
    let mut asked = shell("env; pwd");
    asked.env = vec![("GREETING".into(), "two words".into()), ("PORT".into(), "1".into())];
    asked.working_dir = Some(host.dir.path().to_owned());
    host.start(1, asked).gone().await;

    let log = host.log(1);
    let mut seen: Vec<&str> = log.lines().map(|line| line.split_once(" stdout F ").unwrap().1).collect();
    assert_eq!(seen.pop(), host.dir.path().to_str());
    for wanted in ["GREETING=two words", "K_SERVICE=hello", "K_CONFIGURATION=hello-conf", "K_REVISION=hello-00001"] {
        assert!(seen.contains(&wanted), "{wanted} is not in {seen:?}");
    }
    let port = seen.iter().find_map(|line| line.strip_prefix("PORT=")).unwrap();
    assert!(port.parse::<u16>().unwrap() > 1024);
    let mut names: Vec<&str> = seen.iter().map(|line| line.split_once('=').unwrap().0).collect();
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name)); // the shell's own
    names.sort_unstable();
    let documented = [
        "GREETING",
        "HOME",
        "HOSTNAME",
        "K_CONFIGURATION",
        "K_REVISION",
        "K_SERVICE",
        "PATH",
        "PORT",
        "SLUICEGATE_INSTANCE",
    ];
    assert_eq!(names, documented);
}

/// RT-FD-01, RT-FD-03, RT-ENV-06: stdin ends at once, no terminal, a session of its own, no way to gain privileges.
#[tokio::test]
async fn a_program_has_no_input_no_terminal_and_no_new_privileges() {
    let host = TestRuntimeHost::new();
    let script = "cat; test -t 0 || test -t 1 || echo no terminal; grep NoNewPrivs /proc/self/status; \
                  read -r pid name state ppid group session rest < /proc/$$/stat; test $pid = $session && echo leader; \
                  exec ls /proc/self/fd";
    let gone = host.start(1, shell(script)).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(0));
    for wanted in ["no terminal", "NoNewPrivs:\t1", "leader"] {
        assert!(gone.message.contains(wanted), "no {wanted:?} in {}", gone.message);
    }
    // The last is the listing's own; a descriptor of the appliance or of its parent would be among them.
    assert!(gone.message.ends_with("\n0\n1\n2\n3"), "{}", gone.message);
}

/// RT-FD-02: both outputs are kept.
#[tokio::test]
async fn both_outputs_are_kept_with_their_origin() {
    let host = TestRuntimeHost::new();
    host.start(1, shell("echo out; echo err >&2; printf 'no end'")).gone().await;
    let log = host.log(1);
    for wanted in [" stdout F out\n", " stderr F err\n", " stdout F no end\n"] {
        assert!(log.contains(wanted), "no {wanted:?} in {log}");
    }
}

/// RT-LIFE-09: a line without end is kept in bounded pieces, and quoted in part only.
#[tokio::test]
async fn output_without_line_ends_costs_bounded_lines() {
    let host = TestRuntimeHost::new();
    let gone = host.start(1, shell("head -c 1000000 /dev/zero | tr '\\0' x; exit 1")).gone().await;
    let log = host.log(1);
    assert!(log.lines().count() > 60);
    assert!(log.lines().all(|line| line.len() < 17 * 1024));
    assert_eq!(log.bytes().filter(|byte| *byte == b'x').count(), 1_000_000, "nothing is lost");
    assert!(gone.message.len() < 5000, "{}", gone.message.len());
}

/// RT-LIFE-05: the program may end by itself after SIGTERM.
#[tokio::test]
async fn sigterm_comes_first_and_lets_the_program_finish() {
    let host = TestRuntimeHost::new();
    let mut instance = host
        .start(1, trapping(&host, "trap 'echo closing; exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done"));
    instance.ready().await;
    instance.handle.stop();
    let gone = instance.gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(0));
    assert!(gone.message.contains("closing"), "{}", gone.message);
}

/// RT-LIFE-05: one that ignores SIGTERM is gone after its grace period, with everything it started.
#[tokio::test]
async fn sigkill_follows_after_the_grace_period_and_nobody_is_left() {
    let host = TestRuntimeHost::new();
    let mut spec = trapping(&host, "trap '' TERM; sleep 1000 & echo up child $! self $$; while :; do sleep 1; done");
    spec.termination_grace_period = Duration::from_millis(300);
    let mut instance = host.start(1, spec);
    instance.ready().await;
    let before = std::time::Instant::now();
    instance.handle.stop();
    assert_eq!(instance.gone().await.cause, ExitCause::Signaled(9));
    assert!(before.elapsed() >= Duration::from_millis(300), "killed before its time");
    for role in ["self", "child"] {
        assert!(ends(pid_after(&host.log(1), role)).await, "{role} is left");
    }
}

/// No zombie and no orphan is left after the program ended by itself; the child hides its environment, so only its
/// process group identifies it.
#[tokio::test]
async fn children_do_not_survive_their_program() {
    let host = TestRuntimeHost::new();
    let script = "env -i sleep 1000 & echo up child $! self $$;
                  until test -z \"$(cat /proc/$!/environ)\"; do sleep 0.01; done; exit 0";
    let gone = host.start(1, shell(script)).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(0));
    let log = host.log(1);
    // Reaped by us before the report, so not even a zombie is there.
    assert!(!Path::new(&format!("/proc/{}", pid_after(&log, "self"))).exists());
    assert!(ends(pid_after(&log, "child")).await);
}

/// A daemon that left its program's session ends with the instance anyway.
#[tokio::test]
async fn a_daemon_does_not_survive_its_instance() {
    let host = TestRuntimeHost::new();
    let script = "setsid sh -c 'echo daemon $$; echo > $MARK; exec sleep 1000' &
                  until test -e $MARK; do sleep 0.01; done";
    let mut spec = shell(script);
    spec.env = vec![("MARK".into(), host.dir.path().join("up").display().to_string())];
    assert_eq!(host.start(1, spec).gone().await.cause, ExitCause::Exited(0));
    let daemon = pid_after(&host.log(1), "daemon");
    assert!(!is_running(daemon));
}

/// RT-PROBE-02, SRV-CON-32, SRV-CON-42, SRV-CON-46, SRV-CON-47: httpGet decides by the status, and a program that never gets ready is ended with that reason.
#[tokio::test]
async fn an_http_probe_wants_a_good_status_in_time() {
    let host = TestRuntimeHost::new();
    let probe = |path: &str| {
        ProbeSpec::single(ProbeCheck::Http {
            path: path.into(),
            headers: vec![("X-Probe".into(), "yes".into())],
            tls: false,
        })
    };
    let mut good = host.start(1, InstanceSpec { readiness: probe("/healthz"), ..listener() });
    good.ready().await;

    let startup_max = Duration::from_millis(500);
    let mut bad = host.start(2, InstanceSpec { readiness: probe("/bad"), startup_timeout: startup_max, ..listener() });
    let gone = bad.gone().await;
    assert_eq!(gone.cause, ExitCause::NotReady);
    assert_eq!(gone.cause.to_string(), "ProgressDeadlineExceeded");
    assert!(gone.message.contains("listening on"), "{}", gone.message);
}

/// RT-PROBE-04, SRV-CON-30, SRV-CON-40: exec probes are accepted; they run in the instance's environment.
#[tokio::test]
async fn an_exec_probe_passes_when_its_command_does() {
    let host = TestRuntimeHost::new();
    let mark = host.dir.path().join("up").display().to_string();
    let mut spec = shell("sleep 0.1; echo > $MARK; sleep 1000");
    spec.env = vec![("MARK".into(), mark.clone())];
    let command = ["/bin/sh", "-c", "test -e $MARK"].map(String::from).to_vec();
    let mut instance =
        host.start(1, InstanceSpec { readiness: ProbeSpec::single(ProbeCheck::Exec { command }), ..spec });
    instance.ready().await;
    assert!(Path::new(&mark).exists());
}

/// RT-PROBE-01: a slow starter is waited for, and a doubted instance that answers is ready again.
#[tokio::test]
async fn a_doubted_instance_that_answers_is_ready_again() {
    let host = TestRuntimeHost::new();
    let mut instance = host.start(1, spec(&[example().to_str().unwrap(), "listen", "0.2"]));
    let address = instance.ready().await;
    instance.handle.verify();
    assert_eq!(instance.ready().await, address);
}

#[tokio::test]
async fn what_cannot_be_started_says_so() {
    let host = TestRuntimeHost::new();
    let missing = host.start(1, spec(&["/no/such/program"])).gone().await;
    assert_eq!(missing.cause, ExitCause::Exited(127));
    assert!(missing.message.contains("cannot run /no/such/program"), "{}", missing.message);

    let not_runnable = host.start(2, spec(&["/etc/passwd"])).gone().await;
    assert_eq!(not_runnable.cause, ExitCause::Exited(126));

    let empty = host.start(3, spec(&[])).gone().await;
    assert_eq!((empty.cause.clone(), empty.cause.to_string().as_str()), (ExitCause::NotStarted, "StartFailed"));

    let nowhere = InstanceSpec { working_dir: Some("/no/such/folder".into()), ..shell("true") };
    let gone = host.start(4, nowhere).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(126));
    assert!(gone.message.contains("workingDir /no/such/folder cannot be entered"), "{}", gone.message);

    let unspeakable = InstanceSpec { env: vec![("A".into(), "b\0c".into())], ..shell("true") };
    assert_eq!(host.start(5, unspeakable).gone().await.cause, ExitCause::NotStarted);
}

#[tokio::test]
async fn a_dropped_handle_ends_its_instance() {
    let host = TestRuntimeHost::new();
    let mut instance = host.start(1, listener());
    instance.ready().await;
    let TestInstance { handle, mut reports } = instance;
    drop(handle);
    let last = tokio::time::timeout(TIMEOUT, reports.recv()).await.unwrap().unwrap().1;
    assert!(matches!(last, InstanceReport::Exited(gone) if gone.cause == ExitCause::Signaled(15)));
}

#[tokio::test]
async fn a_forgotten_revision_leaves_no_folder() {
    let host = TestRuntimeHost::new();
    host.start(1, shell("echo x")).gone().await;
    assert!(host.folder().exists());
    host.runtime.remove_revision("default", "hello-00001");
    let folder = host.folder();
    assert!(eventually(|| !folder.exists()).await);
}

/// A launch spec is longer than a pipe and its process does not read it: the runtime continues.
#[tokio::test]
async fn process_that_reads_no_launch_spec_blocks_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let deaf = InitProgram { program: "/bin/sh".into(), arguments: ["-c", "sleep 1000"].map(Into::into).to_vec() };
    let host = TestRuntimeHost { runtime: ProcessRuntime::open(dir.path(), deaf, HostConfig::minimal()).unwrap(), dir };
    let large: Vec<_> = (0..10).map(|n| (format!("LARGE_{n}"), "x".repeat(100_000))).collect();
    for id in 1..=3 {
        let mut instance = host.start(id, InstanceSpec { env: large.clone(), ..shell("true") });
        instance.handle.stop();
        instance.gone().await;
    }
}

/// RT-ENV-01: variables of a megabyte arrive as they are.
#[tokio::test]
async fn large_environment_arrives_whole() {
    let host = TestRuntimeHost::new();
    let large: Vec<_> = (0..10).map(|n| (format!("LARGE_{n}"), format!("{n}").repeat(100_000))).collect();
    let script = "echo ${#LARGE_0} ${#LARGE_9}; cat; ls -l /proc/self/fd/0";
    let gone = host.start(1, InstanceSpec { env: large, ..shell(script) }).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(0), "{}", gone.message);
    assert!(gone.message.contains("100000 100000") && gone.message.ends_with("/dev/null"), "{}", gone.message);
}

/// The appliance is killed: its instance dies with it, and the instance's children are killed at the next start.
#[tokio::test]
async fn a_killed_appliance_leaves_nothing_that_the_next_start_does_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut appliance = Command::new(example())
        .arg("appliance")
        .arg(dir.path())
        .args(["/bin/sh", "-c", "setsid sleep 1000 & sleep 1000 & echo up child $! self $$$$; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(appliance.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let log = fs::read_to_string(dir.path().join("instances/default/hello-00001/1.log")).unwrap();
    let (leader, child) = (pid_after(&log, "self"), pid_after(&log, "child"));

    appliance.kill().unwrap();
    appliance.wait().unwrap();
    assert!(ends(leader).await, "the instance outlived the appliance");
    assert!(is_running(child), "nothing is left to clean up, so this test shows nothing");
    let marked = || fs::read_dir("/proc").unwrap().flatten().filter(|p| mark_of(&p.path(), dir.path())).count();
    assert_eq!(marked(), 2, "the child in the group and the one that left it");

    let _next = ProcessRuntime::open(dir.path(), init(), HostConfig::minimal()).unwrap();
    assert_eq!(marked(), 0);
    assert!(!dir.path().join("instances/default/hello-00001/1.run").exists());
}

/// Ready once it said "up": the exec probe looks into its own log.
fn trapping(host: &TestRuntimeHost, script: &str) -> InstanceSpec {
    let mut spec = shell(script);
    spec.env = vec![("LOGS".into(), host.dir.path().join("instances").display().to_string())];
    let look = "grep -q ' stdout F up' $LOGS/default/hello-00001/*.log";
    spec.readiness =
        ProbeSpec::single(ProbeCheck::Exec { command: ["/bin/sh", "-c", look].map(String::from).to_vec() });
    spec
}

/// The number after the word `role` in a log.
fn pid_after(log: &str, role: &str) -> u32 {
    let mut words = log.split_whitespace().skip_while(|word| *word != role);
    words.nth(1).unwrap().parse().unwrap()
}

fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

async fn ends(pid: u32) -> bool {
    eventually(|| !is_running(pid)).await
}

async fn eventually(wanted: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !wanted() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.is_ok()
}

/// Whether a process, by its folder in /proc, has the data folder of this test in its environment.
fn mark_of(process: &Path, data: &Path) -> bool {
    let wanted = format!("DATA={}", data.display());
    let alive = fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let environ = fs::read(process.join("environ")).unwrap_or_default();
    alive && environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
}
