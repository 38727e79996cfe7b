//! Notices that the config file, or a file that a setting names, has changed.
//!
//! The folder of each file is watched: editors replace files by renaming others over them, and a mounted ConfigMap replaces a whole
//! folder behind a symlink.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::MainEvent;
use crate::config::{RunConfig, Settings};

/// Bytes of events read at a time; one event has at most 272.
const EVENT_BUFFER_BYTES: usize = 4096;

/// A change is reported when the files have been quiet for this long: an editor or a copy writes several times.
const DEBOUNCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
/// After this long the files are read although the folder still changes.
const DEBOUNCE_MAX: Duration = Duration::from_secs(3);

/// A mounted ConfigMap replaces its files by renaming `..data`.
const ATOMIC_SWAP_PREFIX: &[u8] = b"..";

/// The files that are watched. Without it only changes are not noticed; SIGHUP works.
#[derive(Default)]
pub(super) struct ConfigWatch(Option<Arc<FileWatch>>);

impl ConfigWatch {
    /// Watches the files of these settings. Without a config file, what the command line names is read again at SIGHUP only.
    pub(super) fn start(settings: &Settings, config: &RunConfig, say: mpsc::Sender<MainEvent>) -> Self {
        if settings.config.is_none() {
            return Self::default();
        }
        let started = FileWatch::new().and_then(|watch| {
            watch.add(watched_files(settings, config))?;
            let watch = Arc::new(watch);
            let watched = Arc::clone(&watch);
            let run = move || watched.run(&say);
            std::thread::Builder::new().name("config-watch".to_owned()).spawn(run).context("no thread")?;
            Ok(watch)
        });
        match started {
            Ok(watch) => Self(Some(watch)),
            Err(why) => {
                warn(&why);
                Self::default()
            }
        }
    }

    /// Watches the files that the settings name now, too.
    pub(super) fn add(&self, settings: &Settings, config: &RunConfig) {
        if let Some(Err(why)) = self.0.as_ref().map(|watch| watch.add(watched_files(settings, config))) {
            warn(&why);
        }
    }
}

fn warn(why: &anyhow::Error) {
    let why = format!("{why:#}");
    tracing::warn!(why, "changes of the config file are not noticed; send SIGHUP after a change");
}

fn watched_files(settings: &Settings, config: &RunConfig) -> impl Iterator<Item = PathBuf> {
    let certificates = config.certificates.iter().flat_map(|rule| [rule.certificate.clone(), rule.key.clone()]);
    let authorities = config.routes.iter().filter_map(|rule| Some(rule.tls.as_ref()?.authorities.clone()));
    let services = config.routes.iter().filter_map(|rule| rule.forward_auth.as_ref()?.tls.as_ref());
    let authorities = authorities.chain(services.map(|tls| tls.authorities.clone()));
    let credentials = config.routes.iter().filter_map(|rule| rule.authentication.as_ref());
    let credentials = credentials.flat_map(|rule| rule.files().cloned());
    let pages = config.gateway.error_pages.iter().map(|rule| rule.file.clone());
    settings.config.clone().into_iter().chain(certificates).chain(authorities).chain(credentials).chain(pages)
}

struct FileWatch {
    inotify: OwnedFd,
    /// The names that matter, by the number of their folder's watch.
    names: Mutex<BTreeMap<i32, BTreeSet<OsString>>>,
}

impl FileWatch {
    fn new() -> Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).context("inotify")?;
        Ok(Self { inotify, names: Mutex::default() })
    }

    /// Watches the folders of these files. A folder that is watched already stays so.
    fn add(&self, files: impl Iterator<Item = PathBuf>) -> Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        for file in files {
            let real = file.canonicalize().ok().filter(|real| *real != file);
            for file in [Some(file.as_path()), real.as_deref()].into_iter().flatten() {
                let Some(name) = file.file_name() else { continue };
                let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let added = inotify::add_watch(&self.inotify, folder, flags);
                let number = added.with_context(|| folder.display().to_string())?;
                self.names().entry(number).or_default().insert(name.to_owned());
            }
        }
        Ok(())
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<i32, BTreeSet<OsString>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports each change, until the main thread is gone.
    fn run(&self, say: &mpsc::Sender<MainEvent>) {
        loop {
            let mut has_changed = false;
            while !has_changed {
                if !self.wait(None) {
                    return;
                }
                has_changed = self.read_events();
            }
            // A folder that changes all the time must not put the reload off for ever.
            let began = Instant::now();
            while began.elapsed() < DEBOUNCE_MAX && self.wait(Some(&DEBOUNCE)) {
                self.read_events();
            }
            if say.send(MainEvent::Reload).is_err() {
                return;
            }
        }
    }

    /// Whether there are events, before `timeout`.
    fn wait(&self, timeout: Option<&Timespec>) -> bool {
        loop {
            let mut state = [PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN)];
            match poll(&mut state, timeout) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Reads all events. Returns whether one matters.
    fn read_events(&self) -> bool {
        let mut space = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut space);
        let mut matters = false;
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::IGNORED) {
                self.names().remove(&event.wd()); // the folder was deleted, as the old one of a ConfigMap is
            }
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            matters |= match name {
                // The folder itself, or events were lost.
                None => true,
                Some(name) => {
                    name.as_bytes().starts_with(ATOMIC_SWAP_PREFIX)
                        || self.names().get(&event.wd()).is_some_and(|names| names.contains(&name))
                }
            };
        }
        matters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_matters_and_its_neighbours_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sluicegate.toml");
        std::fs::write(&file, "a").unwrap();
        let watch = FileWatch::new().unwrap();
        watch.add(std::iter::once(file.clone())).unwrap();
        std::fs::write(folder.path().join("other"), "b").unwrap();
        assert!(!watch.read_events());
        std::fs::rename(folder.path().join("other"), &file).unwrap();
        assert!(watch.read_events());
        std::fs::write(&file, "c").unwrap();
        assert!(watch.read_events() && !watch.read_events());
    }
}
