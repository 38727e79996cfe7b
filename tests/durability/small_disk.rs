//! A disk smaller than one usual segment, through the binary: delivered events release space for the next.
//!
//! The disk is a tmpfs of 60 MB, so it takes root; where it cannot be mounted the test is skipped with a message.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use kit::scene::{BROKER, subscribe, with_broker};
use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{ApplianceSetup, HttpConnection, TIMEOUT, TestEvent, wait};
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const DISK: &str = "size=60m";
const EVENT_BYTES: usize = 32 << 10;
/// Of all senders together: five times as much as the disk holds.
const EVENTS: u64 = 10_000;
const SENDERS: u64 = 4;

struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let disk = Self { folder: TempDir::new().unwrap() };
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(disk.path());
        let is_mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !is_mounted {
            eprintln!("skipped: a tmpfs cannot be mounted here (it takes root)");
        }
        is_mounted.then_some(disk)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status(); // a test that was skipped mounted nothing
    }
}

/// DP-ACK-10: a small disk bounds what waits for delivery, and not how many events pass.
#[test]
fn small_disk_takes_events_as_long_as_they_are_delivered() {
    let Some(disk) = SmallDisk::mount() else { return };
    let delivered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&delivered);
    let sink = TestServer::start(([127, 0, 0, 1], 0).into(), move || {
        move |_request| {
            count.fetch_add(1, SeqCst);
            std::future::ready(HandlerReply::Send(ReceivedMessage::new(202)))
        }
    });
    let data = disk.path().join("data");
    let setup = ApplianceSetup::new(BIN).flag("workers", "2").flag("data", &data.to_string_lossy());
    let appliance = with_broker(&setup);
    subscribe(appliance.api(), "all", &format!("http://{}/", sink.address()), &[]);

    let events = appliance.events();
    let refused: u64 = thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS).map(|sender| scope.spawn(move || send(events, sender))).collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    wait::until(TIMEOUT, "all are delivered", || (delivered.load(SeqCst) >= EVENTS).then_some(()));
    println!("{EVENTS} events of {EVENT_BYTES} bytes passed, {refused} were refused for a moment");
}

/// Sends a sender's share, and repeats what is refused: how often that was.
fn send(events: std::net::SocketAddr, sender: u64) -> u64 {
    let mut connection = HttpConnection::open(events);
    let mut refused = 0;
    for nth in 0..EVENTS / SENDERS {
        let event =
            TestEvent::new(&format!("{sender}-{nth}")).data("application/octet-stream", vec![b'd'; EVENT_BYTES]);
        let call = event.binary(BROKER);
        wait::until(TIMEOUT, "the event is taken", || {
            let response = connection.call(&call);
            assert!(response.status == 202 || response.status == 503, "{response}");
            refused += u64::from(response.status == 503);
            (response.status == 202).then_some(())
        });
    }
    refused
}
