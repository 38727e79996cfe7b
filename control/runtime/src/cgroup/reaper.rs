//! Removes control groups of appliances that were killed and never started again: no other process knows their data folders.
//!
//! Every appliance removes the empty ones that it finds next to its own: the kernel refuses to remove any other.
//! A new group is empty too, so only those are removed that have existed for a while; ids are not used twice.

use std::fs;

use super::CgroupManager;
use crate::limits::ABANDONED_CGROUP_AGE_MIN;

pub(crate) async fn run(cgroups: CgroupManager) {
    let found = cgroups.all_appliance_cgroups();
    tokio::time::sleep(ABANDONED_CGROUP_AGE_MIN).await;
    // Each group is before the folder that it is in.
    let removed = found.iter().filter(|folder| fs::remove_dir(folder).is_ok()).count();
    if removed > 0 {
        tracing::info!(removed, "removed empty control groups that another appliance left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_empty_groups_of_appliances_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = |path: &str| base.path().join(path);
        let (left, used) = ("sluicegate-00112233445566aa", "sluicegate-ff112233445566aa");
        for path in [
            &format!("{left}/7"),
            &format!("{left}/7-1"),
            &format!("{used}/8/in-use"), // what is inside stands for a process: neither lets it be removed
            &format!("{used}/9"),
            "sluicegate-mine/7",
            "other",
        ] {
            fs::create_dir_all(folder(path)).unwrap();
        }
        run(CgroupManager::in_folder(folder("sluicegate-0000000000000000"))).await;
        assert!(!folder(left).exists());
        assert!(folder(&format!("{used}/8")).exists() && !folder(&format!("{used}/9")).exists());
        assert!(folder("sluicegate-mine/7").exists() && folder("other").exists());
    }
}
