//! What `sluicegate --version` says about the build: commit, date, profile, target and cargo features.
//!
//! Needs neither git nor a network. The result depends on the sources and on variables alone, so that two builds of one
//! commit are the same.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Overrides the commit, for a build without git from an archive.
const COMMIT: &str = "SLUICEGATE_COMMIT";
/// Seconds since 1970 (https://reproducible-builds.org/specs/source-date-epoch/). Overrides the date of the commit.
const SOURCE_DATE: &str = "SOURCE_DATE_EPOCH";
const COMMIT_CHARS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT}");
    println!("cargo::rerun-if-env-changed={SOURCE_DATE}");
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let is_debug = variable("PROFILE") == "debug";
    if !is_debug {
        // A debug build does not follow the commits: each would compile the program and its tests again.
        rerun_at_commits(&root);
    }
    let (commit, is_exact) = match env::var(COMMIT).ok().filter(|text| !text.is_empty()) {
        Some(commit) => (commit, true),
        None => match git(&root, &["rev-parse", "HEAD"]) {
            Some(commit) => (commit, !is_debug),
            None => (published_commit(&root).unwrap_or_else(|| "unknown".to_owned()), true),
        },
    };
    let short: String = commit.chars().filter(char::is_ascii_alphanumeric).take(COMMIT_CHARS).collect();
    let later = if is_exact { "" } else { " or later" };
    // Not SLUICEGATE_…: cargo gives these variables to what it runs, and the program refuses unknown ones of that name.
    println!("cargo::rustc-env=BUILD_COMMIT={short}{later}");
    println!("cargo::rustc-env=BUILD_DATE={}", date(&root).unwrap_or_else(|| "unknown".to_owned()));
    println!("cargo::rustc-env=BUILD_PROFILE={}", profile());
    println!("cargo::rustc-env=BUILD_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=BUILD_FEATURES={}", features());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// `dev`, `release` or `dist`: cargo tells only which of its two families the profile belongs to, the folder has its name.
fn profile() -> String {
    let out = PathBuf::from(variable("OUT_DIR"));
    // target/PROFILE/build/PACKAGE/out
    let folder = out.ancestors().nth(3).and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    if folder == "debug" { "dev".to_owned() } else { folder.to_owned() }
}

fn features() -> String {
    let names = env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase()));
    let mut names: Vec<String> = names.map(|name| name.replace('_', "-")).collect();
    names.sort();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// `None`: git is absent, or the sources are not the root of its work tree.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn rerun_at_commits(root: &Path) {
    let branch = git(root, &["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        if let Some(path) = git(root, &["rev-parse", "--git-path", name]).map(|path| root.join(path))
            && path.exists()
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// The commit that `cargo package` wrote into a published crate.
fn published_commit(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join(".cargo_vcs_info.json")).ok()?;
    Some(text.split_once("\"sha1\":")?.1.split('"').nth(1)?.to_owned())
}

/// Of the sources, as `2026-11-27`.
fn date(root: &Path) -> Option<String> {
    match env::var(SOURCE_DATE) {
        Ok(seconds) => Some(civil_date(seconds.trim().parse::<u64>().ok()? / 86_400)),
        Err(_) => {
            let seconds = git(root, &["show", "-s", "--format=%ct", "HEAD"])?;
            Some(civil_date(seconds.parse::<u64>().ok()? / 86_400))
        }
    }
}

/// Days since 1970 in the Gregorian calendar, in UTC.
fn civil_date(days: u64) -> String {
    // Years begin in March here, so that a leap day is the last day of one; an era is 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
