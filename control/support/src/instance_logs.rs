//! The paths of instance logs: the runtime writes them, the API server reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The present log of the instance `id`, or of a sidecar of it, below `folder`, which is `instances` in the data folder;
/// its predecessor ends in `.log.1`.
#[must_use]
pub fn log_file(folder: &Path, namespace: &str, revision: &str, id: u64, sidecar: Option<&str>) -> PathBuf {
    let name = sidecar.map(|name| format!(".{}", file_name(name))).unwrap_or_default();
    folder.join(file_name(namespace)).join(file_name(revision)).join(format!("{id}{name}.log"))
}

/// The present logs of all instances of a Revision that are kept, those that are gone included, oldest first.
#[must_use]
pub fn log_files(folder: &Path, namespace: &str, revision: &str) -> Vec<PathBuf> {
    current_logs(&folder.join(file_name(namespace)).join(file_name(revision)))
}

/// After the name of a container in a Pod: the log of its run before the present one. No container has an underscore in its name.
pub const PREVIOUS_SUFFIX: &str = "_previous";

/// Characters kept of a Pod's name, so that its folder has a name that file systems take.
const POD_NAME_CHARS_MAX: usize = 200;

/// What stands for the Revision of a Pod that clients wrote. No Revision has an underscore in its name.
#[must_use]
pub fn pod_folder(name: &str, uid: &str) -> String {
    let name: String = name.chars().take(POD_NAME_CHARS_MAX).collect();
    format!("pod_{name}_{uid}")
}

/// Names are DNS labels by the time they come here; a path must not depend on that.
pub fn file_name(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' })
        .collect::<String>()
        .replace("..", "__")
}

/// The present log of each instance and sidecar in a Revision's `folder`, oldest instance first, whether it still runs or
/// not.
pub fn current_logs(folder: &Path) -> Vec<PathBuf> {
    let each = |names: Vec<String>| {
        // One that was just replaced has a predecessor only.
        let present = names.into_iter().map(|name| name.trim_end_matches(".1").to_owned());
        present.collect::<BTreeSet<_>>()
    };
    let logs = files_by_instance(folder).unwrap_or_default(); // what cannot be read is not there
    logs.into_values().flat_map(each).map(|name| folder.join(name)).collect()
}

/// The names of all log files in `folder`, by instance.
///
/// # Errors
/// The folder cannot be read.
pub fn files_by_instance(folder: &Path) -> io::Result<BTreeMap<u64, Vec<String>>> {
    let mut logs: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let entries = match fs::read_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(logs), // then there is nothing in it
        entries => entries?,
    };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        if let Some((id, rest)) = name.split_once('.')
            && let Ok(id) = id.parse()
            && format!(".{rest}").trim_end_matches(".1").ends_with(".log")
        {
            logs.entry(id).or_default().push(name);
        }
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_folder() {
        assert_eq!(file_name("../a/b"), "___a_b");
        assert_eq!(file_name("hello-00001"), "hello-00001");
    }

    #[test]
    fn the_logs_that_are_kept_are_named_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["10.log", "9.log", "9.log.1", "9.helper.log.1", "11.log.1", "9.run", "notes.log"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let names = ["9.helper.log", "9.log", "10.log", "11.log"];
        assert_eq!(current_logs(dir.path()), names.map(|name| dir.path().join(name)));
        assert!(current_logs(&dir.path().join("none")).is_empty());
    }
}
