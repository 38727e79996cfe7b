//! Read-only roots, volumes, and what the kernel exposes of the host.

use std::fs;
use std::os::unix::fs::symlink;

use super::Container;

/// RT-FS-01, RT-FS-02: volumes and `/tmp` can be written to, nothing else.
#[test]
fn read_only_root_keeps_volumes_and_tmp_writable() {
    let Some(mut container) = Container::new() else { return };
    let (data, settings) = (container.folder("data"), container.folder("settings"));
    container.mount(&data, "/data", false);
    container.mount(&settings, "/data/settings", true);
    container.spec.read_only_root = true;
    let seen = container
        .shell("for at in / /etc /data /data/settings /tmp /dev/shm; do touch $at/x 2>/dev/null && echo $at; done");
    assert_eq!(seen, "/data\n/tmp\n/dev/shm\n");
    assert!(data.join("x").exists());
    assert!(container.shell("echo x >/etc/hosts").contains("Read-only file system"));
}

#[test]
fn file_is_mounted_over_file_and_at_missing_path() {
    let Some(mut container) = Container::new() else { return };
    let file = container.folder("host").join("config");
    fs::write(&file, "of the host\n").unwrap();
    container.mount(&file, "/etc/passwd", true);
    container.mount(&file, "/opt/app/config", true);
    assert_eq!(container.shell("cat /etc/passwd /opt/app/config"), "of the host\nof the host\n");
    assert!(container.shell("echo x >/opt/app/config").contains("Read-only"));
}

/// Also if the outer volume is read-only, as those of ConfigMaps and Secrets are.
#[test]
fn volume_is_mounted_inside_of_another_volume() {
    let Some(mut container) = Container::new() else { return };
    let (outer, inner) = (container.folder("outer"), container.folder("inner"));
    fs::write(outer.join("mark"), "outer ").unwrap();
    container.mount(&inner, "/etc/app/a/b", false);
    container.mount(&outer, "/etc/app", true);
    let seen =
        container.shell("echo inner >/etc/app/a/b/mark; cat /etc/app/mark /etc/app/a/b/mark; echo x >/etc/app/x");
    assert!(seen.starts_with("outer inner\n") && seen.contains("Read-only"), "{seen}");
    assert!(inner.join("mark").exists() && !outer.join("a/b/mark").exists());
}

/// CVE-2021-30465 and its kind: a link of the image leads to the image's own files.
#[test]
fn symlinked_mount_path_stays_in_container() {
    let Some(mut container) = Container::new() else { return };
    let (volume, host) = (container.folder("volume"), container.folder("host"));
    fs::write(volume.join("mark"), "volume").unwrap();
    let image = container.add_layer("links");
    symlink(&host, image.join("absolute")).unwrap();
    symlink("../../../../../../../..", image.join("up")).unwrap();
    container.mount(&volume, "/absolute/a", false);
    container.mount(&volume, "/up/b", false);
    assert_eq!(container.shell("cat /absolute/a/mark /b/mark"), "volumevolume");
    assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
}

/// CVE-2017-1002101: a program that shares the volume has put a link in the place of the subPath.
#[test]
fn sub_path_that_is_a_link_stays_in_volume() {
    let Some(mut container) = Container::new() else { return };
    let (volume, host) = (container.folder("volume"), container.folder("host"));
    fs::create_dir(volume.join("inside")).unwrap();
    fs::write(volume.join("inside/mark"), "volume").unwrap();
    fs::write(host.join("mark"), "host").unwrap();
    symlink("inside", volume.join("link")).unwrap();
    symlink(&host, volume.join("absolute")).unwrap();
    symlink("../host", volume.join("relative")).unwrap();
    for (sub_path, wanted) in [("inside", "volume"), ("link", "volume"), ("absolute", ""), ("relative", "")] {
        container.spec.mounts.clear();
        container.mount(&volume, "/data", false);
        container.spec.mounts[0].sub_path = Some(sub_path.into());
        let output = container.run(&["cat", "/data/mark"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted, "{sub_path}");
    }
}

/// CVE-2019-19921 and its kind: the image cannot choose where `/proc` goes, nor what covers it.
#[test]
fn image_with_link_for_proc_is_refused() {
    let Some(container) = Container::new() else { return };
    fs::remove_dir(container.spec.layers[0].join("proc")).unwrap();
    symlink("/tmp", container.spec.layers[0].join("proc")).unwrap();
    let refused = container.shell("echo ran");
    assert!(refused.contains("no folder /proc") && !refused.contains("ran\n"), "{refused}");
    let volume = container.folder("volume");
    let Some(mut container) = Container::new() else { return };
    container.mount(&volume, "/proc/sys", false);
    assert!(container.shell("echo ran").contains("leads into /proc"));
}

/// RT-ISO-03, RT-ISO-06, RT-ISO-07
#[test]
fn kernel_settings_are_masked_or_read_only() {
    let Some(container) = Container::new() else { return };
    for path in ["/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/kernel/profiling"] {
        let refused = container.shell(&format!("echo x >{path} || echo refused"));
        assert!(refused.ends_with("refused\n"), "{path}: {refused}");
    }
    for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/interrupts"] {
        assert_eq!(
            container.shell(&format!("test ! -e {path} || wc -c <{path}")).trim_matches(['0', '\n']),
            "",
            "{path}"
        );
    }
    let listed = container.shell("for folder in /sys/firmware /proc/scsi; do test ! -d $folder || ls $folder; done");
    assert_eq!(listed, "");
    let mounts = container.shell("cat /proc/mounts");
    assert!(mounts.lines().any(|line| line.contains(" /sys sysfs ro")), "{mounts}");
    assert!(!mounts.contains(&*container.dir.path().to_string_lossy()), "{mounts}");
}
