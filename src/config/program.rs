//! The location of the program of an `--image`.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use control::runtime::SEARCH_PATH;

/// The command with its resolved program: first in the instances' search path, by its mere name, and else
/// in the appliance's, by its full path. An unresolved program stays as it is.
pub(super) fn located(mut command: Vec<String>, own_path: &OsStr) -> Vec<String> {
    let Some(program) = command.first_mut() else { return command };
    if program.contains('/') || found(program, OsStr::new(SEARCH_PATH)).is_some() {
        return command;
    }
    if let Some(whole) = found(program, own_path) {
        *program = whole;
    }
    command
}

/// Why the program cannot be started as things are. A relative path is one of the instance's working directory.
pub(super) fn problem(command: &[String], own_path: &OsStr) -> Option<String> {
    let program = command.first()?;
    if !program.contains('/') {
        let is_found = [OsStr::new(SEARCH_PATH), own_path].iter().any(|path| found(program, path).is_some());
        let advice = "Revisions with this image fail until it is installed";
        return (!is_found).then(|| format!("no program {program} in PATH or {SEARCH_PATH}; {advice}"));
    }
    let candidate = Path::new(program);
    let is_usable = !candidate.is_absolute() || may_run(candidate);
    (!is_usable).then(|| format!("{program} is not an executable file; Revisions with this image fail until it is"))
}

/// The first executable file of this name.
fn found(program: &str, path: &OsStr) -> Option<String> {
    let mut candidates = std::env::split_paths(path).map(|folder| folder.join(program));
    let candidate = candidates.find(|candidate| may_run(candidate))?;
    // The search path may contain relative folders; an instance has another working directory.
    std::path::absolute(candidate).ok()?.into_os_string().into_string().ok()
}

fn may_run(candidate: &Path) -> bool {
    candidate.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_told_and_others_are_not() {
        let own = OsStr::new("/nowhere");
        for (program, is_missing) in [
            ("sh", false),
            ("nosuchprog", true),
            ("/bin/sh", false),
            ("/bin/nosuchprog", true),
            ("./later", false),
            ("/etc/passwd", true),
        ] {
            let told = problem(&[program.to_owned()], own);
            assert_eq!(told.is_some(), is_missing, "{told:?}");
            assert!(told.is_none_or(|told| told.contains(program)));
        }
    }

    #[test]
    fn program_outside_instance_path_gets_full_path() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("tool", 0o755), ("notes", 0o644), ("sh", 0o755)] {
            let candidate = folder.path().join(name);
            std::fs::write(&candidate, "").unwrap();
            std::fs::set_permissions(&candidate, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let own = std::env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        let candidate = folder.path().join("tool").to_string_lossy().into_owned();
        for (program, located_at) in [
            ("tool", candidate.as_str()),
            ("notes", "notes"),
            ("nothing", "nothing"),
            ("sh", "sh"),
            ("./tool", "./tool"),
            ("/bin/tool", "/bin/tool"),
        ] {
            let command = vec![program.to_owned(), "tool".to_owned()];
            assert_eq!(located(command, &own), [located_at, "tool"], "{program}");
        }
    }
}
