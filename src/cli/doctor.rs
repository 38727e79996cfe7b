//! `sluicegate doctor`: checks this host, and says what each missing thing costs.
//!
//! One line a check. A failed check prevents a start; a warning costs a feature or speed. The checks change nothing on the host
//! but one temporary file in the data folder.

mod cgroups;
mod clock;
mod disk;
mod kernel;
mod limits;
mod names;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Data folder whose disk is measured; a folder that does not exist is not created, its parent is measured
    #[arg(long, value_name = "DIR", env = "SLUICEGATE_DATA", default_value = "sluicegate-data")]
    data: PathBuf,

    /// Number of cores that `sluicegate run` will use [default: all of this process]
    #[arg(long, value_name = "N", env = "SLUICEGATE_WORKERS")]
    workers: Option<usize>,

    /// Print a JSON array instead of lines
    #[arg(long)]
    json: bool,
}

/// The result of a check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// A feature or speed is missing.
    Warning,
    /// `sluicegate run` cannot start, or cannot keep a promise.
    Failed,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// One checked property of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// The value that was read or measured.
    value: String,
    /// What the user loses, and the remedy. Empty if the verdict is ok.
    advice: String,
}

impl Check {
    fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, value: value.into(), advice: String::new() }
    }

    fn warning(name: &'static str, value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warning, value: value.into(), advice: advice.into() }
    }

    fn failed(name: &'static str, value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Failed, value: value.into(), advice: advice.into() }
    }

    fn line(&self) -> String {
        let advice = if self.advice.is_empty() { String::new() } else { format!("\n{:27}{}", "", self.advice) };
        format!("{:8} {:17} {}{advice}\n", self.verdict.name(), self.name, self.value)
    }
}

/// Exit status 0: no check failed; warnings are allowed. 1: at least one failed.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let workers = args.workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut checks = kernel::checks();
    checks.extend(limits::checks(workers));
    checks.extend(cgroups::checks());
    checks.push(disk::check(&args.data));
    checks.extend(names::checks());
    checks.extend(clock::checks());
    let text = if args.json { as_json(&checks) } else { as_lines(&checks) };
    let sound = checks.iter().all(|check| check.verdict != Verdict::Failed);
    super::exit_code(super::tell(&text).map(|()| sound))
}

fn as_lines(checks: &[Check]) -> String {
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (warnings, failed) = (count(Verdict::Warning), count(Verdict::Failed));
    let summary = match (failed, warnings) {
        (0, 0) => "this host has everything that Sluicegate uses".to_owned(),
        (0, _) => format!("`sluicegate run` starts; {warnings} of {} checks cost something", checks.len()),
        _ => format!("{failed} of {} checks failed: `sluicegate run` does not start or is not durable", checks.len()),
    };
    let lines: String = checks.iter().map(Check::line).collect();
    format!("{lines}\n{summary}\n")
}

fn as_json(checks: &[Check]) -> String {
    let rows: Vec<_> = checks
        .iter()
        .map(|check| json!({"name": check.name, "verdict": check.verdict.name(), "value": check.value, "advice": check.advice}))
        .collect();
    format!("{}\n", json!(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_warnings_and_failures() {
        let ok = Check::ok("kernel", "6.12");
        let slow = Check::warning("flush", "12 ms", "use another disk");
        let closed = Check::failed("io_uring", "disabled", "allow it");
        assert_eq!(
            as_lines(std::slice::from_ref(&ok)).lines().last(),
            Some("this host has everything that Sluicegate uses")
        );
        assert!(as_lines(&[ok.clone(), slow.clone()]).ends_with("1 of 2 checks cost something\n"));
        assert!(as_lines(&[ok, slow, closed]).contains("1 of 3 checks failed"));
    }

    #[test]
    fn json_report_has_one_row_a_check() {
        let rows: serde_json::Value =
            serde_json::from_str(&as_json(&[Check::warning("dns", "none", "add one")])).unwrap();
        assert_eq!(rows, json!([{"name": "dns", "verdict": "warning", "value": "none", "advice": "add one"}]));
    }
}
