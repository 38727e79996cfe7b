//! Instances that stand still: no processor time, no probes, and still there in a moment.
//!
//! SIGSTOP to the whole group, which needs no privilege and no control groups. A process that left the group goes on.

use std::cell::Cell;
use std::process::Child;

use rustix::process::Signal;
use tokio::sync::Notify;

use super::launcher::signal_group;

/// Whether an instance is frozen, and who wants to know when that changes.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    frozen: Cell<bool>,
    changed: Notify,
}

impl Freezer {
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.get()
    }

    pub(super) fn set(&self, child: &Child, frozen: bool) {
        if self.frozen.replace(frozen) != frozen {
            signal_group(child, if frozen { Signal::STOP } else { Signal::CONT });
            self.changed.notify_one();
        }
    }

    /// Returns after the next change, or the last one if nobody has seen it.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
