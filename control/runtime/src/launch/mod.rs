//! From a spec to a process: the appliance's side, and the side of the started process.

pub(crate) mod container_launcher;
pub mod init;
mod launch_spec;
pub(crate) mod launcher;
pub(crate) mod session_process;
mod session_words;
pub(crate) mod waiting_process;

use std::ffi::OsString;
use std::path::PathBuf;

/// The program that becomes an instance: one whose `main` hands [`init::VERB`] to
/// [`init::run`].
#[derive(Debug, Clone)]
pub struct InitProgram {
    pub program: PathBuf,
    /// The arguments before the verb.
    pub arguments: Vec<OsString>,
}

impl InitProgram {
    /// This program itself, even if its file was replaced meanwhile.
    #[must_use]
    pub fn this_program() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: Vec::new() }
    }
}
