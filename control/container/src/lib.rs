//! Runs a program in a container on this host, without a daemon and without an OCI runtime.
//!
//! The parent starts its own program again as the first process of a new pid namespace ([`namespaces`]), from a read-only
//! view of its file ([`program`]). That process does the setup that all containers share ([`launch::PreparedContainer`]), may
//! wait there, and then becomes the container that a [`ContainerSpec`] describes: an overlay of the image's layers as its
//! root ([`rootfs`]), the user of the image ([`user`]), few capabilities, and a seccomp filter ([`seccomp`]).
//!
//! The program runs a hidden verb instead of code between fork and exec, because that code may do hardly anything and would need
//! `unsafe`. The network is the host's.

pub mod capabilities;
mod cgroup_views;
mod devices;
mod enter;
mod kernel_filesystems;
pub mod launch;
pub mod limits;
mod mounts;
pub mod namespaces;
mod overlay;
mod parent;
mod path_text;
pub mod process_config;
pub mod program;
pub mod rootfs;
mod scope;
pub mod seccomp;
mod spec;
mod targets;
pub mod terminal;
pub mod user;
pub mod user_namespace;

pub use devices::create_device_nodes;
pub use enter::{ExecSpec, ExecStdin};
pub use spec::{BindMount, CgroupView, ContainerSpec};
