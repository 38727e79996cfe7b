//! The progress of a pull, for a terminal, for conditions and for Events.

use std::fmt::Debug;

use crate::digest::Digest;

/// A progress event of an image or one of its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgressEvent {
    /// The manifest is known: so many layers, of which so many bytes are still to be downloaded.
    Started { layers: usize, missing_layers: usize, bytes: u64 },
    /// Bytes of a layer that have arrived in all; fewer than before if its download had to start again.
    Downloaded { layer: Digest, bytes: u64, total: u64 },
    /// The layer is complete and is being unpacked.
    Unpacking { layer: Digest },
    /// The layer is in the store.
    LayerReady { layer: Digest },
    /// A request failed and is made again after a pause.
    Retrying { registry: String, why: String },
}

/// Receives progress. Called from the pull itself, so it must not block.
pub trait Progress: Debug + Send + Sync {
    fn event(&self, event: &ProgressEvent);
}

/// Ignores it.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn event(&self, _: &ProgressEvent) {}
}
