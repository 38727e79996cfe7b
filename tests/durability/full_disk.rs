//! Disks that are full, that fail a flush, or that give no large files, through the binary.
//!
//! The disk is ext4 on a loop device over a sparse image in memory, so it takes root; otherwise
//! the test is skipped with a message. It fails as a thinly provisioned disk does: its blocks are removed,
//! and the memory below is filled.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kit::faulty_block_device::{BlockFault, FaultyBlockDevice};
use kit::scene::{BROKER, subscribe, with_broker};
use kit::server::closed_address;
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, HttpResponse, ReceivedRequest, SinkResponse,
    TIMEOUT, TestEvent, wait,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const MIB: u64 = 1 << 20;
/// The disk, and the memory below it. A log's segment takes 64 MiB.
const DISK_MIB: u64 = 200;
const MEMORY_MIB: u64 = 240;
/// Too little for a second segment.
const FREE_MIB: u64 = 100;
const EVENT_BYTES: usize = 512 << 10;
/// More of these than a segment holds.
const EVENTS_MAX: usize = 200;

/// A disk that can be filled and broken.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn make() -> Option<Self> {
        let disk = Self { folder: TempDir::new().unwrap() };
        let [memory, image, mount] = ["memory", "memory/image", "disk"].map(|name| disk.path(name));
        fs::create_dir(&memory).unwrap();
        fs::create_dir(&mount).unwrap();
        let size = format!("size={MEMORY_MIB}m");
        let made = run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&memory))
            && File::create(&image).and_then(|file| file.set_len(DISK_MIB * MIB)).is_ok()
            && run(Command::new("mkfs.ext4").arg("-q").arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).args([&image, &mount]));
        if !made {
            eprintln!("skipped: a loop device cannot be mounted here (it takes root, mkfs.ext4 and the device)");
        }
        made.then_some(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn setup(&self) -> ApplianceSetup {
        ApplianceSetup::new(BIN).flag("workers", "1").flag("data", &self.path("disk/data").to_string_lossy())
    }

    /// A file that leaves so much free.
    fn fill_up(&self) -> PathBuf {
        let path = self.path("disk/ballast");
        write_mib(&path, DISK_MIB - FREE_MIB).unwrap();
        path
    }

    /// From here on no write reaches the disk. The test writes nothing meanwhile: a loop device takes a write for done
    /// when its first page finds room and the rest does not.
    fn fail(&self, writer: &Appliance) {
        let writer = Pid::from_raw(writer.pid().cast_signed()).unwrap();
        kill_process(writer, Signal::STOP).unwrap();
        assert!(run(Command::new("sync").arg("-f").arg(self.path("disk")))); // what was in progress
        let whole = (DISK_MIB * MIB).to_string();
        assert!(run(Command::new("fallocate").args(["-p", "-o", "0", "-l", &whole]).arg(self.path("memory/image"))));
        let full = write_mib(&self.path("memory/ballast"), 2 * MEMORY_MIB);
        assert!(full.is_err(), "there is nothing left to write to");
        kill_process(writer, Signal::CONT).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for name in ["disk", "memory"] {
            run(Command::new("umount").arg("-l").arg(self.path(name)));
        }
    }
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn write_mib(path: &Path, mib: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let piece = vec![1; MIB as usize];
    (0..mib).try_for_each(|_| file.write_all(&piece))?;
    file.sync_all()
}

fn post(connection: &mut HttpConnection, id: &str) -> HttpResponse {
    let event = TestEvent::new(id).data("application/octet-stream", vec![b'd'; EVENT_BYTES]);
    connection.call(&event.binary(BROKER))
}

/// An appliance with a subscriber that is away, and where it would be.
fn scene(disk: &Disk) -> (Appliance, std::net::SocketAddr) {
    let away = closed_address();
    let appliance = with_broker(&disk.setup());
    let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.2S" });
    subscribe(appliance.api(), "all", &format!("http://{away}/"), &[("/spec/delivery", patient)]);
    (appliance, away)
}

fn is_refusal(response: &HttpResponse) -> bool {
    response.status == 503 && response.header("retry-after").is_some()
}

fn ids(received: &[ReceivedRequest]) -> BTreeSet<String> {
    received.iter().map(ReceivedRequest::id).collect()
}

/// APP-07, DP-ACK-10, EV-RTE-02: a full disk refuses senders and says why; it takes events again by
/// itself when there is room; what was acknowledged is delivered, and nothing that was refused is.
#[test]
fn a_full_disk_refuses_with_retry_after_and_recovers_by_itself() {
    let Some(disk) = Disk::make() else { return };
    let ballast = disk.fill_up();
    let (mut appliance, away) = scene(&disk);
    let mut connection = HttpConnection::open(appliance.events());
    let mut accepted = BTreeSet::new();
    let refusal = (0..EVENTS_MAX).find_map(|nth| {
        let response = post(&mut connection, &nth.to_string());
        if response.status != 202 {
            return Some(response);
        }
        accepted.insert(nth.to_string());
        None
    });
    let refusal = refusal.expect("the disk has a limit");
    assert!(is_refusal(&refusal) && refusal.text().contains("space for one more segment"), "{refusal}");
    assert!(!accepted.is_empty());
    for nth in 0..10 {
        assert!(is_refusal(&post(&mut connection, &format!("refused-{nth}"))));
    }
    appliance.wait_says("events are rejected with 503");
    let metrics = HttpCall::get("/metrics").send(appliance.admin()).text();
    let refused = metrics.lines().find(|line| line.starts_with("sluicegate_stream_refused_total{")).unwrap();
    assert!(refused.ends_with(" 11"), "{refused}");

    fs::remove_file(ballast).unwrap();
    let mut nth = 0;
    wait::until(TIMEOUT, "room", || {
        nth += 1;
        let response = post(&mut connection, &format!("later-{nth}"));
        assert!(response.status == 202 || is_refusal(&response), "{response}");
        (response.status == 202).then(|| accepted.insert(format!("later-{nth}")))
    });
    appliance.wait_says("accepts events again");

    appliance.restart();
    let verified = Command::new(BIN).args(["wal", "verify"]).arg(appliance.setup().data()).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let sink = EventSink::start_at(away, |_| SinkResponse::status(202));
    let received = sink.wait_until(TIMEOUT, |received| ids(received).is_superset(&accepted)).unwrap();
    assert_eq!(ids(&received), accepted);
}

/// DP-ACK-02: after a failed flush nothing is acknowledged any more, the appliance says so loudly and
/// continues with everything else.
#[test]
fn failed_flush_is_logged_and_stops_acknowledgements() {
    let Some(disk) = Disk::make() else { return };
    let (mut appliance, _) = scene(&disk);
    let mut connection = HttpConnection::open(appliance.events());
    for nth in 0..3 {
        assert_eq!(post(&mut connection, &nth.to_string()).status, 202);
    }
    let ready = || HttpCall::get("/readyz").send(appliance.admin());
    assert_eq!(ready().status, 200);

    disk.fail(&appliance);
    nothing_is_taken(&mut appliance, &mut connection);
}

/// DP-ACK-02: the same while the appliance runs on, where the kernel can make a disk that answers every write
/// with an error.
#[test]
fn a_disk_that_fails_under_a_running_appliance_loses_no_promise() {
    let folder = TempDir::new().unwrap();
    let [image, at] = ["image", "disk"].map(|name| folder.path().join(name));
    File::create(&image).and_then(|file| file.set_len(DISK_MIB * MIB)).unwrap();
    let Some(disk) = FaultyBlockDevice::make(&image, DISK_MIB * MIB) else {
        eprintln!("skipped: {}", FaultyBlockDevice::MISSING);
        return;
    };
    fs::create_dir(&at).unwrap();
    assert!(run(Command::new("mkfs.ext4").arg("-q").arg(disk.path())));
    assert!(run(Command::new("mount").arg(disk.path()).arg(&at)));
    let data = at.join("data");
    let mut appliance =
        with_broker(&ApplianceSetup::new(BIN).flag("workers", "1").flag("data", &data.to_string_lossy()));
    let mut connection = HttpConnection::open(appliance.events());
    assert_eq!(post(&mut connection, "before").status, 202);
    disk.fail(BlockFault::ErrorWrites);
    nothing_is_taken(&mut appliance, &mut connection);
    appliance.kill();
    assert!(run(Command::new("umount").arg("-l").arg(&at)));
}

fn nothing_is_taken(appliance: &mut Appliance, connection: &mut HttpConnection) {
    for nth in 0..5 {
        let response = post(connection, &format!("lost-{nth}"));
        assert!(is_refusal(&response), "{response}");
        assert!(response.text().contains("the log failed"), "{response}");
    }
    let ready = || HttpCall::get("/readyz").send(appliance.admin());
    let unready = wait::until(TIMEOUT, "an unready appliance", || Some(ready()).filter(|ready| ready.status == 503));
    assert!(unready.text().contains("an event log failed"), "{unready}");
    let of_api = HttpCall::get("/readyz").send(appliance.api().address());
    assert!(of_api.status == 503 && of_api.text().contains("[-]event-log failed"), "{of_api}");
    appliance.wait_says("the log failed: nothing more is accepted");
    assert_eq!(HttpCall::get("/healthz").send(appliance.admin()).status, 200);
    assert_eq!(HttpCall::get("/metrics").send(appliance.admin()).status, 200);
    assert!(appliance.is_running());
}

/// Takes all the room that is left, to the last block.
fn leave_nothing(disk: &Disk) -> PathBuf {
    let path = disk.path("disk/ballast");
    assert!(write_mib(&path, DISK_MIB).is_err());
    let mut rest = fs::OpenOptions::new().append(true).open(&path).unwrap();
    while rest.write_all(&[1; 512]).is_ok() {}
    path
}

/// APP-39: writes to the API find a full disk: they are refused with when to come again, reads go on, and writes too as
/// soon as there is room, without a restart. Versions rise, and what was acknowledged is there after a kill.
#[test]
fn the_api_refuses_writes_while_the_disk_is_full_and_recovers_by_itself() {
    let Some(disk) = Disk::make() else { return };
    let mut appliance = with_broker(&disk.setup());
    let map = |name: &str, bytes: usize| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" },
            "data": { "a": "x".repeat(bytes) } })
    };
    let version = |object: &serde_json::Value| {
        object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap()
    };
    let before = version(&appliance.api().create(&map("before", 1)));
    let ballast = leave_nothing(&disk);
    // What is free within the file may take some more.
    let refusal = (0..200).find_map(|nth| {
        let response = appliance.api().try_create(&map(&format!("big-{nth}"), 500_000));
        (response.status != 201).then_some(response)
    });
    let refusal = refusal.expect("the disk has a limit");
    assert!(is_refusal(&refusal) && refusal.json()["kind"] == "Status", "{refusal}");
    assert!(refusal.json()["message"].as_str().unwrap().contains("no room"), "{refusal}");
    assert!(appliance.api().get("ConfigMap", "default", "before").is_some());
    for at in [appliance.api().address(), appliance.admin()] {
        let unready = HttpCall::get("/readyz").send(at);
        assert!(unready.status == 503 && unready.text().contains("no room"), "{unready}");
    }

    fs::remove_file(ballast).unwrap();
    let after = wait::until(TIMEOUT, "room", || {
        let response = appliance.api().try_create(&map("after", 500_000));
        assert!(response.status == 201 || is_refusal(&response), "{response}");
        (response.status == 201).then(|| response.json())
    });
    assert!(version(&after) > before);
    for at in [appliance.api().address(), appliance.admin()] {
        assert_eq!(HttpCall::get("/readyz").send(at).status, 200);
    }
    appliance.restart();
    assert_eq!(appliance.api().get("ConfigMap", "default", "after").unwrap(), after);
    assert!(version(&appliance.api().create(&map("later", 1))) > version(&after));
}

/// APP-07, EV-RTE-02: a disk without a block left keeps no appliance from starting: what it holds is delivered.
#[test]
fn an_appliance_starts_on_a_full_disk_and_delivers_what_it_holds() {
    let Some(disk) = Disk::make() else { return };
    let (mut appliance, away) = scene(&disk);
    let mut connection = HttpConnection::open(appliance.events());
    let accepted: BTreeSet<_> = (0..5).map(|nth| nth.to_string()).collect();
    for id in &accepted {
        assert_eq!(post(&mut connection, id).status, 202);
    }
    appliance.kill();
    leave_nothing(&disk);
    appliance.restart();
    let sink = EventSink::start_at(away, |_| SinkResponse::status(202));
    let received = sink.wait_until(TIMEOUT, |received| ids(received).is_superset(&accepted)).unwrap();
    assert_eq!(ids(&received), accepted);
}

/// A limit on the size of files is an error with a name, and not a signal that kills.
#[test]
fn file_size_limit_is_reported() {
    let shell = ApplianceSetup::new("/bin/sh");
    // `sh run …`: limits itself to 512 KiB a file, less than the object store needs, and becomes the appliance.
    shell.write_file("run", &format!("ulimit -f 1024\nexec {BIN} run \"$@\"\n"));
    let refusal = shell.refused();
    assert_eq!(refusal.code, Some(1), "{refusal}");
    assert!(refusal.stderr.contains("File too large"), "{refusal}");
}
