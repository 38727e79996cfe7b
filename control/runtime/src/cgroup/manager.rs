//! Control groups: they give an instance its port, and enforce the processor and memory limits of its manifest.
//!
//! A group is created below the appliance's own, in `sluicegate-KEY/ID`: one folder in cgroup v2, and for `resources`
//! one for each controller that is still in v1. The instance joins by itself, in its first step, so that nothing it
//! starts can be outside; if no process joined a group for some seconds, that costs 3.5 ms (the kernel waits for
//! all processors). Where groups may not be created, the log says why, and instances run without.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::cgroup_ports::CgroupPortPrograms;
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::ResourceLimits;
use crate::limits::{CPU_PERIOD_US, GROUP_PIDS_MAX, GROUP_REMOVE_ATTEMPTS, LEFTOVER_EXIT_TIMEOUT};
use crate::names::instance_id;
use support::sha256;

/// The prefix of the folder of all groups of a data folder; the key follows.
const PREFIX: &str = "sluicegate-";
/// Long enough to distinguish the data folders of a host.
const KEY_CHARS: usize = 16;
const REMOVE_RETRY_DELAY: Duration = Duration::from_millis(10);
/// The group that the appliance moves itself to when its own group gets children: cgroup v2 has processes in leaves only.
const OWN_LEAF: &str = "appliance";
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Files that a kernel may be built without, and that no limit depends on.
const OPTIONAL_FILES: [&str; 3] = ["memory.swap.max", "memory.oom.group", "memory.memsw.limit_in_bytes"];

/// The parents of groups.
#[derive(Debug, Clone)]
pub(crate) struct CgroupManager {
    /// Each holds the groups of all instances of one data folder that have `resources`.
    folders: Vec<PathBuf>,
    unified: bool,
    /// The same for the ports of all instances; in cgroup v2 only.
    ports: Option<PathBuf>,
    /// The mount points of hierarchies.
    mount_points: Vec<PathBuf>,
}

/// The group of one instance, in as many hierarchies as it needs.
#[derive(Debug, Default)]
pub(crate) struct InstanceCgroup {
    /// The name of each of its folders: the instance's id, or that of an earlier one, a hyphen and a number.
    name: String,
    folders: Vec<PathBuf>,
    /// Kills by the kernel that [`InstanceCgroup::was_out_of_memory`] has reported.
    kills_reported: Cell<u64>,
}

impl CgroupManager {
    /// Detects where groups can be created, for the appliance with the data folder `data`. Changes nothing.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let name = format!("{PREFIX}{}", data_dir_key(data));
        // A leaf group, our own or one that a service manager created for us: the groups are created next to it.
        let sibling = |base: PathBuf| match base.parent() {
            Some(above) if base.ends_with(OWN_LEAF) => above.join(&name),
            _ => base.join(&name),
        };
        let second = own_cgroup(&mounts, &own, None);
        let unified = second.as_ref().is_some_and(|folder| {
            let known = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
            known.split_whitespace().any(|name| name == "memory")
        });
        let ports = second.map(sibling);
        let folders = match &ports {
            Some(folder) if unified => vec![folder.clone()],
            _ => CONTROLLERS.iter().filter_map(|name| Some(sibling(own_cgroup(&mounts, &own, Some(name))?))).collect(),
        };
        Ok(Self { folders, unified, ports, mount_points: cgroup_mounts(&mounts) })
    }

    #[cfg(test)]
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folders: vec![folder.clone()], unified: true, ports: Some(folder), mount_points: Vec::new() }
    }

    /// Creates the folders above the groups, which are removed with the last group, and delegates v2's controllers to
    /// them.
    fn prepare(&self) -> io::Result<()> {
        for folder in &self.folders {
            // An earlier run may have created the folder for ports only.
            if self.unified && !has_delegated(folder) {
                if let Some(base) = folder.parent() {
                    delegate(base)?;
                }
                create_dir(folder)?;
                delegate_controllers(folder)?;
            }
            create_dir(folder)?;
        }
        Ok(())
    }

    /// Gives `group` its own ports, which are redirected to the host's.
    pub(crate) fn add_port(&self, group: &mut InstanceCgroup, port: &CgroupPortPrograms<'_>) -> io::Result<()> {
        let above = self.ports.as_ref().ok_or_else(|| io::Error::other("cgroup v2 is not mounted"))?;
        create_dir(above)?;
        group.create_in(std::slice::from_ref(above), |folder| {
            let attached = port.attach(fs::File::open(folder)?.as_fd());
            attached.map_err(|why| io::Error::new(why.kind(), format!("bpf at {}: {why}", above.display())))
        })
    }

    /// Applies `resources` to `group`, and returns those that cannot be enforced.
    pub(crate) fn add_resources(&self, group: &mut InstanceCgroup, resources: ResourceLimits) -> io::Result<()> {
        if self.folders.is_empty() {
            return Err(io::Error::other("no control groups with memory, cpu or pids are mounted"));
        }
        self.prepare()?;
        let values = limit_values(resources, self.unified);
        group.create_in(&self.folders, |folder| {
            values.iter().try_for_each(|(file, value)| write_value(folder, file, value))
        })?;
        let holds = |file: &str| group.folders.iter().any(|folder| folder.join(file).exists());
        match values.iter().find(|(file, _)| !OPTIONAL_FILES.contains(file) && !holds(file)) {
            Some((file, _)) => Err(io::Error::other(format!("no control group has {file}"))),
            None => Ok(()),
        }
    }

    /// The groups of all appliances that have them next to ours, and the folders above those.
    pub(crate) fn all_appliance_cgroups(&self) -> Vec<PathBuf> {
        let inside = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            folders.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let named = |path: &Path, is_ours: fn(&str) -> bool| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(is_ours)
        };
        let sibling = self.folders.iter().chain(&self.ports).filter_map(|folder| folder.parent());
        let mut found = Vec::new();
        for above in sibling.flat_map(inside).filter(|above| named(above, is_appliance_cgroup)) {
            found.extend(inside(&above).into_iter().filter(|group| named(group, |name| instance_id(name).is_some())));
            found.push(above);
        }
        found
    }

    /// The mount point of the hierarchy that `folder` is in.
    pub(crate) fn mount_point_of(&self, folder: &Path) -> Option<&Path> {
        let around = self.mount_points.iter().filter(|point| folder.starts_with(point));
        around.max_by_key(|point| point.as_os_str().len()).map(PathBuf::as_path)
    }

    /// Ends the processes in the groups of instances that `is_left`, and removes them. Blocks for a bounded time.
    pub(crate) fn kill_leftovers(&self, is_left: &dyn Fn(u64) -> bool) {
        for folder in self.folders.iter().chain(&self.ports) {
            let groups = fs::read_dir(folder).into_iter().flatten().flatten();
            let old =
                groups.filter(|group| instance_id(group.file_name().to_str().unwrap_or_default()).is_some_and(is_left));
            for group in old {
                kill_and_remove(&group.path());
            }
            let _ = fs::remove_dir(folder); // stays while another appliance's group is in it
        }
    }
}

impl InstanceCgroup {
    /// None yet, and none is created before something is added.
    pub(crate) fn new(name: String) -> Self {
        Self { name, folders: Vec::new(), kills_reported: Cell::default() }
    }

    /// Creates the group's folders below `above` and sets them up. A folder that could not be set up is removed again, and
    /// existing ones stay.
    fn create_in(&mut self, above: &[PathBuf], set: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let folders: Vec<_> = above.iter().map(|above| above.join(&self.name)).collect();
        let mut fresh = Self::default(); // removes what it holds, if this ends early
        for folder in &folders {
            if let Err(why) = create_dir(folder) {
                // A cleanup on the host removed the folder above as unused.
                folder.parent().filter(|_| why.kind() == io::ErrorKind::NotFound).map_or(Err(why), create_dir)?;
                create_dir(folder)?;
            }
            if !self.folders.contains(folder) {
                fresh.folders.push(folder.clone());
            }
            set(folder)?;
        }
        self.folders.append(&mut fresh.folders);
        Ok(())
    }

    /// The files to which a process writes itself to join.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The file that freezes its processes; cgroup v2 only.
    pub(crate) fn freeze_switch(&self) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.freeze")).find(|file| file.exists())
    }

    /// Whether the kernel has killed a process in it because of its memory limit, since this was asked last.
    pub(crate) fn was_out_of_memory(&self) -> bool {
        let files = self.folders.iter().flat_map(|f| [f.join("memory.events"), f.join("memory.oom_control")]);
        let texts = files.filter_map(|file| fs::read_to_string(file).ok());
        let kills = texts.filter_map(|text| {
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
            count.trim().parse::<u64>().ok()
        });
        let kills = kills.max().unwrap_or_default();
        self.kills_reported.replace(kills) < kills
    }

    /// Removes it after all its processes have ended. The kernel may need a moment to see that.
    pub(crate) async fn remove(mut self) {
        for _ in 0..GROUP_REMOVE_ATTEMPTS {
            if self.drop_folders() {
                self.folders.clear();
                return;
            }
            tokio::time::sleep(REMOVE_RETRY_DELAY).await;
        }
        let group = self.folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" ");
        tracing::warn!(group, "a control group stays behind until the next start");
    }

    fn drop_folders(&self) -> bool {
        let gone = |folder: &PathBuf| fs::remove_dir(folder).is_ok() || !folder.exists();
        let all_gone = self.folders.iter().filter(|folder| !gone(folder)).count() == 0;
        for above in self.folders.iter().filter_map(|folder| folder.parent()) {
            let _ = fs::remove_dir(above); // stays while another group is in it
        }
        all_gone
    }
}

/// A start that failed leaves no group.
impl Drop for InstanceCgroup {
    fn drop(&mut self) {
        self.drop_folders();
    }
}

/// The files to write with their values. Files that a controller's folder does not have are left out.
fn limit_values(resources: ResourceLimits, unified: bool) -> Vec<(&'static str, String)> {
    let ResourceLimits { memory_bytes_max: memory, cpu_milli_max: cpu, cpu_milli_request: wanted } = resources;
    let quota = cpu.saturating_mul(CPU_PERIOD_US) / 1000;
    // As a kubelet does it: 1024 shares a processor in v1, and the same proportion in v2's 1 to 10,000.
    let shares = (wanted.saturating_mul(1024) / 1000).clamp(2, 262_144);
    let weight = 1 + (shares - 2) * 9_999 / 262_142;
    let mut all = vec![("pids.max", GROUP_PIDS_MAX.to_string())];
    if unified {
        if memory > 0 {
            all.extend([("memory.max", memory.to_string()), ("memory.swap.max", "0".into())]);
            all.push(("memory.oom.group", "1".into()));
        }
        all.extend((cpu > 0).then(|| ("cpu.max", format!("{quota} {CPU_PERIOD_US}"))));
        all.extend((wanted > 0).then(|| ("cpu.weight", weight.to_string())));
    } else {
        if memory > 0 {
            let (limit, with_swap) = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
            all.extend([(limit, memory.to_string()), (with_swap, memory.to_string())]);
        }
        if cpu > 0 {
            all.push(("cpu.cfs_period_us", CPU_PERIOD_US.to_string()));
            all.push(("cpu.cfs_quota_us", quota.to_string()));
        }
        all.extend((wanted > 0).then(|| ("cpu.shares", shares.to_string())));
    }
    all
}

fn write_value(folder: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = folder.join(file);
    if !path.exists() {
        return Ok(()); // another controller's, or one that this kernel lacks
    }
    fs::write(&path, value).map_err(|why| io::Error::new(why.kind(), format!("{} = {value}: {why}", path.display())))
}

fn create_dir(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
            Err(io::Error::new(why.kind(), format!("{} cannot be made: {why}", folder.display())))
        }
        _ => Ok(()),
    }
}

fn cgroup_mounts(mounts: &str) -> Vec<PathBuf> {
    let of_groups = |line: &&str| line.split_once(" - ").is_some_and(|(_, kind)| kind.starts_with("cgroup"));
    mounts.lines().filter(of_groups).filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// The folder of this process's own group, in the hierarchy of a v1 controller, or in v2's for none.
fn own_cgroup(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        let is_it = match controller {
            Some(wanted) => names.split(',').any(|name| name == wanted),
            None => names.is_empty(),
        };
        is_it.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let is_it = match controller {
            Some(wanted) => kind == "cgroup" && options.split(',').any(|option| option == wanted),
            None => kind == "cgroup2",
        };
        // A container may see only its own part.
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or_default();
        is_it.then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

/// Enables controllers for groups below `base`. If processes prevent that and it is only us, we move to a leaf.
fn delegate(base: &Path) -> io::Result<()> {
    if delegate_controllers(base).is_ok() {
        return Ok(());
    }
    let leaf = base.join(OWN_LEAF);
    create_dir(&leaf)?;
    let own = getpid().as_raw_nonzero().to_string();
    fs::write(leaf.join("cgroup.procs"), &own)?;
    delegate_controllers(base).inspect_err(|_| {
        let _ = fs::write(base.join("cgroup.procs"), &own); // as it was, as far as that goes
        let _ = fs::remove_dir(&leaf);
    })
}

fn delegate_controllers(folder: &Path) -> io::Result<()> {
    let wanted: Vec<_> = read_controllers(&folder.join("cgroup.controllers"))?.map(|name| format!("+{name}")).collect();
    let file = folder.join("cgroup.subtree_control");
    fs::write(&file, wanted.join(" ")).map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", file.display())))
}

/// Groups below `folder` have all the controllers that it could delegate.
fn has_delegated(folder: &Path) -> bool {
    let of = |file: &str| read_controllers(&folder.join(file)).map(Iterator::collect::<Vec<_>>);
    matches!((of("cgroup.controllers"), of("cgroup.subtree_control")), (Ok(has), Ok(gives)) if !has.is_empty() && has == gives)
}

/// The controllers that we need among those in a file of cgroup v2.
fn read_controllers(file: &Path) -> io::Result<impl Iterator<Item = &'static str>> {
    let text = fs::read_to_string(file)?;
    Ok(CONTROLLERS.into_iter().filter(move |name| text.split_whitespace().any(|word| word == *name)))
}

/// Ends all processes of a group and removes it.
fn kill_and_remove(folder: &Path) {
    let began = std::time::Instant::now();
    while fs::remove_dir(folder).is_err() && folder.exists() && began.elapsed() < LEFTOVER_EXIT_TIMEOUT {
        let inside = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL); // it may be gone by now
        }
        let no_files: &mut [rustix::event::PollFd<'_>] = &mut [];
        let _ = rustix::event::poll(no_files, rustix::event::Timespec::try_from(REMOVE_RETRY_DELAY).ok().as_ref());
    }
}

/// Whether a folder is one of our groups.
fn is_appliance_cgroup(name: &str) -> bool {
    let key = name.strip_prefix(PREFIX).unwrap_or_default();
    key.len() == KEY_CHARS && key.chars().all(|c| c.is_ascii_hexdigit())
}

/// The appliance's part of the name, the same at every start.
fn data_dir_key(data: &Path) -> String {
    let path = data.canonicalize().unwrap_or_else(|_| data.to_owned());
    sha256::hex_digest(path.as_os_str().as_encoded_bytes())[..KEY_CHARS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_either_version_and_in_a_container() {
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                  32 31 0:29 /part /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let own = "4:memory:/a/b\n1:cpu,cpuacct:/part/c\n0::/user.slice\n";
        let v2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        for (mounts, controller, wanted) in [
            (v1, Some("memory"), Some("/sys/fs/cgroup/memory/a/b")),
            (v1, Some("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct/c")),
            (v1, Some("pids"), None),
            (v1, None, None),
            (v2, None, Some("/sys/fs/cgroup/user.slice")),
            ("", None, None),
        ] {
            assert_eq!(own_cgroup(mounts, own, controller).as_deref(), wanted.map(Path::new), "{controller:?}");
        }
    }

    /// SRV-CON-56, RT-CG-03: what is written, in both versions.
    #[test]
    fn quantities_become_the_kernels_numbers() {
        let half = ResourceLimits { memory_bytes_max: 64 << 20, cpu_milli_max: 500, cpu_milli_request: 100 };
        let shown = |resources, unified| {
            let all = limit_values(resources, unified);
            all.iter().map(|(file, value)| format!("{file}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(half, true),
            "pids.max=4096 memory.max=67108864 memory.swap.max=0 memory.oom.group=1 cpu.max=50000 100000 cpu.weight=4"
        );
        assert_eq!(
            shown(half, false),
            "pids.max=4096 memory.limit_in_bytes=67108864 memory.memsw.limit_in_bytes=67108864 \
             cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000 cpu.shares=102"
        );
        assert_eq!(shown(ResourceLimits::default(), true), "pids.max=4096");
    }

    /// A folder like the kernel's, where `instance` has been made already for its port.
    fn second_version(instance: &str) -> (tempfile::TempDir, CgroupManager) {
        let base = tempfile::tempdir().unwrap();
        let all = base.path().join("all");
        fs::create_dir_all(all.join(instance)).unwrap();
        for folder in [base.path(), &all] {
            fs::write(folder.join("cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
            fs::write(folder.join("cgroup.subtree_control"), "").unwrap();
        }
        (base, CgroupManager::in_folder(all))
    }

    /// SRV-CON-56: instances that came before with no more than a port do not keep later ones from their limits.
    #[test]
    fn limits_hold_where_a_port_came_first() {
        let (base, cgroups) = second_version("7");
        let own = base.path().join("all/7");
        for file in ["pids.max", "memory.max"] {
            fs::write(own.join(file), "max").unwrap();
        }
        let mut group = InstanceCgroup::new("7".into());
        let mut resources = ResourceLimits { memory_bytes_max: 64 << 20, ..ResourceLimits::default() };
        cgroups.add_resources(&mut group, resources).unwrap();
        let read = |file: PathBuf| fs::read_to_string(file).unwrap();
        for folder in [base.path(), &base.path().join("all")] {
            assert_eq!(read(folder.join("cgroup.subtree_control")), "+memory +cpu +pids");
        }
        assert_eq!(read(own.join("memory.max")), (64 << 20).to_string());

        resources.cpu_milli_max = 100;
        let why = cgroups.add_resources(&mut group, resources).unwrap_err();
        assert_eq!(why.to_string(), "no control group has cpu.max");
    }

    #[test]
    fn a_step_that_fails_takes_away_what_it_made_and_no_more() {
        let (_base, cgroups) = second_version("6");
        let mut group = InstanceCgroup::new("7".into());
        group.create_in(&cgroups.folders, |_| Ok(())).unwrap();
        let refuse = |_: &Path| Err(io::Error::other("no"));
        group.create_in(&cgroups.folders, refuse).unwrap_err();
        assert!(cgroups.folders[0].join("7").exists());
        InstanceCgroup::new("8".into()).create_in(&cgroups.folders, refuse).unwrap_err();
        assert!(!cgroups.folders[0].join("8").exists());
    }
}
