//! The capabilities that a process keeps. Neither it nor its children can regain the others.

use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// Those of Docker and containerd except two. With `MKNOD` they have rules about which nodes may be opened. And with
/// `NET_RAW` a container could read what others send, because its network is the host's; a manifest may add it.
pub const DEFAULTS: CapabilitySet = CapabilitySet::AUDIT_WRITE
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_CHROOT);

/// Limits the programs that this process starts to `kept`. Call it while the process is still root; `before` is the bounding
/// set so far.
pub fn limit_bounding_set(kept: CapabilitySet, before: CapabilitySet) -> Result<()> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(()); // a process without root's power has none to hand on
    }
    for capability in (before - kept).iter() {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(Errno::INVAL) => {} // an older kernel does not know it
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// Limits this process itself to `kept`.
pub fn limit_own(kept: CapabilitySet) -> Result<()> {
    let now = capabilities(None)?;
    let _ = clear_ambient_capability_set(); // a kernel without them has none to clear
    let limited = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, limited)
}
