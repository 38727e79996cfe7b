//! `sluicegate top` and the verbs of `kubectl sluicegate`, at a running appliance.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use kit::{ApplianceSetup, EventSink, HttpCall, TIMEOUT, TestEvent, TestUpstream, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn top(admin: &str, words: &[&str]) -> Output {
    Command::new(BIN).args(["top", "--admin", admin]).args(words).output().unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The row of a table that begins with this name, without the name.
fn row(text: &str, name: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no row {name} in\n{text}"));
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

/// Rates and latencies of a backend and of a subscriber, without control characters.
#[test]
fn top_shows_backends_and_subscribers_once() {
    let (upstream, sink) = (TestUpstream::start("app"), EventSink::start());
    let setup = ApplianceSetup::new(BIN).route("app.test", upstream.address());
    let appliance = kit::scene::with_broker(&setup);
    kit::scene::subscribe(appliance.api(), "t", &sink.url(), &[]);
    kit::scene::post(&appliance, &TestEvent::new("one"));
    sink.wait_for(1, TIMEOUT);

    let (call, http, admin) = (HttpCall::get("/").host("app.test"), appliance.http(), appliance.admin().to_string());
    let shown = wait::until(TIMEOUT, "a rate above zero", || {
        let load = std::thread::scope(|scope| {
            let reading = scope.spawn(|| out(&top(&admin, &["--once"])));
            while !reading.is_finished() {
                assert_eq!(call.send(http).status, 200);
            }
            reading.join().unwrap()
        });
        (row(&load, "static/app.test")[0] != "0.0").then_some(load)
    });
    assert!(!shown.contains('\x1b'), "{shown}");
    let cells = row(&shown, "static/app.test");
    assert!(cells[1].ends_with("ms") && cells[2].ends_with("ms") && cells[3] == "0.0%", "{cells:?}");
    assert_eq!(cells[6], "1", "one address: {cells:?}");
    assert_eq!(row(&shown, "trigger/default/t")[3], "0", "nothing is pending: {shown}");
    let sorted = out(&top(&admin, &["--once", "--sort", "name"]));
    assert!(sorted.starts_with("sluicegate "), "{sorted}");
}

/// In a pipe, tables follow each other until the reader or the user ends it.
#[test]
fn top_in_a_pipe_goes_on_until_it_is_interrupted() {
    let appliance = ApplianceSetup::new(BIN).start();
    let admin = appliance.admin().to_string();
    let mut command = Command::new(BIN);
    command.args(["top", "--admin", &admin]).stdout(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(running.stdout.take().unwrap()));
    for _ in 0..2 {
        assert!(lines.any(|line| line.unwrap().starts_with("BACKEND")));
    }
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(running.wait().unwrap().success());
}

#[test]
fn top_names_what_is_wrong_with_its_address() {
    let appliance = ApplianceSetup::new(BIN).start();
    let at = |address: &str| Command::new(BIN).args(["top", "--once", "--admin", address]).output().unwrap();
    for (address, why) in [
        (kit::server::closed_address().to_string(), "no appliance responds at"),
        (appliance.events().to_string(), "is not an admin listener"),
    ] {
        let refused = at(&address);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
}

/// Runs kubectl, if there is one, with the plugin of the packages and this binary in its search path.
#[test]
fn kubectl_runs_the_plugin_of_the_packages() {
    let appliance = ApplianceSetup::new(BIN).start();
    let programs = tempfile::tempdir().unwrap();
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/packaging/kubectl-sluicegate");
    std::os::unix::fs::symlink(plugin, programs.path().join("kubectl-sluicegate")).unwrap();
    std::os::unix::fs::symlink(BIN, programs.path().join("sluicegate")).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap_or_default());
    let admin = appliance.admin().to_string();
    let run = |program: &str, words: &[&str]| {
        Command::new(program).args(words).env("PATH", &path).env("SLUICEGATE_ADMIN", &admin).output()
    };
    let shown = out(&run("kubectl-sluicegate", &["top", "--once"]).unwrap());
    assert!(shown.starts_with("sluicegate "), "{shown}");
    let help = out(&run("kubectl-sluicegate", &["--help"]).unwrap());
    for word in ["Usage: kubectl sluicegate", "trace", "replay", "redrive", "top", "doctor"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    match run("kubectl", &["sluicegate", "top", "--once"]) {
        Ok(output) => assert!(out(&output).starts_with("sluicegate ")),
        Err(why) => println!("skipped: no kubectl: {why}"),
    }
}
