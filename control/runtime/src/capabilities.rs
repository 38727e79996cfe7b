//! The capabilities of an instance.
//!
//! Those of programs in containers, without those that the manifest drops, and with those that it adds. An instance of another user than
//! root has none of them anyway. A capability that it lacks cannot be regained, neither by it nor by its children.

use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

/// The default capabilities of container runtimes: enough to be an ordinary root of its own files and processes, and too
/// little to mount, to trace others or to set up the host. Except for `MKNOD`, with which they have device rules for opening
/// what is made.
const CONTAINER_DEFAULTS: CapabilitySet = CapabilitySet::AUDIT_WRITE
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_CHROOT);
/// All there are, in a manifest.
const ALL: &str = "ALL";

/// A set of capabilities (capabilities(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(CapabilitySet);

impl Default for Capabilities {
    fn default() -> Self {
        Self(CONTAINER_DEFAULTS)
    }
}

impl Capabilities {
    /// Those of a manifest, whose names are without `CAP_`. `ALL` is applied first, so that the other names count.
    #[must_use]
    pub fn from_manifest(added: &[String], dropped: &[String]) -> Self {
        Self::from_defaults(CONTAINER_DEFAULTS, added, dropped)
    }

    /// The same of a container.
    #[must_use]
    pub fn of_container(added: &[String], dropped: &[String]) -> Self {
        Self::from_defaults(container::capabilities::DEFAULTS, added, dropped)
    }

    fn from_defaults(defaults: CapabilitySet, added: &[String], dropped: &[String]) -> Self {
        let has_all = |names: &[String]| names.iter().any(|name| name == ALL);
        let mut kept = match (has_all(added), has_all(dropped)) {
            (_, true) => CapabilitySet::empty(),
            (true, false) => CapabilitySet::all(),
            (false, false) => defaults,
        };
        kept.extend(added.iter().filter_map(|name| by_name(name)));
        for capability in dropped.iter().filter_map(|name| by_name(name)) {
            kept.remove(capability);
        }
        Self(kept)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0.bits()
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(CapabilitySet::from_bits_truncate(bits))
    }

    /// The capabilities of all instances, or fewer.
    pub(crate) fn within_defaults(self) -> bool {
        CONTAINER_DEFAULTS.contains(self.0)
    }

    /// Nothing that this process starts has more. To be done while it is still root; `before`: what it was bound to then.
    pub(crate) fn limit_bounding_set(self, before: Option<Self>) -> Result<()> {
        if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
            return Ok(()); // nor has it anything to hand on
        }
        let before = before.map_or(CapabilitySet::all(), |before| before.0);
        for capability in (before - self.0).iter() {
            match remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(Errno::INVAL) => {} // an older kernel does not know it
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Nor has it more itself.
    pub(crate) fn apply(self) -> Result<()> {
        let now = capabilities(None)?;
        let kept = CapabilitySets {
            effective: now.effective & self.0,
            permitted: now.permitted & self.0,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, kept)
    }
}

/// The capability with this name, if there is one.
#[must_use]
pub fn is_known(name: &str) -> bool {
    name == ALL || by_name(name).is_some()
}

fn by_name(name: &str) -> Option<CapabilitySet> {
    CapabilitySet::from_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kubernetes' words for it, as its runtimes read them.
    #[test]
    fn a_manifest_drops_and_adds() {
        let all = CapabilitySet::all();
        for (added, dropped, kept) in [
            (vec![], vec![], CONTAINER_DEFAULTS),
            (vec![], vec!["ALL"], CapabilitySet::empty()),
            (vec!["NET_BIND_SERVICE"], vec!["ALL"], CapabilitySet::NET_BIND_SERVICE),
            (vec![], vec!["CHOWN", "SYS_ADMIN", "nonsense"], CONTAINER_DEFAULTS - CapabilitySet::CHOWN),
            (vec!["NET_ADMIN"], vec![], CONTAINER_DEFAULTS | CapabilitySet::NET_ADMIN),
            (vec!["ALL"], vec![], all),
            (vec!["ALL"], vec!["SYS_ADMIN"], all - CapabilitySet::SYS_ADMIN),
        ] {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let found = Capabilities::from_manifest(&owned(&added), &owned(&dropped));
            assert_eq!(found, Capabilities(kept), "{added:?} {dropped:?}");
            assert_eq!(Capabilities::from_bits(found.bits()), found);
        }
    }

    #[test]
    fn a_name_is_written_as_kubernetes_does() {
        assert!(is_known("SYS_ADMIN") && is_known("ALL"));
        assert!(!is_known("CAP_SYS_ADMIN") && !is_known("sys_admin") && !is_known(""));
    }
}
