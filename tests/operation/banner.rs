//! What a start tells: lines on a terminal, one line of JSON in a log; and what `--version` tells about the build.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use kit::{ApplianceSetup, TIMEOUT, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

#[test]
fn start_is_one_json_line_in_a_log() {
    let appliance = ApplianceSetup::new(BIN).flag("https", "127.0.0.1:0").start();
    let line: Value = wait::until(TIMEOUT, "the line", || {
        let log = appliance.stderr();
        let line = log.lines().find(|line| line.contains(r#""message":"started""#))?;
        serde_json::from_str(line).ok()
    });
    let address = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(line["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(line["pid"], appliance.pid());
    assert_eq!(address("data"), appliance.setup().data().display().to_string());
    assert_eq!(address("http"), format!("http://{}", appliance.http()));
    assert_eq!(address("https"), format!("https://{}", appliance.https()));
    assert_eq!(address("admin"), format!("http://{}", appliance.admin()));
    assert_eq!((address("tls"), line.get("events_https")), ("https".to_owned(), None));
    assert_eq!(address("roles"), "gateway, event broker, control plane");

    // The next command works as it stands.
    let next = format!("{} && cat \"$KUBECONFIG\"", address("next"));
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", std::path::Path::new(BIN).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let shell = Command::new("sh").args(["-c", &next]).current_dir(folder.path()).env("PATH", path).output().unwrap();
    let printed = String::from_utf8_lossy(&shell.stdout).into_owned();
    assert!(printed.contains(&appliance.api().address().to_string()), "{printed}{shell:?}");
}

/// `script` of util-linux gives the program a terminal.
#[test]
fn start_is_readable_lines_on_a_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: script is not installed");
        return;
    }
    let setup = ApplianceSetup::new(BIN);
    let words: Vec<String> = setup.command().get_args().map(|word| word.display().to_string()).collect();
    let command = format!("exec {BIN} {}", words.join(" "));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]).stdin(Stdio::null());
    let mut terminal = script.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(terminal.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut shown = Vec::new();
    for line in lines {
        let is_last = line.starts_with("ready ");
        shown.push(line.trim_end().to_owned());
        if is_last {
            break;
        }
    }
    // The end of the terminal would be a reload.
    let pid = shown.iter().find_map(|line| line.rsplit_once("process ")?.1.parse().ok());
    kill_process(Pid::from_raw(pid.unwrap_or_else(|| panic!("{shown:#?}"))).unwrap(), Signal::TERM).unwrap();
    terminal.wait().unwrap();
    let row = |name: &str| shown.iter().any(|line| line.trim_start().starts_with(name));
    assert!(row(&format!("Sluicegate {} (commit ", env!("CARGO_PKG_VERSION"))), "{shown:#?}");
    for name in ["data folder", "workers", "roles", "http ", "events ", "api ", "admin ", "TLS", "next", "ready http="]
    {
        assert!(row(name), "{name}: {shown:#?}");
    }
}

#[test]
fn version_names_commit_profile_target_and_features() {
    let printed = |words: &[&str]| {
        let mut child = Command::new(BIN).args(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success());
        text
    };
    let long = printed(&["--version"]);
    assert_eq!(long, printed(&["version"]));
    let mut lines = long.lines();
    assert_eq!(lines.next(), Some(concat!("sluicegate ", env!("CARGO_PKG_VERSION"))));
    for name in ["commit: ", "profile: ", "target: ", "features: "] {
        let value = lines.next().and_then(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {long}"));
        assert!(!value.is_empty(), "{long}");
    }
    assert_eq!(printed(&["-V"]), concat!("sluicegate ", env!("CARGO_PKG_VERSION"), "\n"));
}
