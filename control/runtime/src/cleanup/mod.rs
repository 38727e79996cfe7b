//! Ends and removes the remains of instances, of this process and of earlier ones.

pub(crate) mod generations;
pub(crate) mod process_reaper;
pub(crate) mod records;

use std::io;
use std::path::Path;

use crate::cgroup::CgroupManager;
use crate::launch::container_launcher::remove_leftovers;
use crate::mounts::tmpfs;
use generations::Claims;
use records::InstanceRecords;

/// Below the data folder: logs and records of instances.
pub(crate) const INSTANCES_DIR: &str = "instances";

/// What is recorded of instances without a claim: an earlier version made none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unclaimed {
    Ended,
    Running,
}

/// Ends what appliances left behind in `data` that have ended. Blocks for as long as the leftovers take to vanish.
pub fn kill_leftovers(data: &Path) -> io::Result<()> {
    clear_up(data, Unclaimed::Ended)
}

pub(crate) fn clear_up(data: &Path, unclaimed: Unclaimed) -> io::Result<()> {
    let folder = data.join(INSTANCES_DIR);
    let claims = Claims::read(&folder)?;
    let is_left = |id| claims.has_ended(id).unwrap_or(unclaimed == Unclaimed::Ended);
    InstanceRecords::open(&folder)?.kill_leftovers(&is_left);
    tmpfs::unmount_leftovers(&folder, &is_left);
    remove_leftovers(&folder, &is_left);
    if let Ok(cgroups) = CgroupManager::open(data) {
        cgroups.kill_leftovers(&is_left);
    }
    claims.forget_ended();
    Ok(())
}

/// Clears up after each other appliance on `data` when it has ended, on a thread each.
pub(crate) fn clear_up_after_others(data: &Path, own: u64) -> io::Result<()> {
    for claim in Claims::read(&data.join(INSTANCES_DIR))?.of_others(own) {
        let (claim, data) = (claim.to_owned(), data.to_owned());
        std::thread::Builder::new().name("leftovers".into()).spawn(move || {
            let cleared = generations::wait_for_end(&claim).and_then(|()| clear_up(&data, Unclaimed::Running));
            if let Err(why) = cleared {
                tracing::warn!(claim = %claim.display(), %why, "instances of another process may remain");
            }
        })?;
    }
    Ok(())
}
