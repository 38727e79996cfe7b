//! Faults of instances and of the appliance, through the built binary: killed under load, killed with their children
//! alive, without descriptors or processes. Conditions report it, it recovers by itself, and nothing remains.
#![allow(clippy::disallowed_methods, reason = "a test's own thread may wait")]
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const HOST: &str = "hello.default.localhost";
const INSTANCES: usize = 3;
const KILLS: usize = 6;
/// Restart delays after several failures add up.
const RECOVERY: Duration = Duration::from_secs(90);
/// A limit of descriptors below which all numbers are taken, whatever is closed meanwhile.
const DESCRIPTORS_MIN: usize = 3;

/// A process that is there: its number and its state's letter.
struct ChaosProcess {
    pid: u32,
    parent: u32,
    state: char,
}

fn processes() -> Vec<ChaosProcess> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter_map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut words = stat.rsplit_once(')')?.1.split_whitespace();
            Some(ChaosProcess { pid, state: words.next()?.chars().next()?, parent: words.next()?.parse().ok()? })
        })
        .collect()
}

/// Except for those that wait to become an instance.
fn children(of: u32) -> Vec<ChaosProcess> {
    let mut found = processes();
    found.retain(|process| process.parent == of && !waits(process));
    found
}

/// Waits to become an instance.
fn waits(process: &ChaosProcess) -> bool {
    let words = std::fs::read(format!("/proc/{}/cmdline", process.pid));
    words.is_ok_and(|words| words.ends_with(b"--wait\0"))
}

/// Processes that carry a variable with this text.
fn carrying(text: &str) -> Vec<u32> {
    let carries = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(text.len()).any(|window| window == text.as_bytes())
    };
    processes().iter().filter(|process| process.state != 'Z').map(|process| process.pid).filter(carries).collect()
}

fn kill(pid: u32) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success(), "{pid} is gone already");
}

fn descriptors(appliance: &Appliance) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", appliance.pid())).unwrap().count()
}

/// Instances that always run, so many.
fn several(name: &str, count: usize) -> Value {
    let scale = "/spec/template/metadata/annotations/autoscaling.knative.dev~1min-scale";
    with(service(name, IMAGE, name), scale, json!(count.to_string()))
}

fn actual(appliance: &Appliance) -> i64 {
    let revision = appliance.api().get("Revision", NAMESPACE, "hello-00001").unwrap_or_default();
    revision["status"]["actualReplicas"].as_i64().unwrap_or(-1)
}

fn until_all_run(appliance: &Appliance) {
    wait::until(RECOVERY, "all instances", || {
        // A status may be a moment old.
        let running = children(appliance.pid()).iter().filter(|child| child.state != 'Z').count();
        (running == INSTANCES && actual(appliance) == INSTANCES as i64).then_some(())
    });
}

/// What clients saw until they were stopped: answers by status, and connections that broke.
struct Clients {
    over: Arc<AtomicBool>,
    clients: Vec<std::thread::JoinHandle<(u64, Vec<u16>)>>,
}

impl Clients {
    fn ask(appliance: &Appliance, clients: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let http = appliance.http();
        let one = |_| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let (mut good, mut bad) = (0, Vec::new());
                let mut connection = HttpConnection::open(http);
                while !over.load(SeqCst) {
                    match connection.try_call(&HttpCall::get("/slow?ms=5").host(HOST)) {
                        Ok(answer) if answer.status == 200 => good += 1,
                        Ok(answer) => bad.push(answer.status),
                        Err(_) => {
                            bad.push(0); // cut in the middle of an answer
                            connection = HttpConnection::open(http);
                        }
                    }
                }
                (good, bad)
            })
        };
        Self { clients: (0..clients).map(one).collect(), over }
    }

    fn stop(self) -> (u64, Vec<u16>) {
        self.over.store(true, SeqCst);
        let all = self.clients.into_iter().map(|client| client.join().unwrap());
        all.fold((0, Vec::new()), |(good, bad), (more, worse)| (good + more, [bad, worse].concat()))
    }
}

/// Of all requests only those fail that were inside the instance that was killed; another takes its place,
/// and neither zombies nor descriptors stay.
#[test]
fn killed_instances_are_replaced_and_only_their_own_requests_fail() {
    let clients = 4;
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    appliance.api().create(&several("hello", INSTANCES));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    until_all_run(&appliance);
    // With connections kept to the instances, as there will be later.
    let quiet = Clients::ask(&appliance, clients);
    std::thread::sleep(Duration::from_secs(1));
    assert!(quiet.stop().1.is_empty(), "nobody was killed yet");
    let before = descriptors(&appliance);

    let load = Clients::ask(&appliance, clients);
    let mut killed = BTreeSet::new();
    for _ in 0..KILLS {
        until_all_run(&appliance);
        let victim = children(appliance.pid()).into_iter().find(|child| !killed.contains(&child.pid)).unwrap();
        kill(victim.pid);
        killed.insert(victim.pid);
        wait::until(RECOVERY, "its end", || {
            children(appliance.pid()).iter().all(|child| child.pid != victim.pid).then_some(())
        });
    }
    until_all_run(&appliance);
    let (good, bad) = load.stop();
    // Requests inside an instance fail, at most those of all clients at once.
    assert!(bad.len() <= KILLS * clients, "{} failed: {bad:?}", bad.len());
    assert!(bad.iter().all(|status| [0, 502].contains(status)), "{bad:?}");
    assert!(good > 100, "too little load to prove anything: {good}");
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);

    let left = children(appliance.pid());
    assert_eq!(left.len(), INSTANCES);
    assert!(left.iter().all(|child| child.state != 'Z'));
    // Kept connections to instances and to this test's clients come and go: there may be more than before, each for 45 s.
    let after = wait::try_until(RECOVERY, || {
        let now = descriptors(&appliance);
        (now <= before + clients).then_some(now)
    });
    assert!(after.is_some(), "{} descriptors, {before} before", descriptors(&appliance));
}

/// An appliance that was killed leaves no instance in addition to those that the next one starts, not even a child
/// that hid from its parent's end.
#[test]
fn killed_appliance_leaves_no_instance() {
    let mut appliance = ApplianceSetup::new(BIN).start();
    let token = format!("chaos-{}", appliance.pid());
    let mut manifest = several("hello", INSTANCES);
    let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
    manifest = with(manifest, class, json!("process"));
    let container = &mut manifest["spec"]["template"]["spec"]["containers"][0];
    container["env"] = json!([{ "name": "CHAOS", "value": token }]);
    container["command"] = json!(["/bin/sh", "-c", format!("setsid sleep 1000 & exec {BIN} example hello")]);
    appliance.api().create(&manifest);
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    for _ in 0..3 {
        until_all_run(&appliance);
        wait::until(TIMEOUT, "program and child of each", || (carrying(&token).len() == 2 * INSTANCES).then_some(()));
        let old: BTreeSet<_> = carrying(&token).into_iter().collect();
        appliance.restart();
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
        let left: Vec<_> = carrying(&token).into_iter().filter(|pid| old.contains(pid)).collect();
        assert!(left.is_empty(), "of the last run: {left:?}");
    }
    until_all_run(&appliance);
    assert_eq!(appliance.terminate().code(), Some(0));
    wait::until(TIMEOUT, "their end", || carrying(&token).is_empty().then_some(()));
}

/// What it may open now.
fn descriptor_limit(appliance: &Appliance) -> usize {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", appliance.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// `prlimit` on a running process; `None` if this host has none or does not let us.
fn limit_descriptors(appliance: &Appliance, soft: usize) -> Option<()> {
    let done =
        Command::new("prlimit").args(["--pid", &appliance.pid().to_string(), &format!("--nofile={soft}:")]).status();
    done.ok().filter(std::process::ExitStatus::success).map(drop)
}

/// Without descriptors a new Service says so in its condition, what runs continues, and all is well when there are some.
#[test]
fn an_appliance_without_descriptors_says_so_and_recovers() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&several("hello", 1));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let mut client = HttpConnection::open(appliance.http());
    let mut operator = HttpConnection::open(api.address());
    let late = HttpCall::post(&kit::KitApi::path("Service", NAMESPACE, "")).json(&several("late", 1));
    let look = HttpCall::get(&kit::KitApi::path("Revision", NAMESPACE, "late-00001"));
    // Connections that were taken before need no new descriptor.
    assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200);
    assert_eq!(operator.call(&look).status, 404);
    let usual = descriptor_limit(&appliance);
    if limit_descriptors(&appliance, DESCRIPTORS_MIN).is_none() {
        eprintln!("skipped: no prlimit here");
        return;
    }
    // A prefork process has its descriptors already.
    let waiting = processes().into_iter().filter(|one| one.parent == appliance.pid() && waits(one));
    waiting.for_each(|one| kill(one.pid));
    let made = operator.call(&late);
    assert_eq!(made.status, 201, "{made}");
    let reported = wait::until(TIMEOUT, "the condition", || {
        let revision = operator.call(&look);
        let revision = (revision.status == 200).then(|| revision.json())?;
        condition(&revision, "Ready").filter(|ready| ready["status"] == "False").cloned()
    });
    let message = reported["message"].as_str().unwrap_or_default();
    assert!(message.contains("Too many open files"), "{reported:#}");
    assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200, "what runs goes on");

    limit_descriptors(&appliance, usual).unwrap();
    api.wait_for("Service", NAMESPACE, "late", RECOVERY, is_ready);
    let greeting = HttpCall::get("/").host("late.default.localhost").send(appliance.http());
    assert_eq!(greeting.status, 200, "{greeting}");
}

/// A control group that bounds the number of processes.
struct Bound {
    folder: PathBuf,
}

impl Bound {
    /// With the appliance in it; `None` where that cannot be had.
    fn around(appliance: &Appliance) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let has_pids = |line: &&str| {
            let mut words = line.split(' ').skip(1);
            let (point, kind, options) = (words.next(), words.next(), words.next());
            let known = point.map(|point| std::fs::read_to_string(format!("{point}/cgroup.subtree_control")));
            let hands_on = || known.is_some_and(|known| known.is_ok_and(|known| known.contains("pids")));
            match kind {
                Some("cgroup") => options.is_some_and(|all| all.split(',').any(|one| one == "pids")),
                Some("cgroup2") => hands_on(),
                _ => false,
            }
        };
        let point = mounts.lines().find(has_pids)?.split(' ').nth(1)?;
        let folder = Path::new(point).join(format!("sluicegate-test-{}", appliance.pid()));
        std::fs::create_dir(&folder).ok()?;
        let bound = Self { folder };
        bound.write("cgroup.procs", &appliance.pid().to_string())?;
        Some(bound)
    }

    fn write(&self, file: &str, value: &str) -> Option<()> {
        std::fs::write(self.folder.join(file), value).ok()
    }

    /// None beyond those that are there.
    fn close(&self) {
        let now = std::fs::read_to_string(self.folder.join("pids.current")).unwrap();
        self.write("pids.max", now.trim()).unwrap();
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder); // its processes are over by then
    }
}

/// Without processes a new Service says so in its condition, what runs continues, and all is well when there are some.
#[test]
fn an_appliance_without_processes_says_so_and_recovers() {
    let mut appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let Some(bound) = Bound::around(&appliance) else {
        eprintln!("skipped: the number of processes cannot be bounded here");
        return;
    };
    let api = appliance.api();
    api.create(&several("hello", 1));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    // A thread of the instance has this connection already; for another it would need a new one.
    let mut client = HttpConnection::open(appliance.http());
    assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200);

    bound.close();
    // More than wait already to become an instance, and than threads that end meanwhile leave room for.
    let initial = "/spec/template/metadata/annotations/autoscaling.knative.dev~1initial-scale";
    api.create(&with(several("late", 12), initial, json!("12")));
    let reported = wait::until(TIMEOUT, "the condition", || {
        let revision = api.get("Revision", NAMESPACE, "late-00001")?;
        condition(&revision, "Ready").filter(|ready| ready["status"] == "False").cloned()
    });
    let message = reported["message"].as_str().unwrap_or_default();
    assert!(message.contains("process limit is reached") && message.contains("pids.max"), "{reported:#}");
    assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200, "what runs goes on");

    bound.write("pids.max", "max").unwrap();
    api.wait_for("Service", NAMESPACE, "late", RECOVERY, is_ready);
    wait::until(RECOVERY, "all to run", || (children(appliance.pid()).len() == 13).then_some(()));
    assert_eq!(appliance.terminate().code(), Some(0));
}
