//! Attempts to escape from a container, all of which fail.

use std::fs;
use std::process::Command;

use super::Container;

/// A root in a container is refused what would reach the host.
#[test]
fn privileged_calls_are_refused() {
    let Some(container) = Container::new() else { return };
    for attempt in [
        "mount -t tmpfs none /tmp",
        "mount -o remount,rw /sys",
        "umount /proc",
        "umount /dev",
        "unshare -m true",
        "unshare -U true",
        "hostname other",
        "mknod /tmp/disk b 254 0",
        "chroot /proc/1/root mount -t proc none /tmp",
    ] {
        let seen = container.shell(&format!("{attempt} && echo done"));
        assert!(!seen.contains("done"), "{attempt}: {seen}");
    }
}

/// RT-LIFE-11
#[test]
fn host_files_and_processes_are_out_of_reach() {
    let Some(container) = Container::new() else { return };
    let secret = container.folder("host").join("secret");
    fs::write(&secret, "secret").unwrap();
    let path = secret.display();
    for way in ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../../../../..", "/proc/self/cwd/../../.."] {
        assert!(!container.shell(&format!("cat {way}{path}")).contains("secret\n"), "{way}");
        assert!(container.shell(&format!("cat {way}{path}")).contains("No such file"), "{way}");
    }
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    let seen = container.shell(&format!("kill -9 {}; kill -9 -1; ls /proc/{} | wc -l", bystander.id(), bystander.id()));
    assert!(bystander.try_wait().unwrap().is_none(), "{seen}");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// CVE-2024-21626: no descriptor of ours is left, so no WORKDIR leads out by one.
#[test]
fn working_dir_by_descriptor_stays_inside() {
    let Some(mut container) = Container::new() else { return };
    let open = container.shell("ls /proc/self/fd | tr '\\n' ' '");
    assert_eq!(open, "0 1 2 3 ", "and the listing's own");
    for number in 0..16 {
        container.spec.working_dir = Some(format!("/proc/self/fd/{number}").into());
        let seen = container.shell("ls ../../../../../../ 2>&1 | tr '\\n' ' '; cat ../../../../etc/shadow");
        assert!(!seen.contains("root:") && !seen.contains("vmlinuz") && !seen.contains(" home "), "{number}: {seen}");
    }
}

/// CVE-2019-5736: the program that becomes the container cannot be written to through it.
#[test]
fn own_program_cannot_be_overwritten() {
    let Some(mut container) = Container::new() else { return };
    let program = env!("CARGO_BIN_EXE_container-run");
    let before = fs::read(program).unwrap();
    if !container.add_program(program) {
        return eprintln!("skipped: the libraries of {program} are unknown");
    }
    // The container's command is what started it: it runs on as a process that others in the container reach.
    for attempt in
        ["echo x >>/proc/1/exe", "(exec 3<>/proc/1/exe)", "chmod 777 /proc/1/exe", "dd of=/proc/1/exe </bin/busybox"]
    {
        let output = container.run(&["/proc/self/exe", "sibling", &format!("{attempt} || readlink /proc/1/exe")]);
        let seen = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(seen.contains("Read-only file system") && seen.contains("/container-run\n"), "{attempt}: {seen}");
    }
    assert_eq!(fs::read(program).unwrap(), before);
}

#[test]
fn container_ends_with_all_its_processes() {
    let Some(container) = Container::new() else { return };
    let mut child =
        container.start(&["sh", "-c", "sleep 1000 & (exec 1>&- 2>&-; unset A; sleep 1001) & echo up; exec sleep 1002"]);
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // They hold the pipe until they are over.
    let mut rest = Vec::new();
    std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut rest).unwrap();
}

/// The descriptors that a supervisor left open in the appliance are not the container's.
#[test]
fn inherited_descriptor_is_closed() {
    let Some(container) = Container::new() else { return };
    let folder = fs::File::open("/").unwrap();
    rustix::io::fcntl_setfd(&folder, rustix::io::FdFlags::empty()).unwrap();
    assert_eq!(container.shell("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ");
}
