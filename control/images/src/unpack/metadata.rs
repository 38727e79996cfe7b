//! Owner, mode, times and extended attributes of an entry.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;
use tar::Entry;

/// The key of an extended attribute in PAX headers, as GNU tar, Go and all builders of images write it.
const XATTR_PREFIX: &str = "SCHILY.xattr.";
/// The kernel's own limit for one value.
const XATTR_BYTES_MAX: usize = 64 << 10;
const CAPABILITY_ATTRIBUTE: &str = "security.capability";
/// With the mount option `userxattr` overlayfs reads these, so that a layer must not set them.
const OVERLAY_PREFIX: &str = "user.overlay.";

#[derive(Debug, Clone)]
pub(super) struct Metadata {
    owner: Uid,
    group: Gid,
    mode: Mode,
    pub(super) modified: Timespec,
    attributes: Vec<(String, Vec<u8>)>,
}

impl Metadata {
    /// The metadata in the headers of `entry`; or the reason why it is invalid.
    pub(super) fn read(entry: &mut Entry<'_, impl io::Read>) -> Result<Self, String> {
        let mut modified = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut attributes = Vec::new();
        let mut modified_text = None;
        if let Some(extensions) = entry.pax_extensions().map_err(|why| why.to_string())? {
            for extension in extensions {
                let extension = extension.map_err(|why| why.to_string())?;
                let Ok(key) = extension.key() else { continue };
                if key.starts_with("GNU.sparse.") {
                    return Err("sparse files in PAX form are not supported; build the layer without them".into());
                }
                if key == "mtime" {
                    modified_text = extension.value().ok().map(str::to_owned);
                }
                if let Some(name) = key.strip_prefix(XATTR_PREFIX).filter(|name| is_allowed(name)) {
                    attributes.push((name.to_owned(), extension.value_bytes().to_vec()));
                }
            }
        }
        if let Some((name, _)) = attributes.iter().find(|(_, value)| value.len() > XATTR_BYTES_MAX) {
            return Err(format!("its attribute {name} is longer than {XATTR_BYTES_MAX} bytes"));
        }
        let header = entry.header();
        let number = |field: &[u8], value: io::Result<u64>| match value {
            // Some builders leave a field empty, which means zero.
            Err(_) if field.iter().all(|byte| matches!(byte, 0 | b' ')) => Ok(0),
            value => {
                let value = value.ok().and_then(|value| u32::try_from(value).ok());
                value.filter(|id| *id != u32::MAX).ok_or("its owner or mode is not a valid number")
            }
        };
        let fields = header.as_old();
        match modified_text.as_deref().and_then(timestamp) {
            Some(time) => modified = time,
            None => modified.tv_sec = header.mtime().map(|time| i64::try_from(time).unwrap_or(0)).unwrap_or(0),
        }
        Ok(Self {
            owner: Uid::from_raw(number(&fields.uid, header.uid())?),
            group: Gid::from_raw(number(&fields.gid, header.gid())?),
            mode: Mode::from_raw_mode(number(&fields.mode, header.mode().map(u64::from))? & 0o7777),
            modified,
            attributes,
        })
    }

    /// Sets all on an open file or folder. The owner first: a change of it clears setuid bits and capabilities.
    pub(super) fn apply(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        fchown(file, Some(self.owner), Some(self.group))?;
        fchmod(file, self.mode)?;
        for (name, value) in &self.attributes {
            match fsetxattr(file, name.as_str(), value, XattrFlags::empty()) {
                // Not every file system has attributes of users; nothing that an image needs to run is in them.
                Err(Errno::OPNOTSUPP) if name != CAPABILITY_ATTRIBUTE => {}
                set => set?,
            }
        }
        futimens(file, &self.times())?;
        Ok(())
    }

    /// Sets owner and times of what cannot be opened: a link or a FIFO.
    pub(super) fn apply_at(&self, folder: BorrowedFd<'_>, name: &[u8], is_link: bool) -> io::Result<()> {
        chownat(folder, name, Some(self.owner), Some(self.group), AtFlags::SYMLINK_NOFOLLOW)?;
        if !is_link {
            rustix::fs::chmodat(folder, name, self.mode, AtFlags::empty())?;
        }
        Ok(utimensat(folder, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn times(&self) -> Timestamps {
        times(self.modified)
    }
}

fn times(modified: Timespec) -> Timestamps {
    Timestamps { last_access: modified, last_modification: modified }
}

pub(super) fn set_times(file: impl AsFd, modified: Timespec) -> io::Result<()> {
    Ok(futimens(file, &times(modified))?)
}

fn is_allowed(name: &str) -> bool {
    name == CAPABILITY_ATTRIBUTE || (name.starts_with("user.") && !name.starts_with(OVERLAY_PREFIX))
}

/// `SECONDS[.FRACTION]`, before 1970 with a sign.
fn timestamp(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let tv_sec: i64 = seconds.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let tv_nsec: i64 = digits.parse().ok().filter(|nanoseconds| (0..1_000_000_000).contains(nanoseconds))?;
    match (seconds.starts_with('-'), tv_nsec) {
        (true, 1..) => Some(Timespec { tv_sec: tv_sec.checked_sub(1)?, tv_nsec: (1_000_000_000 - tv_nsec) as _ }),
        _ => Some(Timespec { tv_sec, tv_nsec: tv_nsec as _ }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_pax_headers_have_fractions() {
        let parts = |text| timestamp(text).map(|time| (time.tv_sec, time.tv_nsec));
        assert_eq!(parts("12"), Some((12, 0)));
        assert_eq!(parts("12.5"), Some((12, 500_000_000)));
        assert_eq!(parts("12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(parts("-1.5"), Some((-2, 500_000_000)));
        assert_eq!(parts("x"), None);
        assert_eq!(parts("1.-5"), None);
    }

    #[test]
    fn attributes_of_overlayfs_are_not_allowed() {
        assert!(is_allowed("security.capability") && is_allowed("user.mime"));
        for name in ["trusted.overlay.opaque", "user.overlay.opaque", "security.selinux", "system.posix_acl_access"] {
            assert!(!is_allowed(name), "{name}");
        }
    }
}
