//! The content of a real file system's disk at a power cut: ext4 on a loop device, whose image is
//! copied at a moment at which the appliance syncs nothing. The content of the page cache is not in the copy,
//! nor are names and lengths that were never synced; mounting the copy replays ext4's journal as a
//! machine does after a power cut. Where the kernel has device-mapper's flakey target, a second disk drops
//! all writes from one moment on instead. Both take root, and are skipped with a message otherwise.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use kit::faulty_block_device::{BlockFault, FaultyBlockDevice};
use kit::scene::{BROKER, subscribe, with_broker};
use kit::server::closed_address;
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpConnection, ReceivedRequest, SinkResponse, TIMEOUT, TestEvent, wait,
};
use serde_json::json;
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const MIB: u64 = 1 << 20;
const DISK_MIB: u64 = 220;
const CLIENTS: usize = 3;
/// Promises that the cut must find.
const PROMISES_MIN: usize = 150;
/// Looks at an image that changed meanwhile, before it is given up.
const COPIES_MAX: usize = 50;

struct Mounts {
    folder: TempDir,
}

impl Mounts {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mount(&self, image: &str, at: &str) -> bool {
        fs::create_dir(self.path(at)).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).args([self.path(image), self.path(at)]))
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for name in ["before", "after"] {
            run(Command::new("umount").arg("-l").arg(self.path(name)));
        }
    }
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn signal(pid: u32, name: &str) {
    assert!(run(Command::new("kill").args([name, &pid.to_string()])));
}

/// The image as it is at one moment: a copy during which nothing was written.
fn freeze_frame(image: &Path, copy: &Path) {
    let done = (0..COPIES_MAX).any(|_| {
        let bytes = fs::read(image).unwrap();
        let is_still = bytes == fs::read(image).unwrap();
        if is_still {
            fs::write(copy, bytes).unwrap();
        }
        is_still
    });
    assert!(done, "the kernel went on writing");
}

fn ids(received: &[ReceivedRequest]) -> BTreeSet<String> {
    received.iter().map(ReceivedRequest::id).collect()
}

/// An appliance on this folder, and clients that note what it promised.
struct Scene {
    appliance: Appliance,
    /// Where the subscriber will be.
    away: SocketAddr,
    promised: Arc<Mutex<BTreeSet<String>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Scene {
    fn start(data: &Path) -> Self {
        let away = closed_address();
        let appliance = with_broker(&setup(data));
        let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.2S" });
        subscribe(appliance.api(), "all", &format!("http://{away}/"), &[("/spec/delivery", patient)]);
        let promised = Arc::new(Mutex::new(BTreeSet::new()));
        let clients = (0..CLIENTS).map(|client| {
            let (connection, promised) = (HttpConnection::open(appliance.events()), Arc::clone(&promised));
            thread::spawn(move || publish(connection, client, &promised))
        });
        let clients = clients.collect();
        let scene = Self { appliance, away, promised, clients };
        wait::until(TIMEOUT, "promises", || (scene.promises().len() >= PROMISES_MIN).then_some(()));
        scene
    }

    fn promises(&self) -> BTreeSet<String> {
        self.promised.lock().unwrap().clone()
    }

    fn kill(mut self) -> SocketAddr {
        self.appliance.kill();
        self.clients.into_iter().for_each(|client| client.join().unwrap());
        self.away
    }
}

fn setup(data: &Path) -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("workers", "1").flag("data", &data.to_string_lossy())
}

fn publish(mut connection: HttpConnection, client: usize, promised: &Mutex<BTreeSet<String>>) {
    for nth in 0.. {
        let id = format!("{client}-{nth}");
        let event = TestEvent::new(&id).data("text/plain", vec![b'd'; (nth * 997) % 9000]);
        match connection.try_call(&event.binary(BROKER)) {
            Ok(response) if response.status == 202 => promised.lock().unwrap().insert(id),
            _ => return,
        };
    }
}

/// Comes up on what the disk has, and delivers everything that was promised.
fn deliver_all(data: &Path, away: SocketAddr, promised: &BTreeSet<String>) {
    let verified = Command::new(BIN).args(["wal", "verify"]).arg(data).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let sink = EventSink::start_at(away, |_| SinkResponse::status(202));
    let _again = setup(data).start();
    let all = sink.wait_until(TIMEOUT, |received| ids(received).is_superset(promised));
    if let Err(received) = all {
        let missing: Vec<_> = promised.difference(&ids(&received)).cloned().collect();
        panic!("{} of {} promised events are lost: {missing:?}", missing.len(), promised.len());
    }
}

fn make_image(image: &Path) -> bool {
    File::create(image).and_then(|file| file.set_len(DISK_MIB * MIB)).is_ok()
}

/// EV-RTE-02, APP-05, APP-39: every event that got its 202, and the objects that it needs, are on the disk
/// itself when the answer leaves, names of files included.
#[test]
fn what_was_acknowledged_is_on_the_disk_when_the_power_goes() {
    let mounts = Mounts { folder: TempDir::new().unwrap() };
    let (image, copy) = (mounts.path("image"), mounts.path("copy"));
    let made =
        make_image(&image) && run(Command::new("mkfs.ext4").arg("-q").arg(&image)) && mounts.mount("image", "before");
    if !made {
        eprintln!("skipped: a loop device cannot be mounted here (it takes root, mkfs.ext4 and the device)");
        return;
    }
    let scene = Scene::start(&mounts.path("before/data"));
    signal(scene.appliance.pid(), "-STOP"); // so that the image can be copied as of one moment
    let promised = scene.promises();
    freeze_frame(&image, &copy);
    let away = scene.kill();

    assert!(mounts.mount("copy", "after"), "the file system comes up again");
    deliver_all(&mounts.path("after/data"), away, &promised);
}

/// EV-RTE-02, APP-05: the same on a disk that has nothing of what was written after one moment, flush or no
/// flush, while the appliance continues writing.
#[test]
fn what_was_acknowledged_survives_a_disk_that_forgets_from_one_moment_on() {
    let mounts = Mounts { folder: TempDir::new().unwrap() };
    let image = mounts.path("image");
    let Some(disk) = make_image(&image).then(|| FaultyBlockDevice::make(&image, DISK_MIB * MIB)).flatten() else {
        eprintln!("skipped: {}", FaultyBlockDevice::MISSING);
        return;
    };
    let at = mounts.path("before");
    fs::create_dir(&at).unwrap();
    assert!(run(Command::new("mkfs.ext4").arg("-q").arg(disk.path())));
    assert!(run(Command::new("mount").arg(disk.path()).arg(&at)));

    let scene = Scene::start(&at.join("data"));
    let promised = scene.promises();
    disk.fail(BlockFault::DropWrites);
    let away = scene.kill();
    assert!(run(Command::new("umount").arg(&at)), "what is still to be written goes nowhere");
    disk.restore();
    assert!(run(Command::new("mount").arg(disk.path()).arg(&at)), "the file system comes up again");
    deliver_all(&at.join("data"), away, &promised);
    assert!(run(Command::new("umount").arg("-l").arg(&at)));
}
