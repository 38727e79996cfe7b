//! `sluicegate wal verify|stat|dump`, through the binary, on unused logs and on one in use.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kit::scene::{post, subscribe, with_broker};
use kit::server::closed_address;
use kit::{ApplianceSetup, TIMEOUT, TestEvent, wait};
use wal::{Cursor, LogOptions, WriteAheadLog};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SEGMENT_BYTES: u64 = 16 << 10;
/// Events of each stream in a flush: later flushes must prove that earlier ones were durable.
const FLUSH_EVERY: u64 = 20;

fn wal(words: &[&str], folder: &Path) -> Output {
    Command::new(BIN).arg("wal").args(words).arg(folder).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A log of two streams with a subscriber each; one has read half. Returns where each event of `a` is.
fn fill(folder: &Path) -> Vec<u64> {
    let options = LogOptions { segment_bytes: SEGMENT_BYTES as u32, log_bytes_max: 1 << 20, ..LogOptions::default() };
    let (mut log, _) = WriteAheadLog::open(folder, options).unwrap();
    let [a, b] = ["a", "b"].map(|name| {
        let stream = log.stream(name).unwrap();
        log.cursor(stream, "reader", Cursor::at(log.end(stream))).unwrap();
        stream
    });
    let mut positions = Vec::new();
    for nth in 0..200_u64 {
        let payload = format!("event {nth} é\n{}", "x".repeat(100));
        positions.push(log.append(a, 1000 + nth, &[payload.as_bytes()]).unwrap().get());
        log.append(b, 1000 + nth, &[&[0xff, 0]]).unwrap();
        if nth % FLUSH_EVERY == 0 {
            log.flush_blocking().unwrap();
        }
    }
    log.cursor(a, "reader", Cursor::at(wal::LogPosition::new(positions[150]))).unwrap();
    log.flush_blocking().unwrap();
    positions
}

fn segment_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect();
    files.sort();
    files
}

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    segment_files(folder).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn a_sound_log_is_said_to_be_sound_and_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let before = contents(folder.path());
    let verified = wal(&["verify"], folder.path());
    assert!(verified.status.success(), "{verified:?}");
    assert!(stdout(&verified).contains("400 event records in 3 segments"), "{}", stdout(&verified));
    assert!(stdout(&verified).contains("sound"));

    let stat = wal(&["stat"], folder.path());
    assert!(stat.status.success());
    let text = stdout(&stat);
    for wanted in ["stream a: 200 events", ", 50 pending", "stream b: 200 events", ", 200 pending"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(contents(folder.path()) == before, "looking changes nothing");
}

/// APP-06: damage inside what was acknowledged is reported with its positions, and the status says so.
#[test]
fn flipped_bit_is_reported_with_position_and_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let positions = fill(folder.path());
    let victim = positions[100];
    let file = segment_files(folder.path()).remove((victim / SEGMENT_BYTES) as usize);
    let disk = OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all_at(b"E", victim % SEGMENT_BYTES + 40).unwrap();
    for verb in ["verify", "stat", "dump"] {
        let output = wal(&[verb], folder.path());
        assert_eq!(output.status.code(), Some(1), "{verb}");
        let all = stdout(&output) + &String::from_utf8_lossy(&output.stderr);
        assert!(all.contains("DAMAGE") && all.contains(&format!("positions {victim} to")), "{all}");
        assert!(all.contains(&file.display().to_string()), "{all}");
    }
    fs::remove_file(&segment_files(folder.path())[1]).unwrap();
    let output = wal(&["verify"], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("positions 16384 to 32768: a missing segment"), "{}", stdout(&output));
}

#[test]
fn a_dump_shows_each_record_once_and_only_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let positions = fill(folder.path());
    let lines = |words: &[&str]| {
        let output = wal(words, folder.path());
        assert!(output.status.success(), "{output:?}");
        let text = stdout(&output);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let events = |lines: &[String]| lines.iter().filter(|line| line.contains(" event")).count();
    let all = lines(&["dump"]);
    assert_eq!(events(&all), 400);
    assert!(all.iter().any(|line| line.ends_with(" snapshot")) && all.iter().any(|line| line.ends_with(" seal")));

    let from = positions[190].to_string();
    let some = lines(&["dump", "--stream", "a", "--from", &from, "--payload", "utf8"]);
    assert_eq!(events(&some), 10);
    let payload = format!("event 190 é\\n{}", "x".repeat(100));
    let bytes = payload.len() - 1; // the escape is one byte in the record
    assert_eq!(some[0], format!("{from} a 1190 {bytes} event {payload}"));
    let hex = lines(&["dump", "--stream", "b", "--payload", "hex"]);
    assert!(hex.iter().any(|line| line.ends_with(" 2 event ff00")), "{hex:?}");
}

#[test]
fn what_is_no_log_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = wal(&["verify"], folder.path());
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no log here"));
    fs::write(folder.path().join("0000000001.seg"), b"PNG and so on").unwrap();
    let foreign = wal(&["stat"], folder.path());
    assert_eq!(foreign.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&foreign.stderr).contains("not a segment of this log"));
    // One log that cannot be read does not hide what the others hold.
    let both = tempfile::tempdir().unwrap();
    fill(&both.path().join("core-1"));
    fs::create_dir(both.path().join("core-0")).unwrap();
    fs::write(both.path().join("core-0/0000000001.seg"), b"PNG and so on").unwrap();
    let verified = wal(&["verify"], both.path());
    assert_eq!(verified.status.code(), Some(1));
    assert!(stdout(&verified).contains("400 event records"), "{verified:?}");
    let unknown = wal(&["dump", "--stream", "absent"], &both.path().join("core-1"));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no stream \"absent\""), "{unknown:?}");
    let missing = wal(&["dump"], &folder.path().join("absent"));
    assert_eq!(missing.status.code(), Some(1));
}

/// The log of a running appliance is read meanwhile: the tools see what was accepted and pending, and
/// the appliance continues.
#[test]
fn the_logs_of_a_running_appliance_are_read_without_disturbing_it() {
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"));
    subscribe(appliance.api(), "never", &format!("http://{}", closed_address()), &[]);
    let data = appliance.setup().data();
    for nth in 0..4 {
        post(&appliance, &TestEvent::new(&format!("e{nth}")).data("text/plain", b"hello".to_vec()));
        if nth % 2 == 0 {
            let verified = wal(&["verify"], &data);
            assert!(verified.status.success(), "{verified:?}");
        }
    }
    let stat = stdout(&wal(&["stat"], &data));
    let pending = stat.lines().filter_map(|line| line.strip_suffix(" pending")?.rsplit(' ').next());
    let pending: u64 = pending.map(|count| count.parse::<u64>().unwrap()).sum();
    assert_eq!(pending, 4, "{stat}");
    let dump = stdout(&wal(&["dump", "--payload", "utf8"], &data));
    assert_eq!(dump.matches("hello").count(), 4);
    let stat = wait::until(TIMEOUT, "the names of the objects", || {
        Some(stdout(&wal(&["stat"], &data))).filter(|stat| stat.contains("trigger/default/never ("))
    });
    let stream = stat.lines().find_map(|line| line.trim_start().strip_prefix("stream brokers/")?.split(' ').next());
    let named = format!("brokers/{}", stream.unwrap());
    let dump = stdout(&wal(&["dump", "--payload", "utf8", "--stream", &named], &data));
    assert_eq!(dump.matches("hello").count(), 4, "{named}: {dump}");
}
