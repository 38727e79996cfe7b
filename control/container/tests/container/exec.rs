//! Another process in a running container.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use container::namespaces::spawn_in_container;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use super::Container;

/// A container whose program runs and says so.
fn running(container: &Container, command: &[&str]) -> Child {
    let mut child = container.start(command);
    let mut said = [0; 5];
    if child.stdout.as_mut().unwrap().read_exact(&mut said).is_err() {
        panic!("{:?}", child.wait_with_output());
    }
    child
}

fn exec(container: &Container, first: &Child, command: &[&str]) -> Output {
    let pid = Pid::from_raw(i32::try_from(first.id()).unwrap()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let spec = json!({
        "user": container.spec.user, "capabilities": container.spec.capabilities, "parent": std::process::id(),
    });
    let job = json!({ "exec": spec, "command": command, "variables": container.variables });
    let mut starting = Command::new(container.program.path());
    starting.arg0("container-run").arg("exec").env_clear();
    starting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn_in_container(&pidfd, &mut starting).unwrap();
    child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn process_enters_container_of_first_process() {
    let Some(mut container) = Container::new() else { return };
    container.spec.user.image = "app".into();
    let mut first = running(&container, &["sh", "-c", "echo mark >/tmp/mark; echo held; exec sleep 1000"]);
    let seen = exec(
        &container,
        &first,
        &[
            "sh",
            "-c",
            "cat /tmp/mark; hostname; id -u; readlink /proc/self/root; cat /proc/1/comm; ls /proc/self/fd | wc -l; grep Seccomp: /proc/self/status; exit 7",
        ],
    );
    let (out, err) = (String::from_utf8_lossy(&seen.stdout), String::from_utf8_lossy(&seen.stderr));
    assert_eq!(seen.status.code(), Some(7), "{err}");
    assert_eq!(out, "mark\nhello-00001\n1000\n/\nsleep\n4\nSeccomp:\t2\n", "{err}");
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn entered_process_cannot_mount_and_ends_with_container() {
    let Some(container) = Container::new() else { return };
    let mut first = running(&container, &["sh", "-c", "echo held; exec sleep 1000"]);
    let refused = exec(&container, &first, &["mount", "-t", "tmpfs", "none", "/tmp"]);
    assert!(!refused.status.success());
    // It may signal what runs there; a first process without a handler is deaf to all but the host's SIGKILL.
    let seen = exec(&container, &first, &["sh", "-c", "kill -0 1 && kill -9 1; echo alive"]);
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "alive\n");
    first.kill().unwrap();
    first.wait().unwrap();
}
