//! The termination message of an instance (`terminationMessagePath`).
//!
//! Each instance has its own file next to its log. It is bound to the path that the manifest names where mounts
//! are allowed; in any case the variable [`VARIABLE`] names it. A path of the host is never read: it would reveal to a
//! developer every file that the appliance may read.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::InstanceCredentials;
use crate::limits::TERMINATION_BYTES_MAX;

/// Where the program finds the file.
pub(crate) const VARIABLE: &str = "SLUICEGATE_TERMINATION_LOG";
/// Only for the instance's user: another user's message would end up in the Service's status.
const MODE: u32 = 0o600;

/// The file of one instance.
#[derive(Debug, Clone)]
pub(crate) struct TerminationMessage {
    path: PathBuf,
}

impl TerminationMessage {
    /// `folder` is the revision's.
    pub(crate) fn new(folder: &Path, id: u64) -> Self {
        Self { path: folder.join(format!("{id}.termination")) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file, empty, for an instance with this identity.
    pub(crate) fn create(&self, identity: &InstanceCredentials) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        self.remove(); // nothing that is there, a link least of all, is written through
        let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&self.path)?;
        if identity.user.is_some() || identity.group.is_some() {
            fchown(&file, identity.user, identity.group)?;
        }
        Ok(())
    }

    /// The instance's message; empty if there is none, or if it was not written to this file.
    pub(crate) fn read(&self) -> String {
        let mut bytes = Vec::new();
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        // Nonblocking: a program may have put a pipe there.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nofollow | nonblock).open(&self.path);
        let _ = file.and_then(|file| file.take(TERMINATION_BYTES_MAX).read_to_end(&mut bytes)); // as far as it goes
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    pub(crate) fn remove(&self) {
        if let Err(why) = fs::remove_file(&self.path)
            && why.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %why, "an instance's termination message cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn words_are_read_up_to_their_limit_and_never_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let words = TerminationMessage::new(dir.path(), 7);
        assert_eq!(words.read(), "");
        words.create(&InstanceCredentials::default()).unwrap();
        assert_eq!(words.read(), "");
        fs::write(words.path(), "out of coffee\n").unwrap();
        assert_eq!(words.read(), "out of coffee");
        fs::write(words.path(), "x".repeat(10_000)).unwrap();
        assert_eq!(words.read().len() as u64, TERMINATION_BYTES_MAX);

        words.remove();
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, words.path()).unwrap();
        assert_eq!(words.read(), "");
        words.create(&InstanceCredentials::default()).unwrap();
        assert!(fs::symlink_metadata(words.path()).unwrap().is_file());
        words.remove();
        words.remove();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    }

    #[test]
    fn termination_file_is_for_the_instances_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let words = TerminationMessage::new(dir.path(), 7);
        let of = |identity: &InstanceCredentials| {
            words.create(identity).unwrap();
            let there = fs::metadata(words.path()).unwrap();
            (there.mode() & 0o777, there.uid(), there.gid())
        };
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(of(&InstanceCredentials::default()), (0o600, user, group));
        if user == 0 {
            let other = InstanceCredentials { user: Some(65_532), group: Some(7), ..InstanceCredentials::default() };
            assert_eq!(of(&other), (0o600, 65_532, 7));
        }
    }
}
