//! The newest segment is removed or emptied after a crash: the loss of what was acknowledged in it must be
//! reported, wherever the crash came.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use sluicegate_wal::{Flush, LogGap, LogPosition, WriteAheadLog, inspect};

use crate::model::Coverage;
use crate::{memory_folder, options};

/// The segment state begins with this, in each slot.
const STATE_MAGIC: &[u8] = b"SLUICSEG";
const SEGMENT_MAGIC: &[u8] = b"SLUICWAL";

/// Whether this write names a segment, and contains no records.
pub(crate) fn names_segment(flush: &Flush) -> bool {
    flush.bytes.starts_with(STATE_MAGIC)
}

/// Destroys the newest segment in a copy of the folder. `acknowledged`: everything below was reported
/// durable by a flush.
pub(crate) fn destroy_newest(home: &Path, acknowledged: LogPosition, seed: u64, rng: &mut Rng, seen: &mut Coverage) {
    let folder = memory_folder();
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(home).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    // A newer segment that was never acknowledged may have dropped the acknowledged one already.
    let Some((base, file)) = newest(&copy).filter(|(base, _)| LogPosition::new(*base) < acknowledged) else { return };
    destroy(&file, rng);
    let covers = |gaps: &[LogGap]| gaps.iter().any(|gap| gap.from.get() <= base && acknowledged <= gap.to);
    let verified = inspect(&copy, &mut |_, _| {}).unwrap();
    assert!(covers(&verified.gaps), "verify passes over segment {base}: {verified:?}");
    let (mut log, recovery) = WriteAheadLog::open(&copy, options(seed)).unwrap();
    assert!(covers(&recovery.gaps), "segment {base} is passed over: {recovery:?}");
    assert!(log.visible() >= acknowledged, "positions repeat");
    log.flush_blocking().unwrap();
    drop(log);
    assert_eq!(WriteAheadLog::open(&copy, options(seed)).unwrap().1.gaps, [], "reported, and continued");
    seen.destroyed += 1;
}

/// Base and file of the segment with the highest base.
fn newest(folder: &Path) -> Option<(u64, PathBuf)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let segments = paths.filter_map(|path| {
        let bytes = fs::read(&path).unwrap();
        let base = u64::from_le_bytes(bytes.get(16..24)?.try_into().unwrap());
        bytes.starts_with(SEGMENT_MAGIC).then_some((base, path))
    });
    segments.max()
}

fn destroy(file: &Path, rng: &mut Rng) {
    let write = || OpenOptions::new().write(true).open(file).unwrap();
    let length = fs::metadata(file).unwrap().len();
    let zero = |from: u64, to: u64| write().write_all_at(&vec![0; (to - from) as usize], from).unwrap();
    match rng.u32(0..5) {
        0 => fs::remove_file(file).unwrap(),
        1 => write().set_len(0).unwrap(),
        2 => write().set_len(rng.u64(0..=64)).unwrap(),
        3 => zero(0, length),
        _ => zero(64, length),
    }
}
