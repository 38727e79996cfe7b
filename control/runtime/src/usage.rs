//! What instances use of the processor and of memory, for clients that ask.
//!
//! The figures are those of an instance's control group. Where it has none, or a kernel does not count there, they are the
//! sums of its processes, without those that have ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The processes of a running instance.
#[derive(Debug, Clone)]
pub struct InstanceProcesses {
    pub instance: u64,
    /// The first of them, which leads their group.
    pub(crate) leader: i32,
    pub(crate) cgroups: Vec<PathBuf>,
    pub began: Instant,
}

/// What was used so far, and what is used now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Time of processors.
    pub cpu: Duration,
    pub memory_bytes: u64,
}

impl InstanceProcesses {
    /// Reads some files of the kernel.
    #[must_use]
    pub fn usage(&self) -> ResourceUsage {
        let (cpu, memory) =
            (self.cgroups.iter().find_map(|one| group_cpu(one)), self.cgroups.iter().find_map(|one| group_memory(one)));
        if let (Some(cpu), Some(memory_bytes)) = (cpu, memory) {
            return ResourceUsage { cpu, memory_bytes };
        }
        let all = self.processes().filter_map(process_usage).fold(ResourceUsage::default(), |sum, one| ResourceUsage {
            cpu: sum.cpu.saturating_add(one.cpu),
            memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
        });
        ResourceUsage { cpu: cpu.unwrap_or(all.cpu), memory_bytes: memory.unwrap_or(all.memory_bytes) }
    }

    /// The text of `/proc/PID/stat` of each process.
    fn processes(&self) -> impl Iterator<Item = String> {
        let members = self.cgroups.iter().find_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        let leader = self.leader;
        let (ids, by_group): (Vec<String>, _) = match members {
            Some(members) => (members.lines().map(str::to_owned).collect(), false),
            None => {
                let all = fs::read_dir("/proc").into_iter().flatten().flatten();
                let names = all.filter_map(|entry| entry.file_name().into_string().ok());
                (names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).collect(), true)
            }
        };
        let stats = ids.into_iter().filter_map(|id| fs::read_to_string(format!("/proc/{id}/stat")).ok());
        stats
            .filter(move |stat| !by_group || stat_fields(stat).get(2).is_some_and(|group| *group == leader.to_string()))
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The value of a line `NAME VALUE`.
fn line_value(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn group_cpu(folder: &Path) -> Option<Duration> {
    let version_2 = || line_value(&folder.join("cpu.stat"), "usage_usec").map(Duration::from_micros);
    version_2().or_else(|| number(&folder.join("cpuacct.usage")).map(Duration::from_nanos))
}

/// Without what the kernel takes back at once when memory is needed, as the kubelet counts.
fn group_memory(folder: &Path) -> Option<u64> {
    let files = [("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")];
    files.iter().find_map(|(total, inactive)| {
        let inactive = line_value(&folder.join("memory.stat"), inactive).unwrap_or(0);
        Some(number(&folder.join(total))?.saturating_sub(inactive))
    })
}

/// The fields of `/proc/PID/stat` after the name of the program, which may contain anything.
fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default()
}

fn process_usage(stat: String) -> Option<ResourceUsage> {
    let fields = stat_fields(&stat);
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Of itself and of the children that it has reaped.
    let ticks = [11, 12, 13, 14].into_iter().map(field).sum::<Option<u64>>()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let cpu = Duration::from_millis(ticks.saturating_mul(1000) / per_second);
    let memory_bytes = field(21)?.saturating_mul(rustix::param::page_size() as u64);
    Some(ResourceUsage { cpu, memory_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(folder: PathBuf) -> InstanceProcesses {
        let leader = i32::try_from(std::process::id()).unwrap();
        InstanceProcesses { instance: 1, leader, cgroups: vec![folder], began: Instant::now() }
    }

    #[test]
    fn figures_are_those_of_the_control_group() {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cpu.stat", "usage_usec 2500\nuser_usec 1\n"),
            ("memory.current", "5000\n"),
            ("memory.stat", "anon 1\ninactive_file 1000\n"),
        ] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let usage = of(folder.path().to_owned()).usage();
        assert_eq!(usage, ResourceUsage { cpu: Duration::from_micros(2500), memory_bytes: 4000 });
    }

    #[test]
    fn group_that_does_not_count_is_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.procs"), format!("{}\n999999999\n", std::process::id())).unwrap();
        assert!(of(folder.path().to_owned()).usage().memory_bytes > 100_000);
        let stat = "7 (a) b) c) S 1 5 5 0 -1 4194304 1 0 0 0 100 50 25 25 20 0 1 0 9 1 3 1".to_owned();
        let usage = process_usage(stat.clone()).unwrap();
        assert_eq!((usage.cpu.as_secs(), usage.memory_bytes), (2, 3 * rustix::param::page_size() as u64));
        assert_eq!(stat_fields(&stat)[2], "5");
    }
}
