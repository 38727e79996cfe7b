//! One shell that runs the blocks, and everything that they start.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kit::wait;
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use tempfile::TempDir;

use super::page::{CommandBlock, ExpectedText};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// The longest page takes half a minute.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// What each page needs: a network namespace, and an interface in it.
const TOOLS: [&str; 4] = ["bash", "curl", "ip", "unshare"];

/// `stop` ends the appliance of the last block. A page that starts another one would find its ports taken.
const BEGIN: &str = r#"
set -e
ip link set lo up
stop() {
    if [ -n "$appliance" ]; then kill "$appliance" && wait "$appliance" || true; appliance=; fi
}
await_appliance() {
    for attempt in $(seq 600); do curl -fs http://127.0.0.1:9090/readyz >ready.out && return; sleep 0.1; done
    echo "the appliance is not ready"; cat appliance.log; exit 1
}
appliance=
trap 'status=$?; [ $status = 0 ] || { cat block.out; echo "failed with $status"; }; stop' EXIT
"#;

/// The script of a page, and the folder in which it runs, which has the examples of the repository.
pub(crate) struct TutorialShell {
    folder: TempDir,
    script: String,
}

impl TutorialShell {
    /// `None`, with a message, if a tool is missing or this user may not make a network namespace.
    pub(crate) fn new(tools: &[&str]) -> Option<TutorialShell> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let beside = Path::new(BIN).parent().unwrap().to_owned();
        let folders: Vec<_> = std::env::split_paths(&path).chain([beside]).collect();
        for tool in TOOLS.iter().chain(tools) {
            if !folders.iter().any(|folder| folder.join(tool).is_file()) {
                eprintln!("skipped: {tool} is not installed");
                return None;
            }
        }
        if !namespace().arg("true").output().unwrap().status.success() {
            eprintln!("skipped: this user may not make a network namespace");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        assert!(Command::new("cp").arg("-R").arg(examples).arg(folder.path()).status().unwrap().success());
        Some(TutorialShell { folder, script: BEGIN.to_owned() })
    }

    pub(crate) fn add(&mut self, page: &str, block: &CommandBlock) {
        let CommandBlock { line, text, prints, .. } = block;
        let script = &mut self.script;
        let starts_appliance = text.contains("sluicegate run");
        let stays = text.starts_with("sluicegate run") && !text.ends_with('&');
        let mut push = |part: &str| {
            let _ = writeln!(script, "{part}"); // a string takes everything
        };
        push(&format!("echo '== {page}:{line}'"));
        match prints {
            // The reader leaves the terminal of the appliance open.
            None if stays => push(&format!("stop\n( exec {text}\n) >appliance.log 2>&1 &\nappliance=$!")),
            Some(ExpectedText::InTheEnd(wanted)) => push(&format!(
                "for attempt in $(seq 300); do ( {text}\n) >block.out 2>&1 || true\ngrep -qF -- {0} block.out && break; sleep 0.1; done\n\
                 grep -qF -- {0} block.out",
                quoted(wanted)
            )),
            _ => push(&format!("{{ {text}\n}} >block.out 2>&1")),
        }
        if let Some(ExpectedText::Now(wanted)) = prints {
            push(&format!("grep -qiF -- {} block.out", quoted(wanted)));
        }
        if starts_appliance {
            push("await_appliance");
        }
    }

    /// Runs the script, ends what it started, and panics with its output if it failed.
    pub(crate) fn run(self) {
        let folder = self.folder.path();
        fs::write(folder.join("script"), &self.script).unwrap();
        let log = File::create(folder.join("log")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = Path::new(BIN).parent().unwrap().display();
        let mut command = namespace();
        command
            .args(["bash", "script"])
            .current_dir(folder)
            .env("PATH", format!("{programs}:{path}"))
            .env("HOME", folder);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SLUICEGATE_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let mut shell = command.spawn().unwrap();
        let group = Pid::from_child(&shell);
        let status = wait::try_until(RUN_TIMEOUT, || shell.try_wait().unwrap());
        // Programs that a block left in the background, and the shell if it hangs.
        let _ = kill_process_group(group, Signal::KILL);
        drop(shell.wait());
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        let appliance = fs::read_to_string(folder.join("appliance.log")).unwrap_or_default();
        println!("{log}");
        assert!(
            status.is_some_and(|status| status.success()),
            "{log}\nappliance:\n{appliance}\nscript:\n{}",
            self.script
        );
    }
}

/// A command in a network namespace of its own.
fn namespace() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
