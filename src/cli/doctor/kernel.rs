//! The kernel: its release, io_uring, system call filters, Landlock, the identity of this process.

use std::fs;

use control::runtime::may_mount;

use super::Check;

/// From this release Landlock can scope abstract Unix sockets.
const LANDLOCK_SCOPES: (u32, u32) = (6, 12);

pub(super) fn checks() -> Vec<Check> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![io_uring(&release), seccomp(), landlock(&release), root()]
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn io_uring(release: &str) -> Check {
    match dataplane::core::check_kernel() {
        Ok(()) => Check::ok("io_uring", format!("Linux {release}")),
        Err(why) => Check::warning(
            "io_uring",
            why.to_string(),
            "epoll is used instead, and a request takes more CPU time: use Linux 6.1 or newer, \
             `sysctl kernel.io_uring_disabled=0`, and in a container a seccomp profile that allows io_uring_setup, \
             io_uring_enter and io_uring_register",
        ),
    }
}

/// Containers of this appliance install a seccomp filter.
fn seccomp() -> Check {
    match read("/proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.contains("errno") => Check::ok("seccomp", "available"),
        _ => Check::warning("seccomp", "not available", "containers do not start; processes (`--image`) do"),
    }
}

fn landlock(release: &str) -> Check {
    let modules = read("/sys/kernel/security/lsm").unwrap_or_default();
    let advice =
        "containers can reach abstract Unix sockets of this host: use Linux 6.12 or newer with `lsm=landlock,…`";
    match version(release) {
        // If securityfs is not mounted, the list is unknown.
        Some(version) if version >= LANDLOCK_SCOPES && (modules.is_empty() || modules.contains("landlock")) => {
            Check::ok("landlock", if modules.is_empty() { "kernel is new enough" } else { "enabled" })
        }
        Some(version) if version >= LANDLOCK_SCOPES => Check::warning("landlock", "not enabled", advice),
        _ => Check::warning("landlock", format!("Linux {release} has no scopes"), advice),
    }
}

fn root() -> Check {
    if may_mount() {
        return Check::ok("user", "root");
    }
    Check::warning(
        "user",
        "not root",
        "images do not run as containers, and volumes cannot be mounted: run as root, or use `--image` and `class: process`",
    )
}

/// Major and minor number of a release such as `6.12.4-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(version("6.12.4-amd64"), Some((6, 12)));
        assert_eq!(version("6.1-rc3"), Some((6, 1)));
        assert_eq!(version("unknown"), None);
    }
}
