#![forbid(unsafe_code)]
//! What several crates of the control plane share, and what knows none of them.

pub mod blocking;
pub mod bounded_file;
pub mod child_name;
pub mod clock;
pub mod compressed;
pub mod instance_logs;
pub mod labels;
pub mod names;
pub mod sha256;
pub mod worker_threads;
