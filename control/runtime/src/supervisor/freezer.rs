//! Frozen instances: no processor time and no probes, and resumed within a moment.
//!
//! SIGSTOP to the whole group, which needs no privilege and no control groups. A process that left the group continues. A
//! container's programs create groups as they like, so it is frozen by its control group, where there is one.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::process::Child;

use rustix::process::Signal;
use tokio::sync::Notify;

use crate::process::child::signal_group;

/// Whether an instance is frozen, and the task that waits for a change.
#[derive(Debug, Default)]
pub(crate) struct Freezer {
    frozen: Cell<bool>,
    /// `cgroup.freeze` of its control group.
    switch: Option<PathBuf>,
    changed: Notify,
}

impl Freezer {
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.get()
    }

    pub(crate) fn by_cgroup(switch: Option<PathBuf>) -> Self {
        Self { switch, ..Self::default() }
    }

    pub(crate) fn set(&self, child: &Child, frozen: bool) {
        if self.frozen.replace(frozen) != frozen {
            let switched =
                self.switch.as_ref().is_some_and(|file| fs::write(file, if frozen { "1" } else { "0" }).is_ok());
            if !switched {
                signal_group(child, if frozen { Signal::STOP } else { Signal::CONT });
            }
            self.changed.notify_one();
        }
    }

    /// For the next process, after a frozen one has ended.
    pub(crate) fn reset(&self) {
        self.frozen.set(false);
    }

    /// Returns after the next change, or at once if the last change has not been awaited yet.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn next_process_after_frozen_one_is_not_frozen() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let freezer = Freezer::default();
        freezer.set(&child, true);
        assert!(freezer.is_frozen());
        child.kill().unwrap();
        child.wait().unwrap();
        freezer.reset();
        assert!(!freezer.is_frozen());
    }
}
