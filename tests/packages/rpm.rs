//! The RPM package: what is in it.

use std::fs;
use std::process::Command;

use super::staged::{INSTALLED, StagedFiles, VERSION, is_installed, succeeds};

#[test]
fn rpm_package_has_files_config_and_scripts() {
    if !["cargo-generate-rpm", "rpm"].into_iter().all(is_installed) {
        return;
    }
    let Some(staged) = StagedFiles::get() else { return };
    let folder = staged.output("rpm");
    let mut build = staged.command("cargo-generate-rpm");
    build
        .args(["generate-rpm", "--payload-compress", "none", "--target-dir"])
        .arg(staged.root().ancestors().nth(2).unwrap());
    succeeds(build.arg("--output").arg(&folder));
    let package = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();

    let query =
        |words: &[&str]| succeeds(Command::new("rpm").arg("--query").arg("--package").args(words).arg(&package));
    let files = query(&["--list"]);
    for path in INSTALLED.iter().chain(&["/usr/share/zsh/site-functions/_sluicegate"]) {
        assert!(files.lines().any(|line| line == *path), "{path}: {files}");
    }
    assert!(query(&["--info"]).contains(VERSION));
    assert_eq!(query(&["--configfiles"]).trim(), "/etc/sluicegate/sluicegate.toml");
    let scripts = query(&["--scripts"]);
    for part in
        ["systemd-sysusers sluicegate.conf", "--signal=USR2 sluicegate.service", "disable --now sluicegate.socket"]
    {
        assert!(scripts.contains(part), "{part}: {scripts}");
    }
    let needs = query(&["--requires"]);
    assert!(needs.contains("systemd") && needs.contains("libc.so.6"), "{needs}");
}
