//! New files in the volumes of running instances, and the signal that tells a program of them.

use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::InstanceSpec;
use crate::host::HostContext;
use crate::limits::RELOAD_SIGNAL_ATTEMPTS_MAX;
use crate::mounts::volume_store::{FileOwner, VolumeStore};
use crate::process::host_processes::handles;
use crate::sessions::{InstanceSessions, SessionRegistry};

/// Between two looks whether a program that was just started handles the signal.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(100);

/// Running instances see the new files at their next read; if an update fails, the old files stay.
pub(super) fn apply(host: &HostContext, instances: &SessionRegistry, spec: &InstanceSpec) {
    let store = VolumeStore::new(&host.records.folder(&spec.namespace, &spec.revision), 0);
    match store.write_files(&spec.volumes, FileOwner::of(spec)) {
        Ok(changed) => {
            if spec.reload_volume.as_deref().is_some_and(|volume| changed.contains(&volume)) {
                for instance in instances.of_revision(&spec.namespace, &spec.revision) {
                    drop(spawn_local(signal_reload(instance, spec.revision.clone()))); // ends by itself
                }
            }
        }
        Err(why) => tracing::error!(revision = spec.revision, %why, "volumes keep their old files"),
    }
}

/// Sends SIGHUP once the program handles it: it would end a program that has not got so far yet.
async fn signal_reload(instance: Rc<InstanceSessions>, revision: String) {
    for _ in 0..RELOAD_SIGNAL_ATTEMPTS_MAX {
        let Some(leader) = instance.leader() else { return };
        if handles(leader, Signal::HUP) {
            let _ = kill_process(leader, Signal::HUP); // fails only if it has ended
            return;
        }
        sleep(ATTEMPT_INTERVAL).await;
    }
    tracing::warn!(
        revision,
        "the program does not handle SIGHUP, so changed files have no effect before its next start"
    );
}
