//! The tarball: the layout of the packages below one folder, and the same bytes each time.

use std::fs;
use std::process::Command;

use super::staged::{INSTALLED, StagedFiles, VERSION, succeeds};

#[test]
fn tarball_has_layout_of_packages_and_is_reproducible() {
    let Some(staged) = StagedFiles::get() else { return };
    let pack = |name: &str| {
        let folder = staged.output(name);
        let mut script = staged.command("sh");
        let path = succeeds(script.arg("deploy/packaging/tarball.sh").arg(staged.root()).arg(folder));
        path.trim().to_owned()
    };
    let (first, second) = (pack("tarball-1"), pack("tarball-2"));
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "two runs write different bytes");

    let root = tempfile::tempdir().unwrap();
    // As root, the owners would be tried too.
    let extract = ["--strip-components=1", "--no-same-owner", "-xzf", &first];
    succeeds(Command::new("tar").arg("-C").arg(root.path()).args(extract));
    for path in INSTALLED {
        assert!(root.path().join(path.trim_start_matches('/')).is_file(), "{path}");
    }
    let version = succeeds(Command::new(root.path().join("usr/bin/sluicegate")).arg("version"));
    assert!(version.contains(VERSION), "{version}");
}
