//! Control groups: limits of instances, freezing, and a port for each instance.

use std::fs;
use std::path::Path;

use super::Check;

/// Without one of them the part of `resources` that it enforces has no effect.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn checks() -> Vec<Check> {
    let root = Path::new("/sys/fs/cgroup");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let unified = mounts.lines().any(|line| line.contains(" - cgroup2 "));
    let available = fs::read_to_string(root.join("cgroup.controllers"));
    vec![hierarchy(unified), controllers(available.ok().as_deref())]
}

fn hierarchy(unified: bool) -> Check {
    if unified {
        return Check::ok("cgroups", "version 2");
    }
    Check::warning(
        "cgroups",
        "version 2 is not mounted",
        "instances share the host's ports and are not frozen when idle: start the host with systemd.unified_cgroup_hierarchy=1",
    )
}

/// `available`: the list of version 2 at the usual mount point. `None`: version 1 is mounted there, whose controllers are folders.
fn controllers(available: Option<&str>) -> Check {
    let Some(available) = available else {
        return Check::warning(
            "cgroup limits",
            "version 1",
            "limits work; an instance that exceeds memory is killed one process at a time",
        );
    };
    let missing: Vec<_> =
        CONTROLLERS.into_iter().filter(|name| !available.split_whitespace().any(|other| other == *name)).collect();
    match missing.as_slice() {
        [] => Check::ok("cgroup limits", CONTROLLERS.join(", ")),
        missing => Check::warning(
            "cgroup limits",
            format!("no controller {}", missing.join(", ")),
            "`resources` of manifests are not enforced: delegate the controllers to this unit (Delegate=cpu memory pids)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn missing_controllers_are_named() {
        assert_eq!(controllers(Some("cpuset cpu io memory pids")).verdict, Verdict::Ok);
        let check = controllers(Some("cpuset io memory"));
        assert_eq!((check.verdict, check.value.as_str()), (Verdict::Warning, "no controller cpu, pids"));
        assert_eq!(controllers(None).value, "version 1");
        assert_eq!(hierarchy(false).verdict, Verdict::Warning);
    }
}
