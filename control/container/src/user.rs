//! The user of a container's process: from the manifest or the image, resolved by the image's own `/etc/passwd` and
//! `/etc/group` (RT-USER-01).
//!
//! As Docker and containerd read it: `USER[:GROUP]`, each a name or a number. A number needs no entry.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::limits::{GROUPS_MAX, USER_DATABASE_BYTES_MAX};
use crate::targets::open_in_root;

/// The user as the image and the manifest specify it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserSpec {
    /// The image's `USER`; empty: root.
    pub image: String,
    /// `runAsUser` and `runAsGroup` win over it.
    pub run_as_user: Option<u32>,
    pub run_as_group: Option<u32>,
    /// A container that would be root is not started.
    pub run_as_non_root: bool,
    /// In addition to those of the user.
    pub supplemental_groups: Vec<u32>,
}

/// The same in the kernel's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessCredentials {
    pub uid: u32,
    pub gid: u32,
    /// With `gid`, so that a rule about that group cannot be evaded by leaving it.
    pub groups: Vec<u32>,
    pub home: String,
}

/// Looks `spec` up below `root`.
pub(crate) fn resolve(root: &OwnedFd, spec: &UserSpec) -> Result<ProcessCredentials, String> {
    let read =
        |path: &str| read_database(root, path).map_err(|why| format!("{path} of the image cannot be read: {why}"));
    resolve_in(spec, &read("/etc/passwd")?, &read("/etc/group")?)
}

/// The number of an image's user, before the image is mounted: of its `layers`, the top-most one with an `/etc/passwd` counts,
/// as it will in the container. `None` if there is no such user.
#[must_use]
pub fn number_in_layers(user: &str, layers: &[PathBuf]) -> Option<u32> {
    let name = user.split(':').next().unwrap_or_default();
    let passwd = layers.iter().rev().find_map(|layer| {
        let root = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        read_database(&root, "/etc/passwd").ok().filter(|text| !text.is_empty())
    });
    let passwd = passwd.unwrap_or_default();
    passwd_entries(&passwd).find(|entry| entry.name == name).map(|entry| entry.uid).or_else(|| name.parse().ok())
}

fn resolve_in(spec: &UserSpec, passwd: &str, group: &str) -> Result<ProcessCredentials, String> {
    let (image_user, image_group) = spec.image.split_once(':').unwrap_or((&spec.image, ""));
    let image_user = if image_user.is_empty() { "0" } else { image_user };
    // A number in the manifest is never looked up as a name: an image could have a user with that name and uid 0.
    let (user, number, by_name) = match spec.run_as_user {
        Some(uid) => (uid.to_string(), Some(uid), None),
        None => (
            image_user.to_owned(),
            image_user.parse::<u32>().ok(),
            passwd_entries(passwd).find(|entry| entry.name == image_user),
        ),
    };
    let entry = by_name.or_else(|| passwd_entries(passwd).find(|entry| Some(entry.uid) == number));
    let (uid, own_gid, home, name) = match (&entry, number) {
        (Some(entry), _) => (entry.uid, entry.gid, entry.home, Some(entry.name)),
        (None, Some(uid)) => (uid, 0, "/", None),
        (None, None) => {
            return Err(format!("user {user} is not in /etc/passwd of the image; set runAsUser or USER to a number"));
        }
    };
    let gid = match (spec.run_as_group, spec.run_as_user) {
        (Some(gid), _) => gid,
        // The group of the image belongs to its user: another user does not get it, as in Kubernetes.
        (None, Some(_)) => own_gid,
        (None, None) if image_group.is_empty() => own_gid,
        (None, None) => {
            let known = group_entries(group).find(|entry| entry.name == image_group).map(|entry| entry.gid);
            known.or_else(|| image_group.parse().ok()).ok_or_else(|| {
                format!("group {image_group} is not in /etc/group of the image; set runAsGroup or USER to a number")
            })?
        }
    };
    if spec.run_as_non_root && uid == 0 {
        return Err(
            "runAsNonRoot is set and the container would be root: set runAsUser, or USER in the image".to_owned()
        );
    }
    let member_of =
        group_entries(group).filter(|entry| name.is_some_and(|name| entry.members.split(',').any(|one| one == name)));
    let mut groups: Vec<u32> = std::iter::once(gid)
        .chain(member_of.map(|entry| entry.gid))
        .chain(spec.supplemental_groups.iter().copied())
        .collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.len() > GROUPS_MAX {
        return Err(format!("user {user} is in {} groups, limit {GROUPS_MAX}", groups.len()));
    }
    let home = if home.is_empty() { "/" } else { home }.to_owned();
    Ok(ProcessCredentials { uid, gid, groups, home })
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

/// Leaves out malformed lines, as libc does.
fn passwd_entries(text: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, uid, gid) = (fields.next()?, fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        let home = fields.nth(1).unwrap_or_default();
        (!name.is_empty()).then_some(PasswdEntry { name, uid, gid, home })
    })
}

fn group_entries(text: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, gid) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        (!name.is_empty()).then_some(GroupEntry { name, gid, members: fields.next().unwrap_or_default() })
    })
}

/// Empty if the image has none.
fn read_database(root: &OwnedFd, path: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match open_in_root(root, Path::new(path), flags) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(String::new()),
        opened => opened?,
    };
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(USER_DATABASE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > USER_DATABASE_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {USER_DATABASE_BYTES_MAX} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken line\napp:x:1000:1001::/home/app:/bin/sh\n1234:x:77:78::/n:\n";
    const GROUP: &str = "root:x:0:\napp:x:1001:\nstaff:x:50:other,app\nlog:x:60:app\n";

    fn resolved(spec: UserSpec) -> Result<(u32, u32, Vec<u32>, String), String> {
        resolve_in(&spec, PASSWD, GROUP).map(|it| (it.uid, it.gid, it.groups, it.home))
    }

    fn image(user: &str) -> UserSpec {
        UserSpec { image: user.into(), ..UserSpec::default() }
    }

    #[test]
    fn user_of_image_is_looked_up_in_image() {
        for (user, uid, gid, groups, home) in [
            ("", 0, 0, vec![0], "/root"),
            ("app", 1000, 1001, vec![50, 60, 1001], "/home/app"),
            ("1000", 1000, 1001, vec![50, 60, 1001], "/home/app"),
            ("app:staff", 1000, 50, vec![50, 60], "/home/app"),
            ("app:7", 1000, 7, vec![7, 50, 60], "/home/app"),
            ("4242", 4242, 0, vec![0], "/"),
            ("4242:4343", 4242, 4343, vec![4343], "/"),
            ("1234", 77, 78, vec![78], "/n"), // a name of digits is a name first
        ] {
            assert_eq!(resolved(image(user)).unwrap(), (uid, gid, groups, home.to_owned()), "{user}");
        }
        assert!(resolved(image("nobody")).unwrap_err().contains("nobody is not in /etc/passwd"));
        assert!(resolved(image("app:wheel")).unwrap_err().contains("wheel is not in /etc/group"));
        assert!(resolved(image("-1")).is_err() && resolved(image("4294967296")).is_err());
    }

    /// RT-USER-01
    #[test]
    fn manifest_wins_over_image_user() {
        let spec = UserSpec { run_as_user: Some(1000), ..image("root:log") };
        assert_eq!(resolved(spec.clone()).unwrap().1, 1001);
        assert_eq!(resolved(UserSpec { run_as_group: Some(9), ..spec }).unwrap().1, 9);
        let spec = UserSpec { supplemental_groups: vec![5, 60], ..image("app") };
        assert_eq!(resolved(spec).unwrap().2, [5, 50, 60, 1001]);
    }

    /// An image cannot turn `runAsUser: 1234` into root by a user that is called `1234`.
    #[test]
    fn manifest_number_is_not_looked_up_as_name() {
        let spec = UserSpec { run_as_user: Some(1234), run_as_group: Some(9), ..UserSpec::default() };
        let passwd = "1234:x:0:0::/root:\nnine:x:9:9::/nine:\n";
        let found = resolve_in(&spec, passwd, "9:x:0:\n").unwrap();
        assert_eq!((found.uid, found.gid, found.groups, found.home), (1234, 9, vec![9], "/".to_owned()));
        let spec = UserSpec { run_as_group: None, ..spec };
        assert_eq!(resolved(spec).unwrap(), (1234, 0, vec![0], "/".to_owned()));
    }

    #[test]
    fn number_of_image_user_is_that_of_the_top_layer() {
        let folder = tempfile::tempdir().unwrap();
        let layer = |name: &str, passwd: Option<&str>| {
            let layer = folder.path().join(name);
            std::fs::create_dir_all(layer.join("etc")).unwrap();
            passwd.iter().for_each(|text| std::fs::write(layer.join("etc/passwd"), text).unwrap());
            layer
        };
        let layers = [layer("a", Some("app:x:7:7::/:\n")), layer("b", Some(PASSWD)), layer("c", None)];
        assert_eq!(number_in_layers("app:staff", &layers), Some(1000));
        assert_eq!(number_in_layers("4242", &layers), Some(4242));
        assert_eq!(number_in_layers("nobody", &layers), None);
        assert_eq!(number_in_layers("", &layers), None, "the appliance's own: root");
    }

    /// RT-USER-05
    #[test]
    fn run_as_non_root_judges_image_user() {
        let never_root = |user: &str| UserSpec { run_as_non_root: true, ..image(user) };
        assert!(resolved(never_root("")).is_err() && resolved(never_root("root")).is_err());
        assert_eq!(resolved(never_root("app")).unwrap().0, 1000);
        assert_eq!(resolved(UserSpec { run_as_user: Some(1000), ..never_root("root") }).unwrap().0, 1000);
    }

    #[test]
    fn image_without_databases_has_numbers_only() {
        assert_eq!(resolve_in(&image("12:13"), "", "").unwrap().gid, 13);
        assert_eq!(resolve_in(&image(""), "", "").unwrap().uid, 0);
        assert!(resolve_in(&image("app"), "", "").is_err());
    }
}
