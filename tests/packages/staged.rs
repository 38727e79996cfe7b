//! The files of a package in a scratch folder, and the tools that pack them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The date of everything that is packed.
const SOURCE_DATE: &str = "1790000000";

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What the scripts of `deploy/packaging` wrote.
pub(crate) struct StagedFiles {
    folder: TempDir,
}

impl StagedFiles {
    /// Laid out once for all tests. `None`: a program is not built, or a tool is not installed.
    pub(crate) fn get() -> Option<&'static StagedFiles> {
        static STAGED: OnceLock<Option<StagedFiles>> = OnceLock::new();
        STAGED.get_or_init(StagedFiles::new).as_ref()
    }

    fn new() -> Option<StagedFiles> {
        let adapters = Path::new(BIN).with_file_name("sluicegate-adapters");
        if !adapters.is_file() {
            eprintln!("skipped: {} is not built", adapters.display());
            return None;
        }
        if !["strip", "gzip", "tar"].into_iter().all(is_installed) {
            return None;
        }
        let staged = StagedFiles { folder: tempfile::tempdir().unwrap() };
        let programs = Path::new(BIN).parent().unwrap();
        succeeds(staged.command("sh").arg("deploy/packaging/stage.sh").arg(programs).arg(staged.root()));
        Some(staged)
    }

    /// The folder that packages find as `target/release/root`.
    pub(crate) fn root(&self) -> PathBuf {
        self.target().join("release/root")
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    /// A new folder for what a test packs.
    pub(crate) fn output(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A tool, run in the repository, that finds the staged files as cargo's output.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(repository()).env("CARGO_TARGET_DIR", self.target()).env("SOURCE_DATE_EPOCH", SOURCE_DATE);
        // A tool that calls cargo must not get what cargo tells this test.
        command.env_remove("CARGO").env("CARGO_NET_OFFLINE", "true");
        command
    }
}

/// Whether a tool is on the path; says so if it is not.
pub(crate) fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if !is_installed {
        eprintln!("skipped: {name} is not installed");
    }
    is_installed
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, both(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What each package installs, whatever its format.
pub(crate) const INSTALLED: &[&str] = &[
    "/usr/bin/sluicegate",
    "/usr/bin/sluicegate-adapters",
    "/usr/bin/kubectl-sluicegate",
    "/etc/sluicegate/sluicegate.toml",
    "/usr/lib/systemd/system/sluicegate.service",
    "/usr/lib/systemd/system/sluicegate.socket",
    "/usr/lib/sysusers.d/sluicegate.conf",
    "/usr/lib/sysctl.d/30-sluicegate.conf",
    "/usr/share/man/man1/sluicegate.1.gz",
    "/usr/share/man/man1/sluicegate-run.1.gz",
    "/usr/share/bash-completion/completions/sluicegate",
    "/usr/share/fish/vendor_completions.d/sluicegate.fish",
    "/usr/share/doc/sluicegate/README.md",
    "/usr/share/doc/sluicegate/examples/1-hello.yaml",
];
