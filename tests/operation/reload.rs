//! SIGHUP and changes of the config file: routes, certificates and pages change without a restart; a broken file changes nothing.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Its config file has these routes.
fn appliance(routes: &[String]) -> (Appliance, std::path::PathBuf) {
    let setup = ApplianceSetup::new(BIN);
    let file = setup.write_file("sluicegate.toml", &config(routes));
    (setup.flag("config", &file.display().to_string()).start(), file)
}

fn config(routes: &[String]) -> String {
    format!("route = {routes:?}\nworkers = 1\n")
}

fn name(appliance: &Appliance, host: &str) -> Option<String> {
    let answer = HttpCall::get("/").host(host).send(appliance.http());
    (answer.status == 200).then(|| answer.json()["name"].as_str().unwrap().to_owned())
}

/// Routes that are added, changed and removed take effect at SIGHUP.
#[test]
fn reload_applies_changed_routes() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    let to = |host: &str, upstream: &TestUpstream| format!("{host}={}", upstream.address());
    let (mut appliance, file) = appliance(&[to("a.test", &one), to("b.test", &one), to("c.test", &one)]);
    assert_eq!(name(&appliance, "a.test").as_deref(), Some("one"));
    std::fs::write(&file, config(&[to("a.test", &one), to("b.test", &two), to("d.test", &two)])).unwrap();
    appliance.reload();
    wait::until(TIMEOUT, "the new route", || (name(&appliance, "d.test")? == "two").then_some(()));
    assert_eq!(name(&appliance, "a.test").as_deref(), Some("one"));
    assert_eq!((name(&appliance, "b.test").as_deref(), name(&appliance, "c.test")), (Some("two"), None));
}

/// A change of the file is noticed without a signal, also when an editor replaces it.
#[test]
fn changed_config_file_is_noticed() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    let (appliance, file) = appliance(&[format!("a.test={}", one.address())]);
    let next = file.with_extension("new");
    std::fs::write(&next, config(&[format!("a.test={}", two.address())])).unwrap();
    std::fs::rename(&next, &file).unwrap();
    wait::until(TIMEOUT, "the other upstream", || (name(&appliance, "a.test")? == "two").then_some(()));
}

/// A broken file leaves everything in force, and log, metric and readiness say so until it is right again.
#[test]
fn broken_config_file_changes_nothing_and_is_told() {
    let one = TestUpstream::start("one");
    let (appliance, file) = appliance(&[format!("a.test={}", one.address())]);
    std::fs::write(&file, "ruote = \"a.test=127.0.0.1:1\"\n").unwrap();
    appliance.wait_says("did you mean route?");
    assert_eq!(name(&appliance, "a.test").as_deref(), Some("one"));
    let ready = HttpCall::get("/readyz").send(appliance.admin());
    assert!(ready.status == 200 && ready.text().contains("sluicegate.toml:1"), "{ready}");
    assert_eq!(appliance.metric("sluicegate_config_current", ""), 0);

    std::fs::write(&file, config(&[format!("b.test={}", one.address())])).unwrap();
    wait::until(TIMEOUT, "the other route", || name(&appliance, "b.test"));
    assert_eq!(HttpCall::get("/readyz").send(appliance.admin()).text(), "ok\n");
    assert_eq!(appliance.metric("sluicegate_config_current", ""), 1);
}

/// What cannot change without a restart is named.
#[test]
fn setting_that_needs_a_restart_is_named() {
    let one = TestUpstream::start("one");
    let (appliance, file) = appliance(&[format!("a.test={}", one.address())]);
    let others = "domain = \"example.com\"\nworkloads = \"services-only\"\n";
    let text = format!("{}{others}", config(&[format!("a.test={}", one.address())]));
    std::fs::write(&file, text).unwrap();
    appliance.wait_says("take effect at the next start");
    assert!(appliance.stderr().contains("domain, workloads"), "{}", appliance.stderr());
}
