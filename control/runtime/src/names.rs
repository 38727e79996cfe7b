//! Names made of an instance's revision and id, and the ids in names.

use support::child_name::child_name;

use crate::InstanceSpec;
use crate::limits::HOST_NAME_BYTES_MAX;

/// The name of a Revision's Deployment; its Pods' names begin with it.
#[must_use]
pub fn deployment_name(revision: &str) -> String {
    child_name(revision, "-deployment")
}

/// The name of the Pod that shows instances of `line`.
#[must_use]
pub fn pod_name(revision: &str, mut line: u64) -> String {
    const BASE36: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut letters = Vec::new();
    loop {
        letters.push(BASE36[(line % 36) as usize]);
        line /= 36;
        if line == 0 {
            break;
        }
    }
    letters.reverse();
    format!("{}-{}", deployment_name(revision), String::from_utf8_lossy(&letters))
}

/// The Pod that shows an instance of `line`.
pub(crate) fn instance_name(spec: &InstanceSpec, line: u64) -> String {
    spec.pod.as_ref().map_or_else(|| pod_name(&spec.revision, line), |pod| pod.name.clone())
}

/// The host name of that Pod's instances: as much of the name as a host name may have.
pub(crate) fn host_name(pod: &str) -> &str {
    pod[..pod.floor_char_boundary(HOST_NAME_BYTES_MAX)].trim_end_matches(['-', '.'])
}

/// The id by which the name of a group, or of a record, begins.
pub(crate) fn instance_id(name: &str) -> Option<u64> {
    name.split('-').next()?.parse().ok()
}
