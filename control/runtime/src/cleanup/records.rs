//! Finds and ends the instances of a crashed appliance; those of another running appliance are not touched.
//!
//! An instance's first process dies with us (parent-death signal); its children may not. So each instance
//! has a record, written before it starts: a random mark, which all its processes carry in their
//! environment, and once known its process id with the start time that makes the number unmistakable.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use support::instance_logs::file_name;

use crate::InstanceSpec;
use crate::limits::LEFTOVER_EXIT_TIMEOUT;
use crate::names::instance_id;
use crate::process::host_processes::{self, HostProcess, ProcessIdentity};
use crate::remove_tree::remove_tree;

const EXTENSION: &str = "run";
/// Other users can pass through to a path that they know, and list nothing.
const FOLDER_MODE: u32 = 0o711;
/// Where those are noted that wait for an instance to become: as if of a namespace and a revision, whose names these
/// cannot be.
const PREFORK_DIR: &str = ".waiting/.any";
/// In the folder of a revision that is to be removed once no other process runs an instance of it.
const CLEARED: &str = ".cleared";

/// The records of all instances, under one folder.
#[derive(Debug)]
pub(crate) struct InstanceRecords {
    folder: PathBuf,
}

/// The data that identifies an instance's processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    /// In the environment of each of them; known only to the appliance.
    pub(crate) mark: String,
    /// The first of them.
    #[serde(default)]
    pub(crate) process: Option<ProcessIdentity>,
}

impl InstanceRecords {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        // Logs and volumes of instances are for the appliance, and for each instance what is its own. An instance may begin
        // elsewhere, so the name holds from everywhere.
        let folder = folder.canonicalize()?;
        if let Err(why) = fs::set_permissions(&folder, fs::Permissions::from_mode(FOLDER_MODE)) {
            tracing::warn!(folder = %folder.display(), %why, "other users may read what instances write");
        }
        Ok(Self { folder })
    }

    /// Where everything of one revision is kept.
    pub(crate) fn folder(&self, namespace: &str, revision: &str) -> PathBuf {
        self.namespace(namespace).join(file_name(revision))
    }

    /// The folder of those of one namespace.
    pub(crate) fn namespace(&self, namespace: &str) -> PathBuf {
        self.folder.join(file_name(namespace))
    }

    /// A disk that takes no record must not keep an instance from starting; it only weakens the cleaning up
    /// after a crash.
    pub(crate) fn write(&self, spec: &InstanceSpec, id: u64, record: &InstanceRecord) {
        let folder = self.folder(&spec.namespace, &spec.revision);
        if let Err(why) = write(&folder, &id.to_string(), record) {
            tracing::warn!(folder = %folder.display(), id, %why, "an instance's record cannot be written");
        }
    }

    /// The record of a prefork process, by the name of its control group.
    pub(crate) fn add_prefork(&self, group: &str, record: InstanceRecord) -> RecordGuard {
        let folder = self.folder.join(PREFORK_DIR);
        if let Err(why) = write(&folder, group, &record) {
            tracing::warn!(folder = %folder.display(), group, %why, "a record cannot be written");
        }
        RecordGuard { record, file: folder.join(format!("{group}.{EXTENSION}")) }
    }

    pub(crate) fn remove_record(&self, spec: &InstanceSpec, id: u64) {
        let path = self.folder(&spec.namespace, &spec.revision).join(format!("{id}.{EXTENSION}"));
        if let Err(why) = fs::remove_file(&path)
            && why.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %why, "an instance's record stays behind");
        }
    }

    /// Removes all that is kept of a revision. If another process with ids below `first` still runs an instance of it, that
    /// happens when this one has ended, see [`InstanceRecords::kill_leftovers`]: the instance reads its volumes there.
    pub(crate) fn remove_revision(&self, namespace: &str, revision: &str, first: u64) {
        let folder = self.folder(namespace, revision);
        if records_in(&folder).any(|(_, id)| id < Some(first)) && fs::write(folder.join(CLEARED), "").is_ok() {
            return;
        }
        Self::remove(&folder);
    }

    fn remove(folder: &Path) {
        if let Err(why) = remove_tree(folder)
            && why.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %folder.display(), %why, "a revision's logs stay behind");
        }
    }

    /// Ends every process that a record of an instance still names which `is_left`, and drops those records.
    pub(crate) fn kill_leftovers(&self, is_left: &dyn Fn(u64) -> bool) {
        let (records, files) = self.read_all(is_left);
        let ended = kill_all(&records);
        if ended > 0 {
            tracing::warn!(ended, "ended processes that an earlier run left behind");
        }
        for file in files {
            let _ = fs::remove_file(file); // stays for the next start then, and matches nothing
        }
        for folder in self.revisions().filter(|folder| folder.join(CLEARED).exists()) {
            if records_in(&folder).next().is_none() {
                Self::remove(&folder);
            }
        }
    }

    /// The folders of all revisions, and the one of those that wait.
    fn revisions(&self) -> impl Iterator<Item = PathBuf> {
        entries(&self.folder).flat_map(|namespace| entries(&namespace))
    }

    fn read_all(&self, is_left: &dyn Fn(u64) -> bool) -> (Vec<InstanceRecord>, Vec<PathBuf>) {
        let (mut records, mut files) = (Vec::new(), Vec::new());
        let all = self.revisions().flat_map(|folder| records_in(&folder));
        // A record without an id belongs to no claim.
        for (file, _) in all.filter(|(_, id)| is_left(id.unwrap_or(0))) {
            match fs::read(&file)
                .map_err(|why| why.to_string())
                .and_then(|bytes| serde_json::from_slice::<InstanceRecord>(&bytes).map_err(|why| why.to_string()))
            {
                Ok(record) if !record.mark.is_empty() => records.push(record),
                Ok(_) => {}
                Err(why) => tracing::warn!(file = %file.display(), %why, "unreadable instance record"),
            }
            files.push(file);
        }
        (records, files)
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// The records in the folder of a revision, with the ids of their instances.
fn records_in(folder: &Path) -> impl Iterator<Item = (PathBuf, Option<u64>)> + use<> {
    let records = entries(folder).filter(|file| file.extension().is_some_and(|extension| extension == EXTENSION));
    records.map(|file| {
        let id = file.file_stem().and_then(|name| instance_id(name.to_str()?));
        (file, id)
    })
}

/// Removes its record when it is dropped.
#[derive(Debug)]
pub(crate) struct RecordGuard {
    pub(crate) record: InstanceRecord,
    file: PathBuf,
}

impl Drop for RecordGuard {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file); // one that stays matches no later process
    }
}

impl InstanceRecord {
    /// The record of a process that will start.
    pub(crate) fn new() -> Self {
        Self { mark: uuid::Uuid::new_v4().to_string(), process: None }
    }

    /// A process that is over already has no start time, and needs no record of its number.
    pub(crate) fn with_leader(mut self, pid: Pid) -> Self {
        self.process = host_processes::process(pid.as_raw_nonzero().get()).map(|process| process.identity);
        self
    }
}

fn write(folder: &Path, name: &str, record: &InstanceRecord) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Not synced: the page cache survives our death, and the machine's takes the instance with it.
    let (whole, part) = (folder.join(format!("{name}.{EXTENSION}")), folder.join(format!("{name}.part")));
    // A process that knew the mark of another instance could pass as a part of it.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    fs::rename(part, whole)
}

/// Ends every process that belongs to one of `records`, and waits until they are gone, for a bounded time.
/// Returns how many there were. Blocks.
pub(crate) fn kill_all(records: &[InstanceRecord]) -> usize {
    let began = Instant::now();
    let mut ended = 0;
    if records.is_empty() {
        return ended;
    }
    // A process may start another while we look, so look again until none is left.
    while began.elapsed() < LEFTOVER_EXIT_TIMEOUT {
        let processes = host_processes::list();
        let left = LEFTOVER_EXIT_TIMEOUT.saturating_sub(began.elapsed());
        let found = host_processes::kill(&matching_processes(records, &processes), left);
        if found == 0 {
            break;
        }
        ended += found;
    }
    ended
}

/// The ones of `processes` that belong to one of `records`.
fn matching_processes<'a>(records: &[InstanceRecord], processes: &'a [HostProcess]) -> Vec<&'a ProcessIdentity> {
    let belongs = |process: &HostProcess, record: &InstanceRecord| {
        let leader = record.process.as_ref();
        process.mark.as_ref() == Some(&record.mark)
            || leader == Some(&process.identity)
            // A program may hide its environment; with its leader alive, the session says it too.
            || leader.is_some_and(|leader| {
                process.session == leader.pid && processes.iter().any(|p| p.identity == *leader)
            })
    };
    processes
        .iter()
        .filter(|process| records.iter().any(|record| belongs(process, record)))
        .map(|process| &process.identity)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pid: i32, started: u64, session: i32, mark: Option<&str>) -> HostProcess {
        HostProcess { identity: ProcessIdentity { pid, started }, session, mark: mark.map(Into::into) }
    }

    #[test]
    fn leftover_is_recognized_by_mark_or_identity_not_by_pid() {
        let records = [InstanceRecord { mark: "m".into(), process: Some(ProcessIdentity { pid: 10, started: 5 }) }];
        let pids = |list: &[HostProcess]| Vec::from_iter(matching_processes(&records, list).iter().map(|p| p.pid));

        let leader_alive =
            [seen(10, 5, 10, None), seen(11, 6, 10, None), seen(12, 6, 12, Some("m")), seen(13, 6, 1, None)];
        assert_eq!(pids(&leader_alive), [10, 11, 12]);

        let number_reused = [seen(10, 9, 10, None), seen(11, 9, 10, None), seen(12, 9, 12, Some("other"))];
        assert!(pids(&number_reused).is_empty());
    }

    #[test]
    fn an_unreadable_record_is_dropped_and_harms_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let records = InstanceRecords::open(dir.path()).unwrap();
        let folder = dir.path().join("ns").join("r");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("1.run"), b"\xff{").unwrap();
        fs::write(folder.join("2.run"), br#"{"mark":""}"#).unwrap();
        records.kill_leftovers(&|_| true);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn cleared_revision_stays_while_another_process_runs_it() {
        let dir = tempfile::tempdir().unwrap();
        let records = InstanceRecords::open(dir.path()).unwrap();
        let folder = dir.path().join("ns").join("r");
        fs::create_dir_all(folder.join("volumes")).unwrap();
        fs::write(folder.join("99.run"), br#"{"mark":""}"#).unwrap();
        records.remove_revision("ns", "r", 100);
        records.kill_leftovers(&|id| id < 99);
        assert!(folder.join("volumes").exists(), "the instance 99 reads it");
        records.kill_leftovers(&|id| id < 100);
        assert!(!folder.exists());

        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("100.run"), br#"{"mark":""}"#).unwrap();
        records.remove_revision("ns", "r", 100);
        assert!(!folder.exists(), "an instance of this process is over by then");
    }

    #[test]
    fn a_running_appliance_keeps_the_records_of_its_own_instances() {
        let dir = tempfile::tempdir().unwrap();
        let records = InstanceRecords::open(dir.path()).unwrap();
        let unknown = || InstanceRecord { mark: String::new(), process: None };
        let waiting = ["99-1", "100-1"].map(|group| records.add_prefork(group, unknown()));
        let folder = dir.path().join("ns").join("r");
        fs::create_dir_all(&folder).unwrap();
        for id in [1, 99, 100, 101] {
            fs::write(folder.join(format!("{id}.run")), br#"{"mark":""}"#).unwrap();
        }
        records.kill_leftovers(&|id| id < 100);
        let mut left: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["100.run", "101.run"]);
        assert_eq!(waiting.each_ref().map(|noted| noted.file.exists()), [false, true]);
        let [_, own] = waiting.map(|noted| noted.file.clone());
        assert!(!own.exists(), "held by nobody");
    }
}
