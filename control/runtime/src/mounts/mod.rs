//! The host's files as an instance sees them, and what covers them.

pub(crate) mod bind;
pub(crate) mod devices;
pub(crate) mod host_views;
mod masks;
mod mount_table;
pub(crate) mod read_only_root;
pub(crate) mod tmpfs;
mod tree;
pub(crate) mod volume_store;

use rustix::process::geteuid;

/// Suffix of the folder with all of an instance's own volumes, after the instance's id.
const EMPTY_DIR_SUFFIX: &str = ".empty";

/// Whether this process may give its instances mount namespaces. If root lacks the capability, the instance fails and its
/// output says so.
#[must_use]
pub fn may_mount() -> bool {
    geteuid().is_root()
}
