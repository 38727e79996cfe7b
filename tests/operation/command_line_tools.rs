//! Subcommands that need no running appliance: the host check, completion scripts, manual pages.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn sluicegate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(words).output().unwrap()
}

/// The rows of `doctor --json`, and the exit status.
fn doctor(data: &Path) -> (Vec<Value>, Option<i32>) {
    let output = sluicegate(&["doctor", "--json", "--data", data.to_str().unwrap()]);
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

#[test]
fn doctor_passes_on_host_that_runs_these_tests() {
    let data = tempfile::tempdir().unwrap();
    let (rows, status) = doctor(data.path());
    assert!(rows.len() > 10, "{rows:#?}");
    for row in &rows {
        assert_ne!(row["verdict"], "failed", "{row}");
        assert_eq!(row["advice"] == "", row["verdict"] == "ok", "a warning has a remedy: {row}");
    }
    assert_eq!(status, Some(0));
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0, "nothing is left in the data folder");
}

#[test]
fn doctor_fails_where_no_event_can_be_stored() {
    let (rows, status) = doctor(Path::new("/proc/sluicegate-data"));
    let disk = rows.iter().find(|row| row["name"] == "disk flush").unwrap();
    assert_eq!((&disk["verdict"], status), (&Value::from("failed"), Some(1)), "{disk}");
}

#[test]
fn completion_script_loads_and_names_subcommands() {
    let script = sluicegate(&["completion", "bash"]).stdout;
    let text = String::from_utf8(script).unwrap();
    let check = format!("{text}\ncomplete -p sluicegate");
    let loaded = Command::new("bash").args(["-c", &check]).output().unwrap();
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    assert!(text.contains("kubeconfig") && text.contains("--hot-restart"), "subcommands and flags are offered");
}

#[test]
fn manual_has_page_for_each_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(sluicegate(&["man", pages.to_str().unwrap()]).status.success());
    for name in ["sluicegate", "sluicegate-run", "sluicegate-event-replay", "sluicegate-doctor"] {
        let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH NAME"), "{name}: {page}");
    }
    let refused = sluicegate(&["man", "/proc/sluicegate-man"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/proc/sluicegate-man"));
}
