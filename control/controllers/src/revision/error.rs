//! Why a Revision cannot run on this host.

/// A condition's reason and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionError {
    pub reason: &'static str,
    pub message: String,
}
