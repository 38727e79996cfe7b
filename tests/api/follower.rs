//! An appliance that follows another's API through a network that stops forwarding, or cuts what it forwards.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use kit::manifest::{NAMESPACE, broker};
use kit::proxy::TcpProxy;
use kit::{Appliance, ApplianceSetup, TIMEOUT, TestEvent, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// A silent connection is noticed within 30 s; the rest is for a busy machine.
const NOTICED_MAX: Duration = Duration::from_secs(90);
/// More kinds than are followed.
const KINDS_MAX: u64 = 120;

/// An appliance with an API, a network, and one that follows the API through it.
fn pair() -> (Appliance, TcpProxy, Appliance) {
    let home = ApplianceSetup::new(BIN).flag("workers", "1").start();
    let proxy = TcpProxy::start(home.api().address());
    let printed =
        std::process::Command::new(BIN).args(["kubeconfig", "--api", &proxy.address().to_string()]).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let setup = ApplianceSetup::new(BIN).flag("workers", "1");
    let kubeconfig = setup.write_file("kubeconfig", &String::from_utf8(printed.stdout).unwrap());
    let follower = setup.flag("kubeconfig", &kubeconfig.display().to_string()).start();
    make(&home, "first");
    wait_known(&follower, "first", TIMEOUT);
    (home, proxy, follower)
}

fn make(home: &Appliance, name: &str) {
    home.api().create(&broker(name));
    home.api().wait_ready("Broker", NAMESPACE, name, TIMEOUT);
}

/// Waits until the follower takes events for the Broker.
fn wait_known(follower: &Appliance, name: &str, limit: Duration) {
    let path = format!("/brokers/{NAMESPACE}/{name}");
    wait::until(limit, &path, || {
        (TestEvent::new("1").binary(&path).send(follower.events()).status == 202).then_some(())
    });
}

#[test]
fn silent_connection_to_the_api_server_is_replaced() {
    let (home, proxy, follower) = pair();
    proxy.stall();
    make(&home, "late");
    wait_known(&follower, "late", NOTICED_MAX);
}

/// Each watch of some fifty kinds came back at once, 540 times a second together.
#[test]
fn server_that_cuts_every_answer_is_asked_ever_slower() {
    let (home, proxy, follower) = pair();
    proxy.cut_after(150);
    // Those that are open are cut by the next bytes, and what watches are asked for ends them within 25 s.
    let cut = proxy.accepted();
    wait::until(NOTICED_MAX, "watches to end", || (proxy.accepted() > cut + 50).then_some(()));
    let first = proxy.accepted();
    // Each kind lists and watches some six times in ten seconds at most, and the Lease is checked.
    wait::nothing(Duration::from_secs(10), "connections, within 10 s", || {
        let asked = proxy.accepted() - first;
        (asked > KINDS_MAX * 2 * 6).then_some(asked)
    });
    proxy.cut_after(u64::MAX);
    make(&home, "healed");
    wait_known(&follower, "healed", NOTICED_MAX);
}
