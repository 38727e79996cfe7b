//! What a real file system has on its disk when the power goes: ext4 on a loop device, whose image is
//! copied at a moment at which nothing is synced by us. What the page cache holds is not in the copy,
//! names and lengths that were never synced neither; mounting the copy replays ext4's journal as a
//! machine does that comes up again. It takes root, and says so where it cannot be done.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use kit::scene::{BROKER, subscribe, with_broker};
use kit::server::closed_address;
use kit::{Answer, Connection, Event, EventSink, PATIENCE, Received, Setup, wait};
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

fn ids(received: &[Received]) -> BTreeSet<String> {
    received.iter().map(Received::id).collect()
}

/// EV-RTE-02, APP-05, APP-39: every event that got its 202, and the objects that it needs, are on the disk
/// itself when the answer leaves, names of files included.
#[test]
fn what_was_acknowledged_is_on_the_disk_when_the_power_goes() {
    let mounts = Mounts { folder: TempDir::new().unwrap() };
    let (image, copy) = (mounts.path("image"), mounts.path("copy"));
    let made = File::create(&image).and_then(|file| file.set_len(DISK_MIB * MIB)).is_ok()
        && run(Command::new("mkfs.ext4").arg("-q").arg(&image))
        && mounts.mount("image", "before");
    if !made {
        eprintln!("skipped: a loop device cannot be mounted here (it takes root, mkfs.ext4 and the device)");
        return;
    }
    let away = closed_address();
    let data = |at: &str| mounts.path(at).join("data").to_string_lossy().into_owned();
    let mut appliance = with_broker(&Setup::new(BIN).flag("workers", "1").flag("data", &data("before")));
    let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.2S" });
    subscribe(appliance.api(), "all", &format!("http://{away}/"), &[("/spec/delivery", patient)]);

    let promised = Arc::new(Mutex::new(BTreeSet::new()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (mut connection, promised) = (Connection::open(appliance.events()), Arc::clone(&promised));
            thread::spawn(move || {
                for nth in 0.. {
                    let id = format!("{client}-{nth}");
                    let event = Event::new(&id).data("text/plain", vec![b'd'; (nth * 997) % 9000]);
                    match connection.try_call(&event.binary(BROKER)) {
                        Ok(response) if response.status == 202 => promised.lock().unwrap().insert(id),
                        _ => return,
                    };
                }
            })
        })
        .collect();
    wait::until(PATIENCE, "promises", || (promised.lock().unwrap().len() >= PROMISES_MIN).then_some(()));
    signal(appliance.pid(), "-STOP"); // so that the image can be copied as of one moment
    let promised_then = promised.lock().unwrap().clone();
    freeze_frame(&image, &copy);
    appliance.kill();
    clients.into_iter().for_each(|client| client.join().unwrap());

    assert!(mounts.mount("copy", "after"), "the file system comes up again");
    let verified = Command::new(BIN).args(["wal", "verify"]).arg(data("after")).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let sink = EventSink::start_at(away, |_| Answer::status(202));
    let _again = Setup::new(BIN).flag("workers", "1").flag("data", &data("after")).start();
    let all = sink.wait_until(PATIENCE, |received| ids(received).is_superset(&promised_then));
    if let Err(received) = all {
        let missing: Vec<_> = promised_then.difference(&ids(&received)).cloned().collect();
        panic!("{} of {} promised events are lost: {missing:?}", missing.len(), promised_then.len());
    }
}
