//! Files of an instance's volumes, at their mount paths.
//!
//! Mounts need root; a run without root shows that they are rejected with a message.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sluicegate_control::runtime::volumes::{InstanceMount, InstanceVolume, VolumeContent, VolumeFile, VolumeMedium};
use sluicegate_control::runtime::{InstanceReport, InstanceSpec, ProbeCheck, ProbeSpec, Runtime, Sidecar, may_mount};

use super::{TestRuntimeHost, shell};

fn settings(colour: &str) -> InstanceVolume {
    let file = VolumeFile { path: "colour".into(), bytes: colour.into(), mode: 0o644 };
    InstanceVolume { name: "settings".into(), content: VolumeContent::Files(vec![file]) }
}

fn mount(volume: &str, path: &str) -> InstanceMount {
    InstanceMount { volume: volume.into(), path: path.into(), sub_path: None, read_only: true }
}

/// What the program writes, line by line.
async fn words(host: &TestRuntimeHost, spec: InstanceSpec) -> Vec<String> {
    let mut instance = host.start(1, spec);
    while !matches!(instance.report().await, InstanceReport::Exited(_)) {}
    let log = host.log(1);
    log.lines().filter_map(|line| Some(line.split_once(" F ")?.1.to_owned())).collect()
}

#[tokio::test]
async fn files_stand_below_the_folder_that_a_variable_names() {
    let host = TestRuntimeHost::new();
    let spec = InstanceSpec { volumes: vec![settings("red")], ..shell("cat $SLUICEGATE_VOLUMES/settings/colour") };
    assert_eq!(words(&host, spec).await, ["red"]);
}

/// SRV-VOL-01, SRV-VOL-04, RT-FS-10, SRV-REV-10: where the host has no such path the instance has it anyway, and the host is left as
/// it was.
#[tokio::test]
async fn a_mount_path_that_the_host_lacks_is_there_for_the_instance_only() {
    let host = TestRuntimeHost::new();
    let (top, below) = ("/sluicegate-test-top/deep", "/etc/sluicegate-test-below");
    let script = format!(
        "cat {top}/colour; echo; cat {below}/colour; echo; ls -d /etc/passwd /bin/sh; \
                          echo x 2>/dev/null > {top}/colour || echo read-only"
    );
    let mounts = vec![mount("settings", top), mount("settings", below)];
    let seen = words(&host, InstanceSpec { volumes: vec![settings("red")], mounts, ..shell(&script) }).await;
    if may_mount() {
        assert_eq!(seen, ["red", "red", "/bin/sh", "/etc/passwd", "read-only"]);
    } else {
        assert!(seen[0].contains(&format!("mountPath {top} needs a mount namespace")), "{seen:?}");
    }
    assert!(!Path::new("/sluicegate-test-top").exists() && !Path::new(below).exists());
}

#[tokio::test]
async fn a_folder_of_the_host_is_covered_for_the_instance_only() {
    let host = TestRuntimeHost::new();
    let there = host.dir.path().join("there");
    fs::create_dir(&there).unwrap();
    fs::write(there.join("hosts-own"), "").unwrap();
    let place = there.display();
    let mut spec = shell(&format!("ls {place}; pwd"));
    spec.volumes = vec![
        settings("red"),
        InstanceVolume { name: "scratch".into(), content: VolumeContent::Empty(VolumeMedium::Disk) },
    ];
    spec.mounts = vec![mount("settings", place.to_string().as_str())];
    spec.working_dir = Some(there.clone());
    let seen = words(&host, spec).await;
    if may_mount() {
        assert_eq!(seen, ["colour".to_owned(), place.to_string()]);
    } else {
        assert!(seen[0].contains("needs a mount namespace"), "{seen:?}");
    }
    assert_eq!(fs::read_dir(&there).unwrap().count(), 1);
}

/// SRV-VOL-03: only the sub path appears, and a volume of its own is writable.
#[tokio::test]
async fn one_file_of_a_volume_and_an_empty_folder_that_ends_with_its_instance() {
    let host = TestRuntimeHost::new();
    let mut spec = shell("cat /etc/sluicegate-one; echo; echo mine > /sluicegate-scratch/a; cat /sluicegate-scratch/a");
    spec.volumes = vec![
        settings("red"),
        InstanceVolume { name: "scratch".into(), content: VolumeContent::Empty(VolumeMedium::Disk) },
    ];
    spec.mounts = vec![
        InstanceMount { sub_path: Some("colour".into()), ..mount("settings", "/etc/sluicegate-one") },
        InstanceMount { read_only: false, ..mount("scratch", "/sluicegate-scratch") },
    ];
    let seen = words(&host, spec).await;
    if may_mount() {
        assert_eq!(seen, ["red", "mine"]);
    } else {
        assert!(seen[0].contains("needs a mount namespace"), "{seen:?}");
    }
    assert!(!host.folder().join("1.empty").exists());
}

fn empty(medium: VolumeMedium) -> Vec<InstanceVolume> {
    vec![InstanceVolume { name: "scratch".into(), content: VolumeContent::Empty(medium) }]
}

/// For any user of the instance, an empty folder is writable, and so is a folder in it that a mount uses.
#[tokio::test]
async fn an_empty_folder_is_for_any_user() {
    if !may_mount() {
        return eprintln!("skipped: no user but this one is to be had here");
    }
    for medium in [VolumeMedium::Disk, VolumeMedium::Memory { bytes_max: None }] {
        let host = TestRuntimeHost::new();
        let mut spec =
            shell("id -u; echo a > /sluicegate-scratch/a && echo b > /sluicegate-deep/b && ls -R /sluicegate-scratch");
        spec.credentials.user = Some(65_534);
        spec.volumes = empty(medium);
        let scratch = |path| InstanceMount { read_only: false, ..mount("scratch", path) };
        let deep = InstanceMount { sub_path: Some("de/ep".into()), ..scratch("/sluicegate-deep") };
        spec.mounts = vec![scratch("/sluicegate-scratch"), deep];
        let seen = words(&host, spec).await.join("|");
        assert!(seen.starts_with("65534|") && seen.ends_with("de/ep:|b"), "{medium:?}: {seen}");
    }
}

/// RT-FS-03: a folder in memory, `/tmp` if it is mounted there, takes as much as it may, is the same for all containers,
/// and leaves nothing on the host.
#[tokio::test]
async fn an_empty_folder_in_memory_has_a_size_and_goes_with_its_instance() {
    if !may_mount() {
        return eprintln!("skipped: only root mounts memory");
    }
    let host = TestRuntimeHost::new();
    let script = "until test -s /tmp/from-sidecar; do sleep 0.01; done; stat -f -c %T /tmp
                  head -c 900000 /dev/zero > /tmp/fits && echo fits
                  head -c 900000 /dev/zero > /tmp/more 2>/dev/null || echo full";
    let on = |script| {
        let mut spec = shell(script);
        spec.volumes = empty(VolumeMedium::Memory { bytes_max: Some(1 << 20) });
        spec.mounts = vec![InstanceMount { read_only: false, ..mount("scratch", "/tmp") }];
        spec
    };
    let spec = on("echo x > /tmp/from-sidecar; sleep 1000");
    let helper_sidecar = Sidecar { name: "helper".into(), has_readiness_probe: false, spec };
    let seen = words(&host, InstanceSpec { sidecars: vec![helper_sidecar], ..on(script) }).await;
    assert_eq!(seen, ["tmpfs", "fits", "full"]);
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounted.contains(host.folder().to_str().unwrap()), "{mounted}");
    assert!(!host.folder().join("1.empty").exists());
}

/// RT-FS-11, SRV-REV-04: new content reaches a program that runs, as a whole.
#[tokio::test]
async fn a_running_program_sees_new_content_without_a_restart() {
    let host = TestRuntimeHost::new();
    let path = if may_mount() { "/sluicegate-live" } else { "$SLUICEGATE_VOLUMES/settings" };
    let script = format!("echo up; until grep -q blue {path}/colour; do sleep 0.02; done; echo saw blue; sleep 1000");
    let look = ["/bin/sh", "-c", &format!("grep -q . {path}/colour")].map(String::from).to_vec();
    let mut spec = InstanceSpec { volumes: vec![settings("red")], ..shell(&script) };
    spec.readiness = ProbeSpec::single(ProbeCheck::Exec { command: look });
    if may_mount() {
        spec.mounts = vec![mount("settings", path)];
    }
    let mut instance = host.start(1, spec.clone());
    instance.ready().await;
    host.runtime.refresh(Arc::new(InstanceSpec { volumes: vec![settings("blue")], ..spec }));
    host.wrote(1, "saw blue").await;
}

/// Volumes of every kind at paths that the host lacks, with the appliance's data hidden as it is in a real run: their folders are
/// in it. A mount may be inside of another, also of one that is read-only.
#[tokio::test]
async fn every_kind_of_volume_is_mounted_at_a_missing_path() {
    if !may_mount() {
        return eprintln!("skipped: only root mounts");
    }
    let host = TestRuntimeHost::hidden();
    let mut spec = shell(
        "cd /sluicegate-test
         echo 1 > empty/a && echo 2 > memory/a && echo 3 > deep/a && echo 4 > settings/inner/a
         cat empty/a memory/a deep/a settings/inner/a; ls empty/de
         cat settings/colour; echo; cat one; echo
         echo x 2>/dev/null > settings/colour || echo read-only",
    );
    let volume = |name: &str, content| InstanceVolume { name: name.into(), content };
    spec.volumes = vec![
        settings("red"),
        volume("scratch", VolumeContent::Empty(VolumeMedium::Disk)),
        volume("other", VolumeContent::Empty(VolumeMedium::Disk)),
        volume("memory", VolumeContent::Empty(VolumeMedium::Memory { bytes_max: Some(1 << 20) })),
    ];
    let writable = |volume, path| InstanceMount { read_only: false, ..mount(volume, path) };
    spec.mounts = vec![
        writable("other", "/sluicegate-test/settings/inner"),
        mount("settings", "/sluicegate-test/settings"),
        InstanceMount { sub_path: Some("colour".into()), ..mount("settings", "/sluicegate-test/one") },
        writable("scratch", "/sluicegate-test/empty"),
        InstanceMount { sub_path: Some("de/ep".into()), ..writable("scratch", "/sluicegate-test/deep") },
        writable("memory", "/sluicegate-test/memory"),
    ];
    let seen = words(&host, spec.clone()).await;
    assert_eq!(seen, ["1", "2", "3", "4", "ep", "red", "red", "read-only"]);
    assert!(!Path::new("/sluicegate-test").exists());
    // The folder for the inner mount does not stop new content.
    host.runtime.refresh(Arc::new(InstanceSpec { volumes: vec![settings("blue")], ..spec }));
    let colour = host.folder().join("volumes/settings/colour");
    for _ in 0..500 {
        if fs::read_to_string(&colour).is_ok_and(|text| text == "blue") {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{:?}", fs::read_to_string(&colour));
}

/// A link leads to an existing folder, or to one that is made. With a read-only root, what is mounted there can be written to.
#[tokio::test]
async fn mount_path_that_is_a_link_leads_to_where_it_points() {
    if !may_mount() {
        return eprintln!("skipped: only root mounts");
    }
    for read_only_root in [false, true] {
        let (host, links) = (TestRuntimeHost::hidden(), tempfile::tempdir().unwrap());
        let (here, made) = (links.path().join("here"), links.path().join("missing/made"));
        fs::create_dir(&here).unwrap();
        std::os::unix::fs::symlink(&here, links.path().join("to-here")).unwrap();
        std::os::unix::fs::symlink("missing/made", links.path().join("to-missing")).unwrap();
        std::os::unix::fs::symlink("loop", links.path().join("loop")).unwrap();
        let scratch = |path: &str| {
            let path = links.path().join(path).display().to_string();
            InstanceMount { read_only: false, ..mount("scratch", &path) }
        };
        let script = format!("cd {}; echo 1 > to-here/a; cat here/a; cat {}/a", links.path().display(), made.display());
        let mut spec = InstanceSpec { volumes: empty(VolumeMedium::Disk), read_only_root, ..shell(&script) };
        spec.mounts = vec![scratch("to-here"), scratch("to-missing")];
        assert_eq!(words(&host, spec.clone()).await, ["1", "1"]);
        assert_eq!(fs::read_dir(links.path()).unwrap().count(), 4, "here and three links");
        assert_eq!(fs::read_dir(&here).unwrap().count(), 0);
        spec.mounts = vec![scratch("loop/x")];
        let mut instance = host.start(2, spec);
        while !matches!(instance.report().await, InstanceReport::Exited(_)) {}
        assert!(host.log(2).contains("loop/x cannot be mounted: Too many levels of symbolic links"), "{}", host.log(2));
    }
}
