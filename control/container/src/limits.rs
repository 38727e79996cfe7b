//! The limits of a container, each with its reason.

/// Layers of an image: as many as overlayfs takes, less some for a kernel that counts the upper layer.
pub const LAYERS_MAX: usize = 480;
/// Size of `/etc/passwd` and `/etc/group` of an image, which the author of the image chooses.
pub const USER_DATABASE_BYTES_MAX: u64 = 4 << 20;
/// Supplementary groups of a process: as many as Linux has had since 2.6.4.
pub const GROUPS_MAX: usize = 65_536;
/// Users and groups of a container with a user namespace: what distributions use, and what Kubernetes gives.
pub const USER_IDS: u32 = 65_536;
/// Symbolic links that are followed to a mount path that does not exist: as many as the kernel follows.
pub const LINKS_MAX: usize = 40;
/// Size of a container's `/dev`, which holds nodes and links only.
pub const DEVICES_BYTES_MAX: u64 = 64 << 10;
/// Size of `/dev/shm`, as Docker and containerd have it.
pub const SHARED_MEMORY_BYTES_MAX: u64 = 64 << 20;
/// The size of `/tmp` with a read-only root: it is in memory, and counts as the container's.
pub const TMP_BYTES_MAX: u64 = 64 << 20;
/// Size of all that a container writes, where its layers cannot be on disk: it is in memory, and counts as the container's.
pub const SCRATCH_BYTES_MAX: u64 = 256 << 20;
