//! Garbage collection: images that were not used for long, then layers without an image. Pinned layers stay.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::layout::Layout;
use super::pins::read_record;
use super::records::{self, ImageRecord};
use crate::digest::Digest;
use crate::error::Error;

/// Which images go. Layers that no image refers to go in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrunePolicy {
    /// None.
    UnusedLayers,
    /// The least recently used ones, until all layers have at most so many bytes.
    KeepBytes(u64),
    /// All that are not in use.
    UnusedImages,
}

/// The removed images and layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    pub images: Vec<String>,
    pub layers: usize,
    pub bytes: u64,
}

pub(super) fn prune(layout: &Layout, policy: PrunePolicy) -> Result<PruneReport, Error> {
    let failed = |why: io::Error| Error::storage(&layout.root, "garbage collection", &why);
    let sizes = layer_sizes(layout).map_err(failed)?;
    let records = records::list(layout).map_err(failed)?;
    let pinned: HashSet<Digest> = sizes.keys().filter(|layer| is_pinned(layout, layer)).cloned().collect();
    let mut report = PruneReport::default();
    let selected = choose(&records, &sizes, &pinned, policy);
    for reference in &selected {
        if records::remove(layout, reference).map_err(failed)? {
            report.images.push(reference.clone());
        }
    }
    // Read again: a pull may have written one meanwhile.
    let kept = records::list(layout).map_err(failed)?;
    let used: HashSet<&Digest> = kept.iter().flat_map(|record| &record.layers).collect();
    for (layer, bytes) in &sizes {
        if !used.contains(layer) && remove_layer(layout, layer)? {
            report.layers += 1;
            report.bytes += bytes;
        }
    }
    Ok(report)
}

/// The images to remove. One is in use if all its layers are pinned.
fn choose(
    records: &[ImageRecord],
    sizes: &HashMap<Digest, u64>,
    pinned: &HashSet<Digest>,
    policy: PrunePolicy,
) -> Vec<String> {
    let mut unused: Vec<&ImageRecord> =
        records.iter().filter(|record| record.layers.iter().any(|layer| !pinned.contains(layer))).collect();
    unused.sort_by_key(|record| record.last_used_s);
    let limit = match policy {
        PrunePolicy::UnusedLayers => return Vec::new(),
        PrunePolicy::UnusedImages => return unused.iter().map(|record| record.reference.clone()).collect(),
        PrunePolicy::KeepBytes(limit) => limit,
    };
    let mut counts: HashMap<&Digest, usize> = HashMap::new();
    records.iter().flat_map(|record| &record.layers).for_each(|layer| *counts.entry(layer).or_default() += 1);
    let size = |layer: &Digest| sizes.get(layer).copied().unwrap_or(0);
    let is_kept = |layer: &Digest, counts: &HashMap<&Digest, usize>| {
        pinned.contains(layer) || counts.get(layer).is_some_and(|count| *count > 0)
    };
    let mut total: u64 = sizes.keys().filter(|layer| is_kept(layer, &counts)).map(size).sum();
    let mut selected = Vec::new();
    for record in unused {
        if total <= limit {
            break;
        }
        selected.push(record.reference.clone());
        for layer in &record.layers {
            if let Some(count) = counts.get_mut(layer) {
                *count -= 1;
            }
            if !is_kept(layer, &counts) {
                total -= size(layer).min(total);
            }
        }
    }
    selected
}

pub(super) fn layer_sizes(layout: &Layout) -> io::Result<HashMap<Digest, u64>> {
    let mut sizes = HashMap::new();
    for entry in fs::read_dir(layout.layers())? {
        let name = entry?.file_name();
        let Some(layer) = name.to_str().and_then(|name| name.replacen('-', ":", 1).parse::<Digest>().ok()) else {
            continue;
        };
        if let Ok(file) = File::open(layout.layer_record(&layer)) {
            sizes.insert(layer, read_record(&file).map_or(0, |record| record.summary.bytes));
        }
    }
    Ok(sizes)
}

fn is_pinned(layout: &Layout, layer: &Digest) -> bool {
    let Ok(file) = File::open(layout.layer_record(layer)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

/// Removes a layer unless it is pinned or an image has it; true if it is gone.
fn remove_layer(layout: &Layout, layer: &Digest) -> Result<bool, Error> {
    let failed = |why: io::Error| Error::storage(&layout.root, "a removed layer", &why);
    let file = match File::open(layout.layer_record(layer)) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(failed)?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(false),
        locked => locked.map_err(|why| failed(why.into()))?,
    }
    // A pull may have ended after the records were read: it pins its layers, writes its record and releases the pins.
    // Under the lock no pull can pin this layer, so the records are final as far as it is concerned.
    if records::list(layout).map_err(failed)?.iter().any(|record| record.layers.contains(layer)) {
        return Ok(false);
    }
    // Removed in one step; a process that waits for the lock then finds no layer.
    let staged = layout.stage()?;
    let renamed = fs::rename(layout.layer(layer), staged.path.join("layer"));
    drop(file); // a pull that waits for the lock need not wait until all files are removed
    match renamed {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        renamed => renamed.map(|()| true).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::ImageOrigin;
    use super::*;

    fn layer(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn image(name: &str, layers: &[&str], last_used_s: u64) -> ImageRecord {
        ImageRecord {
            reference: name.into(),
            digest: layer(name),
            manifest: layer(name),
            platform: Default::default(),
            created: String::new(),
            config: Default::default(),
            layers: layers.iter().map(|name| layer(name)).collect(),
            download_bytes: 0,
            bytes: 0,
            origin: ImageOrigin::Registry,
            pulled_s: 0,
            last_used_s,
        }
    }

    #[test]
    fn layer_of_an_image_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::open(folder.path()).expect("opened");
        for name in ["used", "unused"] {
            fs::create_dir(layout.layer(&layer(name))).expect("made");
            fs::write(layout.layer_record(&layer(name)), "{}").expect("written");
        }
        // As if a pull had written its record after garbage collection read the records.
        records::write(&layout, &image("app", &["used"], 1)).expect("written");
        assert!(!remove_layer(&layout, &layer("used")).expect("looked at"));
        assert!(remove_layer(&layout, &layer("unused")).expect("removed"));
        assert!(layout.layer(&layer("used")).exists() && !layout.layer(&layer("unused")).exists());
    }

    #[test]
    fn least_recently_used_images_go_first() {
        let records = [image("new", &["base", "n"], 30), image("old", &["base", "o"], 10), image("mid", &["m"], 20)];
        let sizes = ["base", "n", "o", "m"].map(|name| (layer(name), 100)).into_iter().collect();
        let choose = |pinned: &[&str], policy| {
            let pinned = pinned.iter().map(|name| layer(name)).collect();
            super::choose(&records, &sizes, &pinned, policy)
        };
        assert_eq!(choose(&[], PrunePolicy::KeepBytes(400)), Vec::<String>::new());
        assert_eq!(choose(&[], PrunePolicy::KeepBytes(399)), ["old"]);
        // `old` shares its base with `new`, so one more has to go.
        assert_eq!(choose(&[], PrunePolicy::KeepBytes(299)), ["old", "mid"]);
        assert_eq!(choose(&["base", "o"], PrunePolicy::KeepBytes(0)), ["mid", "new"]);
        assert_eq!(choose(&["m"], PrunePolicy::UnusedImages), ["old", "new"]);
        assert!(choose(&[], PrunePolicy::UnusedLayers).is_empty());
    }
}
