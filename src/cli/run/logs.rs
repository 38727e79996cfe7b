//! Which core owns which log: core N writes `log/core-N`, and logs of an earlier run with more cores are
//! distributed among the existing ones, to be delivered.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use ::control::store::ObjectStore;
use anyhow::{Context, Result, anyhow};
use dataplane::broker::limits::REMOVAL_DELAY;
use dataplane::broker::server::OpenLog;
use wal::LogOptions;

use crate::config::RunConfig;

/// One core's logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CoreLogFolders {
    pub(super) own: PathBuf,
    /// Logs of cores that no longer exist.
    pub(super) others: Vec<PathBuf>,
}

impl CoreLogFolders {
    fn open(&self, options: &LogOptions) -> Result<CoreLogs> {
        let open = |folder: &PathBuf| {
            let options = LogOptions { seed: fastrand::u64(..), ..options.clone() };
            OpenLog::open(folder, options).with_context(|| format!("the log {}", folder.display()))
        };
        let others = self.others.iter().map(open).collect::<Result<_>>()?;
        let folders = [&self.own].into_iter().chain(&self.others).cloned().collect();
        Ok(CoreLogs { folders, own: open(&self.own)?, others })
    }
}

/// One core's logs, open.
pub(super) struct CoreLogs {
    /// Their folders.
    pub(super) folders: Vec<PathBuf>,
    pub(super) own: OpenLog,
    pub(super) others: Vec<OpenLog>,
}

/// Logs being opened: each core's on a thread of its own, in parallel to the rest of the start.
pub(super) struct OpeningLogs {
    threads: Vec<JoinHandle<Result<CoreLogs>>>,
    /// The folder to check at a start without objects.
    unowned: Option<PathBuf>,
}

impl OpeningLogs {
    pub(super) fn start(config: &RunConfig) -> Result<Self> {
        let begin = |home: CoreLogFolders| {
            let options = config.log.clone();
            let thread = std::thread::Builder::new().name("log-open".to_owned());
            thread.spawn(move || home.open(&options)).context("no thread to open a log")
        };
        let knows_objects = config.kubeconfig.is_some() || ObjectStore::exists(&config.data);
        let threads = assign(&config.data, config.workers)?.into_iter().map(begin).collect::<Result<_>>()?;
        Ok(Self { threads, unowned: (!knows_objects).then(|| config.data.clone()) })
    }

    /// Each core's, in their order.
    pub(super) fn finish(self) -> Result<Vec<CoreLogs>> {
        let finish = |thread: JoinHandle<Result<CoreLogs>>| {
            thread.join().map_err(|_| anyhow!("opening a log panicked; see its message above"))?
        };
        let logs: Vec<CoreLogs> = self.threads.into_iter().map(finish).collect::<Result<_>>()?;
        if let Some(data) = &self.unowned {
            log_unowned(data, &logs);
        }
        Ok(logs)
    }
}

/// A start without any object, while the logs show that there were some: the operator has time to put a
/// misplaced store back.
fn log_unowned(data: &Path, logs: &[CoreLogs]) {
    let all = logs.iter().flat_map(|logs| [&logs.own].into_iter().chain(&logs.others));
    let streams: usize = all.map(OpenLog::streams).sum();
    if streams > 0 {
        tracing::error!(
            data = %data.display(),
            streams,
            "there is no objects.redb, so the Brokers and channels of the events in log/ are unknown: if the file was misplaced, \
             stop now and put it back; undelivered events are dropped {REMOVAL_DELAY:?} after this start"
        );
    }
}

/// Events are confidential: other users of the host, and instances that run as such, must not read them.
fn restrict_permissions(folder: &Path) {
    if let Err(why) = fs::set_permissions(folder, fs::Permissions::from_mode(0o700)) {
        tracing::warn!(folder = %folder.display(), %why, "other users may read the events in the log");
    }
}

fn assign(data: &Path, cores: usize) -> Result<Vec<CoreLogFolders>> {
    let folder = data.join("log");
    let failed = || format!("log folder {}", folder.display());
    fs::create_dir_all(&folder).with_context(failed)?;
    restrict_permissions(&folder);
    let folder_of = |core: usize| folder.join(format!("core-{core}"));
    let mut core_folders: Vec<CoreLogFolders> =
        (0..cores).map(|core| CoreLogFolders { own: folder_of(core), others: Vec::new() }).collect();

    let mut left_over = Vec::new();
    for entry in fs::read_dir(&folder).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name();
        left_over.extend(number(&name).filter(|core| *core >= cores && folder_of(*core).is_dir()));
    }
    left_over.sort_unstable();
    for core in left_over {
        core_folders[core % cores].others.push(folder_of(core));
    }
    Ok(core_folders)
}

/// The log's number, by its folder's name.
fn number(name: &OsStr) -> Option<usize> {
    name.to_str()?.strip_prefix("core-")?.parse().ok()
}

/// All cores' logs in the order of their numbers: those of cores that no longer exist come last. None is
/// ever deleted, so that a log's index here is its number, whatever the number of cores.
pub(super) fn by_number(mut folders: Vec<PathBuf>) -> Vec<PathBuf> {
    folders.sort_by_key(|folder| folder.file_name().and_then(number));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_missing_cores_are_distributed() {
        let data = tempfile::tempdir().unwrap();
        for core in 0..5 {
            fs::create_dir_all(data.path().join(format!("log/core-{core}"))).unwrap();
        }
        fs::write(data.path().join("log/core-9"), "a file, and no log").unwrap();

        let core_folders = assign(data.path(), 2).unwrap();

        let numbers = |home: &CoreLogFolders| {
            let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
            (name(&home.own), home.others.iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&core_folders[0]), ("core-0".into(), vec!["core-2".into(), "core-4".into()]));
        assert_eq!(numbers(&core_folders[1]), ("core-1".into(), vec!["core-3".into()]));

        let all = core_folders.into_iter().flat_map(|home| [home.own].into_iter().chain(home.others));
        let folder_of = |core: usize| data.path().join(format!("log/core-{core}"));
        assert_eq!(by_number(all.collect()), (0..5).map(folder_of).collect::<Vec<_>>());
    }

    /// A folder of an earlier version is restricted too.
    #[test]
    fn log_folders_are_restricted_to_owner() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("log");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assign(data.path(), 1).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
