//! Detects changes of manifests, by inotify.
//!
//! A folder is watched for its files and a path's parent for the path itself: editors replace files by
//! renaming others over them, and a mounted ConfigMap replaces a whole folder behind a symlink.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use tokio::io::Interest as Readiness;
use tokio::io::unix::AsyncFd;

/// Bytes of news taken at a time; one piece has at most 272.
const EVENT_BUFFER_BYTES: usize = 4096;
/// A mounted ConfigMap turns its files over by renaming `..data`.
const ATOMIC_SWAP_PREFIX: &[u8] = b"..";

#[derive(Debug)]
pub(super) struct ManifestWatch {
    inotify: AsyncFd<OwnedFd>,
    watched: RefCell<HashMap<i32, WatchedNames>>,
}

/// The watched events of a folder.
#[derive(Debug, Default)]
struct WatchedNames {
    all: bool,
    names: Vec<OsString>,
}

impl ManifestWatch {
    /// Must be called in a Tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let news = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "the new one is unsafe; an OwnedFd keeps its descriptor, which is all it asks")]
        let inotify = AsyncFd::with_interest(news, Readiness::READABLE)?;
        Ok(Self { inotify, watched: RefCell::default() })
    }

    /// Watches what the path is now. Asking again does no harm, and is needed after each change: what is
    /// there now may be another folder of the same name.
    pub(super) fn watch_path(&self, path: &Path) -> io::Result<()> {
        let real = path.canonicalize().ok().filter(|real| real != path);
        for path in [Some(path), real.as_deref()].into_iter().flatten() {
            if path.is_dir() {
                self.add(path, |interest| interest.all = true)?;
            }
            let Some(name) = path.file_name() else { continue };
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            self.add(parent.unwrap_or(Path::new(".")), |interest| {
                if !interest.names.iter().any(|known| known == name) {
                    interest.names.push(name.to_owned());
                }
            })?;
        }
        Ok(())
    }

    fn add(&self, folder: &Path, note: impl FnOnce(&mut WatchedNames)) -> io::Result<()> {
        // One set of flags for all: the kernel keeps one per folder, and the last one wins.
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let number = add_watch(self.inotify.get_ref(), folder, flags)?;
        note(self.watched.borrow_mut().entry(number).or_default());
        Ok(())
    }

    /// Ends when something that matters has changed; all news until then are taken.
    pub(super) async fn changed(&self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let matters = self.read_events()?;
            ready.clear_ready();
            if matters {
                return Ok(());
            }
        }
    }

    fn read_events(&self) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
        let mut reader = Reader::new(self.inotify.get_ref(), &mut space);
        let mut matters = false;
        loop {
            match reader.next() {
                Ok(news) => {
                    let name = news.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    matters |= self.is_relevant(news.wd(), news.events(), name);
                }
                Err(Errno::AGAIN) => return Ok(matters),
                Err(Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }

    fn is_relevant(&self, number: i32, what: ReadFlags, name: Option<&OsStr>) -> bool {
        let mut interests = self.watched.borrow_mut();
        if what.contains(ReadFlags::IGNORED) {
            interests.remove(&number); // the folder is gone, and its number may become another's
            return true;
        }
        // Without a name: the folder itself, or that news were lost.
        let Some(name) = name else { return true };
        interests.get(&number).is_some_and(|interest| {
            interest.all || interest.names.iter().any(|n| n == name) || name.as_bytes().starts_with(ATOMIC_SWAP_PREFIX)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_notified(watch: &ManifestWatch) -> bool {
        tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.is_ok()
    }

    /// Whether there is news now: the kernel queues it before the call that caused it returns.
    fn is_quiet(watch: &ManifestWatch) -> bool {
        !watch.read_events().unwrap()
    }

    #[tokio::test]
    async fn files_of_a_folder_matter_however_they_are_written() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("manifests");
        std::fs::create_dir(&folder).unwrap();
        let watch = ManifestWatch::new().unwrap();
        watch.watch_path(&folder).unwrap();
        assert!(is_quiet(&watch));
        std::fs::write(folder.join("a.yaml"), "a").unwrap();
        assert!(is_notified(&watch).await);
        std::fs::write(home.path().join("new"), "b").unwrap();
        assert!(is_quiet(&watch), "what stands beside the folder does not matter");
        std::fs::rename(home.path().join("new"), folder.join("a.yaml")).unwrap();
        assert!(is_notified(&watch).await);
        std::fs::remove_file(folder.join("a.yaml")).unwrap();
        assert!(is_notified(&watch).await);

        std::fs::rename(&folder, home.path().join("old")).unwrap();
        std::fs::create_dir(&folder).unwrap();
        assert!(is_notified(&watch).await, "another folder of the same name");
        watch.watch_path(&folder).unwrap();
        std::fs::write(folder.join("a.yaml"), "c").unwrap();
        assert!(is_notified(&watch).await);
    }

    #[tokio::test]
    async fn one_file_matters_and_its_neighbours_do_not() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("a.yaml");
        let watch = ManifestWatch::new().unwrap();
        watch.watch_path(&file).unwrap();
        std::fs::write(home.path().join("b.yaml"), "b").unwrap();
        assert!(is_quiet(&watch));
        std::fs::rename(home.path().join("b.yaml"), &file).unwrap();
        assert!(is_notified(&watch).await);
    }

    /// How a ConfigMap is mounted: `a.yaml` → `..data/a.yaml`, `..data` → a folder that is replaced.
    #[tokio::test]
    async fn a_folder_that_is_turned_over_behind_a_symlink_matters() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("..1")).unwrap();
        std::fs::write(home.path().join("..1/a.yaml"), "a").unwrap();
        symlink("..1", home.path().join("..data")).unwrap();
        symlink("..data/a.yaml", home.path().join("a.yaml")).unwrap();
        let watch = ManifestWatch::new().unwrap();
        watch.watch_path(&home.path().join("a.yaml")).unwrap();
        symlink("..2", home.path().join("..tmp")).unwrap();
        std::fs::rename(home.path().join("..tmp"), home.path().join("..data")).unwrap();
        assert!(is_notified(&watch).await);
    }
}
