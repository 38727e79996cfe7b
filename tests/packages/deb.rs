//! The Debian package: what is in it, and its installation, upgrade, removal and purge in a clean root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::staged::{INSTALLED, StagedFiles, VERSION, both, is_installed, repository, succeeds};

/// Packs the staged files. A fast compression: the package of a release uses a better one.
fn package(staged: &StagedFiles, revision: &str) -> PathBuf {
    let folder = staged.output(&format!("deb-{revision}"));
    let mut build = staged.command("cargo-deb");
    build.args([
        "--no-build",
        "--no-strip",
        "--no-dbgsym",
        "--offline",
        "--fast",
        "--compress-system",
        "-Z",
        "gz",
        "--deb-revision",
        revision,
    ]);
    succeeds(build.arg("--output").arg(&folder));
    fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).next().unwrap()
}

/// The package and its successor, made once.
fn packages() -> Option<&'static [PathBuf; 2]> {
    static PACKAGES: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
    let made = PACKAGES.get_or_init(|| {
        if !["cargo-deb", "dpkg-deb", "dpkg-shlibdeps"].into_iter().all(is_installed) {
            return None;
        }
        let staged = StagedFiles::get()?;
        Some(["1", "2"].map(|revision| package(staged, revision)))
    });
    made.as_ref()
}

#[test]
fn debian_package_has_files_scripts_and_dependencies() {
    let Some([package, _]) = packages() else { return };
    let contents = succeeds(Command::new("dpkg-deb").arg("--contents").arg(package));
    for path in INSTALLED.iter().chain(&["/usr/share/zsh/vendor-completions/_sluicegate"]) {
        let line = contents.lines().find(|line| line.ends_with(&format!(" .{path}")));
        let line = line.unwrap_or_else(|| panic!("{path}: {contents}"));
        let mode = if path.starts_with("/usr/bin/") { "-rwxr-xr-x" } else { "-rw-r--r--" };
        let of_root = [" root/root ", " 0/0 "].iter().any(|owner| line.starts_with(&format!("{mode}{owner}")));
        assert!(of_root, "{line}");
    }
    let about = succeeds(Command::new("dpkg-deb").arg("--field").arg(package));
    for line in ["Package: sluicegate", &format!("Version: {VERSION}-1"), "Section: net", "libc6"] {
        assert!(about.contains(line), "{line}: {about}");
    }
    let control = tempfile::tempdir().unwrap();
    succeeds(Command::new("dpkg-deb").arg("--control").arg(package).arg(control.path()));
    let read = |name: &str| fs::read_to_string(control.path().join(name)).unwrap();
    assert_eq!(read("conffiles").trim(), "/etc/sluicegate/sluicegate.toml");
    for script in ["postinst", "prerm", "postrm"] {
        assert!(read(script).starts_with("#!/bin/sh\n") && read(script).contains("set -e"), "{script}");
    }
}

/// Errors of Debian's own checker. Its warnings are not for packages outside of Debian.
#[test]
fn debian_package_passes_lintian() {
    let Some([package, _]) = packages() else { return };
    if !is_installed("lintian") {
        return;
    }
    let mut lintian = Command::new("lintian");
    // A package outside of Debian closes no bug report, and may be in a suite that Debian does not have.
    let suppressed = "initial-upload-closes-no-bugs,bad-distribution-in-changes-file";
    lintian.args(["--allow-root", "--fail-on", "error", "--suppress-tags", suppressed]).arg(package);
    let output = lintian.output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
}

/// Debian's essential packages of the suite of this host. Downloaded once and kept in cargo's output folder.
fn download() -> Option<PathBuf> {
    let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = about.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    let archive = repository().join(format!("target/clean-root-{suite}.tar"));
    if archive.is_file() {
        return Some(archive);
    }
    let fresh = archive.with_extension(format!("{}.tar", std::process::id()));
    let mut bootstrap = Command::new("mmdebstrap");
    bootstrap.args(["--variant=essential", "--include=systemd-standalone-sysusers", suite]).arg(&fresh);
    let output = bootstrap.output().unwrap();
    if !output.status.success() {
        eprintln!("skipped: mmdebstrap: {}", both(&output));
        return None;
    }
    fs::rename(&fresh, &archive).unwrap();
    Some(archive)
}

/// A root file system of its own.
struct CleanRoot(tempfile::TempDir);

impl CleanRoot {
    /// `None` without root, mmdebstrap or a mirror.
    fn new() -> Option<CleanRoot> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a package is installed by root only");
            return None;
        }
        if !["mmdebstrap", "chroot"].into_iter().all(is_installed) {
            return None;
        }
        static ARCHIVE: OnceLock<Option<PathBuf>> = OnceLock::new();
        let archive = ARCHIVE.get_or_init(download).as_ref()?;
        let root = CleanRoot(tempfile::tempdir().unwrap());
        succeeds(
            Command::new("tar")
                .args(["--extract", "--exclude=./dev/*", "--directory"])
                .arg(root.path("/"))
                .arg("--file")
                .arg(archive),
        );
        // In place of systemd: it writes down what it was asked, and the service runs if a test says so.
        root.write(
            "/usr/bin/systemctl",
            "#!/bin/sh\necho \"$*\" >>/systemctl.log\ncase \"$*\" in *is-active*) [ -e /is-active ] ;; esac\n",
        );
        succeeds(Command::new("chmod").arg("755").arg(root.path("/usr/bin/systemctl")));
        fs::create_dir_all(root.path("/run/systemd/system")).unwrap();
        // Scripts open it, and a device is not unpacked.
        root.write("/dev/null", "");
        Some(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    fn run(&self, words: &[&str]) -> String {
        succeeds(
            Command::new("chroot")
                .arg(self.0.path())
                .args(words)
                .env("LC_ALL", "C")
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    }

    fn install(&self, package: &Path) {
        fs::copy(package, self.path("/package.deb")).unwrap();
        self.run(&["dpkg", "--install", "/package.deb"]);
    }

    /// What systemd was asked since the last call.
    fn asked(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("/systemctl.log")).unwrap_or_default();
        self.write("/systemctl.log", "");
        log.lines().map(str::to_owned).collect()
    }
}

/// A new installation starts nothing; an upgrade of a running service is a hot restart; a removal stops it and keeps settings
/// and data; a purge removes both.
#[test]
fn debian_package_is_installed_upgraded_removed_and_purged() {
    let Some([first, second]) = packages() else { return };
    let Some(root) = CleanRoot::new() else { return };

    root.install(first);
    assert_eq!(root.asked(), ["--system daemon-reload"]);
    let version = root.run(&["sluicegate", "--version"]);
    assert!(version.starts_with(&format!("sluicegate {VERSION}\n")), "{version}");
    assert!(root.run(&["id", "sluicegate"]).contains("(sluicegate)"));
    root.run(&["sluicegate", "validate", "/etc/sluicegate/sluicegate.toml"]);

    // The administrator's settings and data stay over an upgrade.
    let settings = "/etc/sluicegate/sluicegate.toml";
    root.write(settings, "http = \"127.0.0.1:9999\"\n");
    fs::create_dir(root.path("/var/lib/sluicegate")).unwrap();
    root.write("/var/lib/sluicegate/objects.redb", "objects");
    root.write("/is-active", "");
    root.install(second);
    assert_eq!(
        root.asked(),
        [
            "--system daemon-reload",
            "--quiet is-active sluicegate.service",
            "kill --kill-who=main --signal=USR2 sluicegate.service",
        ]
    );
    assert_eq!(fs::read_to_string(root.path(settings)).unwrap(), "http = \"127.0.0.1:9999\"\n");

    root.run(&["dpkg", "--remove", "sluicegate"]);
    assert_eq!(root.asked(), ["stop sluicegate.socket sluicegate.service", "--system daemon-reload"]);
    assert!(!root.path("/usr/bin/sluicegate").exists());
    assert!(root.path(settings).exists() && root.path("/var/lib/sluicegate/objects.redb").exists());

    root.run(&["dpkg", "--purge", "sluicegate"]);
    for path in ["/etc/sluicegate", "/var/lib/sluicegate", "/usr/share/doc/sluicegate"] {
        assert!(!root.path(path).exists(), "{path}");
    }
}

/// Without a service that runs there is nothing to restart, and without systemd nothing to tell.
#[test]
fn debian_package_does_not_start_a_stopped_service() {
    let Some([first, second]) = packages() else { return };
    let Some(root) = CleanRoot::new() else { return };
    root.install(first);
    root.asked();
    root.install(second);
    assert_eq!(root.asked(), ["--system daemon-reload", "--quiet is-active sluicegate.service"]);
    fs::remove_dir(root.path("/run/systemd/system")).unwrap();
    root.install(first);
    root.run(&["dpkg", "--purge", "sluicegate"]);
    assert_eq!(root.asked(), [""; 0]);
}
