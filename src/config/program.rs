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
