//! The `/dev` of an instance. Its own `/dev` needs root.

use std::fs;

use sluicegate_control::runtime::{HostConfig, InstanceCredentials, InstanceSpec, may_mount};

use super::{TestRuntimeHost, shell};

/// What a program of this user writes, line by line; `None` where mounts are not allowed.
async fn says(around: HostConfig, user: Option<u32>, script: &str) -> Option<Vec<String>> {
    if !may_mount() {
        eprintln!("skipped: nobody but root has a /dev of its own");
        return None;
    }
    let host = TestRuntimeHost::with_config(around);
    let identity = InstanceCredentials { user, group: user, ..InstanceCredentials::default() };
    host.start(1, InstanceSpec { credentials: identity, ..shell(script) }).gone().await;
    let log = host.log(1);
    Some(log.lines().filter_map(|line| Some(line.split_once(" F ")?.1.to_owned())).collect())
}

/// RT-FS-09, RT-FD-03, RT-ISO-02: the devices and links that containers have, for whatever user, and no others.
#[tokio::test]
async fn an_instance_has_the_devices_of_containers_and_none_of_the_hosts() {
    let script = "ls /dev | tr '\\n' ' '; echo
        for name in null zero full random urandom tty; do stat -c '%n %a %F %t:%T' /dev/$name; done
        for name in fd stdin stdout stderr ptmx; do readlink /dev/$name; done
        stat -c '%n %a' /dev/shm /dev/pts
        echo x > /dev/null && head -c 9 /dev/zero | wc -c && head -c 9 /dev/urandom | wc -c
        ( echo x > /dev/full ) 2>/dev/null || echo full
        echo mine > /dev/shm/sluicegate-mine && cat /dev/shm/sluicegate-mine
        echo printed > /dev/stdout; echo warned > /dev/stderr
        ( exec 3<>/dev/ptmx; ls /dev/pts )
        mknod /tmp/sluicegate-disk-$$ b 8 0 2>/dev/null && echo made";
    let devices = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ";
    for user in [None, Some(54_321)] {
        let Some(mut seen) = says(HostConfig::minimal(), user, script).await else { return };
        // The outputs are two pipes, which may be read in any order.
        let warned = seen.iter().position(|line| line == "warned");
        seen.remove(warned.unwrap_or_else(|| panic!("{user:?}: no warning in {seen:?}")));
        let wanted = [
            devices,
            "/dev/null 666 character special file 1:3",
            "/dev/zero 666 character special file 1:5",
            "/dev/full 666 character special file 1:7",
            "/dev/random 666 character special file 1:8",
            "/dev/urandom 666 character special file 1:9",
            "/dev/tty 666 character special file 5:0",
            "/proc/self/fd",
            "/proc/self/fd/0",
            "/proc/self/fd/1",
            "/proc/self/fd/2",
            "pts/ptmx",
            "/dev/shm 1777",
            "/dev/pts 755",
            "9",
            "9",
            "full",
            "mine",
            "printed",
            "0",
            "ptmx",
        ];
        assert_eq!(seen, wanted, "{user:?}");
    }
    assert!(!fs::exists("/dev/shm/sluicegate-mine").unwrap(), "the host's memory was written to");
}

/// Hardware is for those whose operator says so.
#[tokio::test]
async fn an_operator_may_let_instances_see_the_hosts_devices() {
    let around = HostConfig { host_devices: true, ..HostConfig::minimal() };
    let Some(seen) = says(around, None, "ls /dev").await else { return };
    let mut hosts: Vec<String> =
        fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    hosts.sort();
    assert_eq!(seen, hosts);
}

/// What is in it is bounded.
#[tokio::test]
async fn a_folder_for_devices_holds_no_files() {
    let script = "head -c 70000 /dev/zero > /dev/file 2>/dev/null || echo no room";
    let Some(seen) = says(HostConfig::minimal(), None, script).await else { return };
    assert_eq!(seen, ["no room"]);
}
