//! Control groups of instances.

mod manager;
pub(crate) mod reaper;

pub(crate) use manager::{CgroupManager, InstanceCgroup};
