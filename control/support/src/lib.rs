#![forbid(unsafe_code)]
//! Helpers that several crates of the control plane share, without a dependency on any of them.

pub mod blocking;
pub mod bounded_file;
pub mod child_name;
pub mod clock;
pub mod compressed;
pub mod instance_logs;
pub mod labels;
pub mod names;
pub mod nearest;
pub mod sha256;
pub mod worker_threads;
