//! Layers that must not be removed: a shared lock on `layer.json` of each.
//!
//! The kernel releases it with the process, and it counts for every process on this store.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::digest::Digest;
use crate::limits::RECORD_BYTES_MAX;
use crate::unpack::LayerSummary;

/// `layer.json`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    #[serde(flatten)]
    pub(super) summary: LayerSummary,
}

/// Keeps layers from being removed as long as it or a clone lives.
#[derive(Debug, Clone)]
pub struct Pin(#[allow(dead_code, reason = "it is held for its drop")] Arc<PinnedLayers>);

#[derive(Debug)]
struct PinnedLayers {
    table: Arc<PinTable>,
    layers: Vec<Digest>,
}

impl Drop for PinnedLayers {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        for layer in &self.layers {
            if let Some((_, count)) = table.get_mut(layer) {
                *count -= 1;
                if *count == 0 {
                    table.remove(layer); // closes the file, which unlocks it
                }
            }
        }
    }
}

/// One descriptor for each layer that is pinned by this process, however many images have it.
#[derive(Debug, Default)]
pub(super) struct PinTable(Mutex<HashMap<Digest, (File, usize)>>);

impl PinTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, (File, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // each change is one step
    }

    /// Pins the layers and returns what is known of each; none if one is missing.
    pub(super) fn pin(
        self: &Arc<Self>,
        layout: &Layout,
        layers: &[Digest],
    ) -> io::Result<Option<(Pin, Vec<LayerRecord>)>> {
        let mut pinned = PinnedLayers { table: Arc::clone(self), layers: Vec::with_capacity(layers.len()) };
        let mut records = Vec::with_capacity(layers.len());
        for layer in layers {
            let Some((file, record)) = lock_layer(layout, layer)? else { return Ok(None) };
            self.lock().entry(layer.clone()).or_insert((file, 0)).1 += 1;
            pinned.layers.push(layer.clone());
            records.push(record);
        }
        Ok(Some((Pin(Arc::new(pinned)), records)))
    }
}

/// Opens a layer's record with a shared lock; none if the layer is not there.
fn lock_layer(layout: &Layout, layer: &Digest) -> io::Result<Option<(File, LayerRecord)>> {
    let path = layout.layer_record(layer);
    loop {
        let file = match File::open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        // Waits for a removal that is in progress, which is a rename.
        flock(&file, FlockOperation::LockShared)?;
        let is_there = match fs::metadata(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            about => about?.ino() == file.metadata()?.ino(),
        };
        if is_there {
            let record = read_record(&file)?;
            return Ok(Some((file, record)));
        }
    }
}

pub(super) fn read_record(file: &File) -> io::Result<LayerRecord> {
    let mut text = String::new();
    file.take(RECORD_BYTES_MAX).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}
