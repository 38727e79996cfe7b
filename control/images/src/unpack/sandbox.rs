//! The privileges that the unpacking process drops before it reads the first byte.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, Scope,
};
use rustix::process::{Resource, Rlimit, chroot, fchdir, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use super::root_folder::open_root;

/// Data segments: the window of zstd (128 MiB), buffers, the paths of all folders.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// The layer, the folders that are open, and what comes with the process.
const DESCRIPTORS_MAX: u64 = 64;

/// Shuts this process into the folder `path`: chroot, Landlock where the kernel has it, few capabilities and resources.
/// Returns the folder.
pub(super) fn enter(path: &Path) -> io::Result<OwnedFd> {
    set_no_new_privs(true)?;
    let root = open_root(path)?;
    fchdir(&root)?;
    chroot(".")?;
    limit(Resource::Core, 0)?;
    limit(Resource::Data, MEMORY_BYTES_MAX)?;
    limit(Resource::Nofile, DESCRIPTORS_MAX)?;
    drop_capabilities()?;
    restrict(&root).map_err(|why| io::Error::other(format!("Landlock: {why}")))?;
    Ok(root)
}

fn limit(resource: Resource, value: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?)
}

/// Keeps those that owners, modes, whiteouts and the attributes of overlayfs and file capabilities take.
fn drop_capabilities() -> io::Result<()> {
    let kept = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::MKNOD
        | CapabilitySet::SETFCAP
        | CapabilitySet::SYS_ADMIN;
    let has = rustix::thread::capabilities(None)?;
    let kept = kept & has.permitted;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Best effort: chroot and openat2 hold on kernels without Landlock, too.
fn restrict(root: &OwnedFd) -> Result<(), landlock::RulesetError> {
    let files = AccessFs::from_all(ABI::V6);
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)?
        .handle_access(AccessNet::from_all(ABI::V6))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rule(PathBeneath::new(root, files))?
        .restrict_self()?;
    Ok(())
}
