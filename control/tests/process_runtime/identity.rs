//! The user of an instance, and the paths that it may write to.
//!
//! Another user and read-only folders need root; a run without root shows that they are rejected with a message.

use std::fs;

use sluicegate_control::runtime::capabilities::Capabilities;
use sluicegate_control::runtime::volumes::{InstanceMount, InstanceVolume, VolumeContent, VolumeMedium};
use sluicegate_control::runtime::{InstanceCredentials, InstanceSpec, ResourceLimits, may_mount};

use super::{TestRuntimeHost, shell};

const OTHER_USER: u32 = 54_321;

/// The exit code and the last words.
async fn end(host: &TestRuntimeHost, spec: InstanceSpec) -> (String, String) {
    let gone = host.start(1, spec).gone().await;
    (gone.cause.to_string(), gone.message)
}

fn as_user(identity: InstanceCredentials, script: &str) -> InstanceSpec {
    InstanceSpec { credentials: identity, ..shell(script) }
}

/// RT-USER-01, RT-USER-05, SRV-CON-58, SRV-CON-59: the user and the group of the manifest, or a start that
/// failed and says why.
#[tokio::test]
async fn a_program_runs_as_the_user_that_its_manifest_names() {
    let host = TestRuntimeHost::new();
    let (user, group) = (Some(OTHER_USER), Some(OTHER_USER + 1));
    let identity = InstanceCredentials { user, group, run_as_non_root: true, ..InstanceCredentials::default() };
    let (code, words) =
        end(&host, as_user(identity, "echo $(id -u) $(id -g) [$(id -G)]; echo x > /tmp/../etc/sg")).await;
    if may_mount() {
        assert!(words.contains("54321 54322 [54322]"), "{words}");
        assert_ne!(code, "ExitCode0", "it wrote into /etc");
    } else {
        assert_eq!(code, "ExitCode126");
        assert!(words.contains("runAsGroup 54322 is not allowed"), "{words}");
    }
}

/// RT-USER-02: by default the user is the appliance's.
#[tokio::test]
async fn a_program_without_a_named_user_is_who_the_appliance_is() {
    let host = TestRuntimeHost::new();
    let (code, words) = end(&host, shell("echo user $(id -u) group $(id -g)")).await;
    let own = fs::metadata("/proc/self").unwrap();
    let (uid, gid) = (std::os::unix::fs::MetadataExt::uid(&own), std::os::unix::fs::MetadataExt::gid(&own));
    assert_eq!(code, "ExitCode0");
    assert!(words.contains(&format!("user {uid} group {gid}")), "{words}");
}

/// RT-USER-05: an instance that must not be root and would be is not started.
#[tokio::test]
async fn an_instance_that_may_not_be_root_is_not_started_as_root() {
    let host = TestRuntimeHost::new();
    let (code, words) = end(
        &host,
        as_user(InstanceCredentials { run_as_non_root: true, ..InstanceCredentials::default() }, "echo ran"),
    )
    .await;
    if may_mount() {
        assert_eq!(code, "ExitCode126");
        assert!(words.contains("set runAsUser") && !words.contains("ran\n"), "{words}");
    } else {
        assert_eq!(code, "ExitCode0");
    }
}

/// A changed user must not cost the signal that ends an instance with its appliance.
#[tokio::test]
async fn an_instance_of_another_user_is_asked_to_end_like_any_other() {
    if !may_mount() {
        return;
    }
    let host = TestRuntimeHost::new();
    let identity = InstanceCredentials { user: Some(OTHER_USER), ..InstanceCredentials::default() };
    let mut spec = as_user(identity, "trap 'echo closing; exit 7' TERM; echo up; while :; do sleep 1 & wait $!; done");
    spec.readiness = super::probes::asks("true", 3);
    let mut instance = host.start(1, spec);
    instance.ready().await;
    // It may be found ready before its first line has made the log.
    let log = host.folder().join("1.log");
    let is_up = async {
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains(" up\n")) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(super::TIMEOUT, is_up).await.unwrap();
    instance.handle.stop();
    let gone = instance.gone().await;
    assert_eq!(gone.cause.to_string(), "ExitCode7");
}

/// SRV-CON-57, RT-FS-01, RT-FS-02: nothing can be written to but `/tmp` and the volumes that allow it.
#[tokio::test]
async fn a_read_only_root_leaves_temporary_files_and_volumes() {
    let host = TestRuntimeHost::new();
    let outside = host.dir.path().parent().unwrap_or(host.dir.path()).to_owned();
    let script = "for place in /etc /var /root /tmp /scratch /dev/null; do
                    target=$place; test -d $place && target=$place/sluicegate-probe-$$
                    if echo x 2>/dev/null > $target; then echo wrote $place; else echo refused $place; fi
                    test -d $place && rm -f $target
                  done";
    let mut spec = InstanceSpec { read_only_root: true, ..shell(script) };
    spec.volumes = vec![InstanceVolume { name: "scratch".into(), content: VolumeContent::Empty(VolumeMedium::Disk) }];
    let mount = InstanceMount { volume: "scratch".into(), path: "/scratch".into(), sub_path: None, read_only: false };
    spec.mounts = vec![mount];
    let (_, words) = end(&host, spec).await;
    if may_mount() {
        for wanted in
            ["refused /etc", "refused /var", "refused /root", "wrote /tmp", "wrote /scratch", "wrote /dev/null"]
        {
            assert!(words.contains(wanted), "no {wanted:?} in {words}");
        }
        assert!(fs::write(outside.join("sluicegate-host-still-writes"), "x").is_ok());
        fs::remove_file(outside.join("sluicegate-host-still-writes")).unwrap();
    } else {
        assert!(words.contains("needs a mount namespace"), "{words}");
    }
}

/// The lines of an instance that runs as root, if this process is.
async fn as_root(capabilities: Capabilities, script: &str) -> Option<String> {
    if !may_mount() {
        eprintln!("skipped: nobody is root here");
        return None;
    }
    let host = TestRuntimeHost::new();
    let identity = InstanceCredentials { capabilities, ..InstanceCredentials::default() };
    host.start(1, as_user(identity, script)).gone().await;
    Some(host.log(1))
}

/// RT-ENV-06: root in an instance has what root in a container has, less what the manifest drops, and nothing it starts has more.
#[tokio::test]
async fn an_instance_keeps_what_containers_have_of_roots_power() {
    let script = "touch mine; chown 7 mine && echo owns; rm -f mine
                  mount -t tmpfs none /mnt 2>/dev/null && echo mounts
                  sh -c 'grep Cap /proc/self/status'; exit 7";
    let script = format!("cd $(mktemp -d); {script}");
    let Some(usual) = as_root(Capabilities::default(), &script).await else { return };
    assert!(usual.contains(" F owns\n") && !usual.contains(" F mounts\n"), "{usual}");
    assert!(!usual.contains("CapBnd:\t000001ff"), "{usual}");
    let none = as_root(Capabilities::from_manifest(&[], &["ALL".to_owned()]), &script).await.unwrap();
    assert!(!none.contains(" F owns\n"), "{none}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(none.contains(&format!("{set}:\t0000000000000000")), "{set}: {none}");
    }
    let mounts = Capabilities::from_manifest(&["SYS_ADMIN".to_owned()], &[]);
    let more = as_root(mounts, &script).await.unwrap();
    assert!(more.contains(" F owns\n") && more.contains(" F mounts\n"), "{more}");
}

/// RT-ISO-03, RT-CG-02: the host's settings and control groups are checked, and not written to, by root either.
#[tokio::test]
async fn an_instance_does_not_set_the_host() {
    let script = "for file in /proc/sys/vm/swappiness /proc/sys/kernel/hostname; do
                    test -r $file && echo reads; ( cat $file > $file ) 2>/dev/null && echo wrote $file
                  done
                  for folder in $(awk '$5 ~ \"^/sys\" { print $5 }' /proc/self/mountinfo); do
                    mkdir $folder/sluicegate-mine 2>/dev/null && rmdir $folder/sluicegate-mine && echo wrote $folder
                  done
                  umount /proc/sys 2>/dev/null && echo uncovered; exit 7";
    let Some(log) = as_root(Capabilities::default(), script).await else { return };
    assert_eq!(log.matches(" F reads\n").count(), 2, "{log}");
    assert!(!log.contains("wrote") && !log.contains("uncovered") && !log.contains("sluicegate: "), "{log}");
}

/// RT-FS-06: by its host name an instance tells itself from others, as a Pod's does.
#[tokio::test]
async fn an_instance_has_a_host_name_of_its_own() {
    let host = TestRuntimeHost::new();
    host.start(35, InstanceSpec { revision: "hello-00001".into(), ..shell("uname -n") }).gone().await;
    let name = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let (ours, theirs) = (name(), host.log(35));
    if may_mount() && !theirs.contains(&format!(" F {ours}\n")) {
        assert!(theirs.contains(" F hello-00001-deployment-z\n"), "{theirs}");
    } else {
        eprintln!("skipped: no namespaces for host names here: {theirs}");
    }
    assert_ne!(name(), "hello-00001-deployment-z", "the host itself is called so now");
}

/// SRV-CON-13, SRV-CON-55, RT-CG-01, RT-CG-03: an instance with limits is in a group of its own that holds them and that
/// it sees, one that wants more memory is ended for that reason, and no group stays.
#[tokio::test]
async fn an_instance_is_held_to_its_limits() {
    let host = TestRuntimeHost::new();
    let resources = ResourceLimits { memory_bytes_max: 64 << 20, cpu_milli_max: 500, cpu_milli_request: 100 };
    let limited = |script: &str| InstanceSpec { resources, ..shell(script) };
    let command = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
                echo 1 2>/dev/null >/sys/fs/cgroup/memory/memory.limit_in_bytes || echo kept; sleep 1000";
    let readiness = super::probes::asks("true", 3);
    let mut instance = host.start(1, InstanceSpec { readiness, ..limited(command) });
    instance.ready().await;
    let record: serde_json::Value = serde_json::from_slice(&fs::read(host.folder().join("1.run")).unwrap()).unwrap();
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", record["process"]["pid"])).unwrap();
    // In version 2 the line has no controller.
    let mut lines = groups.lines().filter(|line| line.contains(":memory:") || line.starts_with("0::"));
    let line = lines.next().unwrap_or_default();
    let path = line.rsplit(':').next().unwrap();
    let Some(below) = path.find("/sluicegate-").map(|at| &path[at + 1..]) else {
        eprintln!("skipped: control groups may not be made here: {line}");
        return;
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points: Vec<_> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let above = &path[1..path.len() - below.len()];
    let find = |file: &str| {
        points.iter().map(|point| format!("{point}/{above}{below}/{file}")).find_map(|at| fs::read_to_string(at).ok())
    };
    let either = |one: &str, other: &str| find(one).or_else(|| find(other)).map(|text| text.trim().to_owned());
    let memory = either("memory.max", "memory.limit_in_bytes");
    assert_eq!(memory.as_deref(), Some("67108864"), "{path}");
    if may_mount() {
        let log = host.wrote(1, " F kept").await;
        assert!(log.contains(" F 67108864"), "it sees another group: {log}");
    }
    instance.handle.stop();
    instance.gone().await;
    assert_eq!(either("memory.max", "memory.limit_in_bytes"), None, "the group stays");

    let greedy = limited("x=$(head -c 300000000 /dev/zero | tr '\\0' a); echo never; sleep 1000");
    let gone = host.start(2, greedy).gone().await;
    assert_eq!(gone.cause.to_string(), "OOMKilled", "{}", gone.message);
    assert!(gone.message.contains("limit of 67108864 bytes"), "{}", gone.message);
}
