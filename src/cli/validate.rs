//! `sluicegate validate`: checks config files and manifests without an appliance.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use control::bounded_file;
use control::manifests::{self, Severity};

use super::{exit_code, run, tell};
use crate::config::{RunConfig, Settings, setting_names};

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Config files (TOML or YAML), manifests (YAML or JSON), or folders of manifests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Larger files are neither.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// One line for each finding: `FILE:LINE: error: FIELD: …`. Exit status 1 if there is an error.
pub(super) fn run(args: &ValidateArgs) -> ExitCode {
    let (mut errors, mut warnings, mut checked) = (0, 0, 0);
    let mut report = String::new();
    for file in &args.files {
        if is_config(file) {
            checked += 1;
            match check_config(file) {
                Ok(found) => {
                    warnings += found.len();
                    let line = |warning: String| format!("{}: warning: {warning}\n", file.display());
                    report.extend(found.into_iter().map(line));
                }
                Err(why) => {
                    errors += 1;
                    report.push_str(&format!("{why}\n"));
                }
            }
            continue;
        }
        let (documents, findings) = manifests::validate(file);
        checked += documents;
        for finding in findings {
            let severity = match finding.severity {
                Severity::Error => {
                    errors += 1;
                    "error"
                }
                Severity::Warning => {
                    warnings += 1;
                    "warning"
                }
            };
            let (path, line, message) = (finding.path.display(), finding.line, finding.message);
            report.push_str(&match line {
                0 => format!("{path}: {severity}: {message}\n"),
                line => format!("{path}:{line}: {severity}: {message}\n"),
            });
        }
    }
    let (documents, found) = (counted(checked, "document"), counted(errors, "error"));
    report.push_str(&format!("{documents} checked: {found}, {}\n", counted(warnings, "warning")));
    exit_code(tell(&report).map(|()| errors == 0))
}

/// `1 error`, `2 errors`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A config file is TOML, or an object without `apiVersion` and `kind` that has the name of a setting as a key.
fn is_config(file: &Path) -> bool {
    if file.extension().is_some_and(|end| end == "toml") {
        return true;
    }
    if file.is_dir() {
        return false;
    }
    let Ok(Some(text)) = bounded_file::read_text(file, FILE_BYTES_MAX) else { return false };
    let keys: Vec<_> =
        text.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key.trim_matches('"')).collect();
    !keys.contains(&"kind")
        && !keys.contains(&"apiVersion")
        && setting_names().iter().any(|name| keys.contains(&name.as_str()))
}

/// Checks the settings by themselves, and the files that they name. Returns the warnings.
fn check_config(file: &Path) -> Result<Vec<String>, String> {
    let settings = Settings { config: Some(file.to_owned()), ..Settings::default() };
    let decided = RunConfig::decide(settings).map_err(|why| {
        let why = why.strip_prefix("config: ").unwrap_or(&why).to_owned();
        let name = file.display().to_string();
        if why.starts_with(&name) { why } else { format!("{name}: {why}") }
    });
    let config = decided.map_err(|why| with_severity(&why, file))?;
    run::check_files(&config).map_err(|why| format!("{}: error: {why:#}", file.display()))?;
    Ok(config.warnings)
}

/// `FILE:LINE: …` becomes `FILE:LINE: error: …`.
fn with_severity(why: &str, file: &Path) -> String {
    let name = file.display().to_string();
    let Some(rest) = why.strip_prefix(&name) else { return format!("{name}: error: {why}") };
    let line =
        rest.strip_prefix(':').and_then(|rest| rest.split_once(": ")).filter(|(line, _)| line.parse::<usize>().is_ok());
    match line {
        Some((line, why)) => format!("{name}:{line}: error: {why}"),
        None => format!("{name}: error: {}", rest.trim_start_matches(':').trim_start()),
    }
}
