//! A segment of the log that is emptied or removed while no appliance runs.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use kit::scene::{post, subscribe, with_broker};
use kit::server::closed_address;
use kit::{ApplianceSetup, TIMEOUT, TestEvent, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn segment_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect()
}

/// Damages a segment file.
type Loss = fn(&Path);

/// APP-05, APP-06: `wal verify` fails and names the segment and its first position, and the next start logs
/// it, counts it and accepts events again.
#[test]
fn lost_only_segment_is_reported_by_verify_and_start() {
    let mut appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "1"));
    subscribe(appliance.api(), "never", &format!("http://{}", closed_address()), &[]);
    let data = appliance.setup().data();
    let verify = || {
        let output = Command::new(BIN).args(["wal", "verify"]).arg(&data).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let losses: [(&str, Loss); 2] = [
        ("has lost its header", |file| OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap()),
        ("is missing", |file| fs::remove_file(file).unwrap()),
    ];
    let mut begins = 0;
    for (words, lose) in losses {
        for nth in 0..5 {
            post(&appliance, &TestEvent::new(&format!("{begins}-{nth}")).data("text/plain", b"hello".to_vec()));
        }
        assert_eq!(verify().0, Some(0), "a log in use");
        appliance.kill();
        assert_eq!(verify().0, Some(0), "a log at rest");
        let [file] = &segment_files(&data.join("log/core-0"))[..] else { panic!("one segment") };
        let bytes = fs::metadata(file).unwrap().len();
        lose(file);

        let (status, text) = verify();
        assert_eq!(status, Some(1), "{text}");
        let wanted = format!("positions {begins} to {}: {} {words}", begins + bytes, file.display());
        assert!(text.contains(&wanted), "{wanted}: {text}");
        begins += bytes;

        appliance.restart();
        appliance.wait_says("acknowledged events are lost");
        appliance.wait_says(words);
        wait::until(TIMEOUT, "the metric", || (appliance.metric("sluicegate_log_gaps_total", "") == 1).then_some(()));
        post(&appliance, &TestEvent::new("after").data("text/plain", b"hello".to_vec()));
    }
}
