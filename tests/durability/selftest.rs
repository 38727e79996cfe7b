//! `sluicegate selftest --power-cut`, through the binary: a sound disk passes, one that loses writes
//! does not, and a folder in use is not touched.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kit::{ApplianceSetup, TIMEOUT, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn selftest(data: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(BIN);
    command.args(["selftest", "--power-cut", "--data"]).arg(data).args(words);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The value of a row of the report.
fn row(report: &str, name: &str) -> String {
    let found = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("  "));
    found.unwrap_or_else(|| panic!("no row {name:?} in {report}")).trim().to_owned()
}

fn segment_files(data: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(data).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let logs = folders.filter_map(|campaign| fs::read_dir(campaign.join("log")).ok());
    logs.flatten().filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.extension().is_some()).collect()
}

/// APP-05, APP-06: on this machine's disk nothing that was acknowledged is lost, every flipped bit is
/// found, and nothing is left behind.
#[test]
fn a_sound_disk_passes_and_nothing_is_left_on_it() {
    let data = tempfile::tempdir().unwrap();
    let output = selftest(data.path(), &["--seconds", "2", "--seed", "7"]).output().unwrap();
    let report = stdout(&output);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(row(&report, "records lost"), "0");
    assert!(row(&report, "disk under").ends_with(", seed 7"), "{report}");
    assert!(row(&report, "verdict").starts_with("nothing that was acknowledged was lost"));
    for counted in ["kills", "torn copies", "flushes"] {
        assert_ne!(row(&report, counted).split([',', ' ']).next(), Some("0"), "{counted}: {report}");
    }
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0);
}

/// The test can fail: acknowledged bytes are zeroed, and it reports that, with the
/// evidence kept.
#[test]
fn a_disk_that_eats_what_it_was_given_is_found_out() {
    let data = tempfile::tempdir().unwrap();
    let mut command = selftest(data.path(), &["--seconds", "60"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait::until(TIMEOUT, "the campaign's end", || {
        for path in segment_files(data.path()) {
            // A file that has gone meanwhile is no matter: there will be others.
            if let Ok(file) = File::options().write(true).open(path) {
                let _ = file.write_all_at(&[0; 600], 9000);
            }
        }
        child.try_wait().unwrap()
    });
    let output = child.wait_with_output().unwrap();
    let report = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.contains("VIOLATION") && report.contains("the evidence is in"), "{report}");
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 1, "the evidence");
}

#[test]
fn a_folder_in_which_an_appliance_lives_is_left_alone() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "1").start();
    let data = appliance.setup().data();
    let before = fs::read_dir(&data).unwrap().count();
    let output = selftest(&data, &["--seconds", "1"]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("in use by another sluicegate"), "{why}");
    assert_eq!(fs::read_dir(&data).unwrap().count(), before);
}

#[test]
fn the_command_line_says_what_it_does_and_refuses_what_makes_no_sense() {
    let help = Command::new(BIN).args(["selftest", "--help"]).output().unwrap();
    assert!(help.status.success());
    for word in ["--power-cut", "--seconds", "--data", "--seed", "Exit status"] {
        assert!(stdout(&help).contains(word), "{word}: {}", stdout(&help));
    }
    assert!(!stdout(&help).contains("append-from"), "how a child is told is nobody's business");
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(selftest(folder.path(), &["--seconds", "0"]).output().unwrap().status.code(), Some(2));
    let bare = Command::new(BIN).args(["selftest", "--data"]).arg(folder.path()).output().unwrap();
    assert_eq!(bare.status.code(), Some(2), "which test?");
}
