//! The contents of a campaign: every record can be regenerated from the seed and its number, so that a
//! reader can verify that it is complete, genuine and in its place.

use fastrand::Rng;

/// Streams of the log; batch number N goes to stream N modulo this.
pub(super) const STREAMS: [&str; 3] = ["selftest/a", "selftest/b", "selftest/c"];
/// The subscriber of each.
pub(super) const SUBSCRIBER: &str = "reader";

/// Batch number, index in the batch, size of the batch, seed.
const LABEL_BYTES: usize = 24;
/// Maximum number of records in a batch.
const BATCH_RECORDS_MAX: u32 = 4;
/// A usual record's filler, in bytes, and a rare one's: larger than many pages.
const FILLER_BYTES_MAX: usize = 1024;
const LARGE_BYTES_MAX: usize = 32 << 10;
const LARGE_ONE_IN: u32 = 64;

/// The stream's number in [`STREAMS`].
pub(super) fn stream_of(batch: u64) -> usize {
    usize::try_from(batch % STREAMS.len() as u64).unwrap_or_default()
}

/// The next batch of the same stream.
pub(super) const fn next_of_stream(batch: u64) -> u64 {
    batch + STREAMS.len() as u64
}

pub(super) fn batch_records(seed: u64, batch: u64) -> u32 {
    chance(seed, batch, u32::MAX).u32(1..=BATCH_RECORDS_MAX)
}

/// One complete record.
pub(super) fn record(seed: u64, batch: u64, nth: u32) -> Vec<u8> {
    let mut rng = chance(seed, batch, nth);
    let filler = match rng.u32(0..LARGE_ONE_IN) {
        0 => rng.usize(0..=LARGE_BYTES_MAX),
        _ => rng.usize(0..=FILLER_BYTES_MAX),
    };
    let mut bytes = vec![0; LABEL_BYTES + filler];
    bytes[0..8].copy_from_slice(&batch.to_le_bytes());
    bytes[8..12].copy_from_slice(&nth.to_le_bytes());
    bytes[12..16].copy_from_slice(&batch_records(seed, batch).to_le_bytes());
    bytes[16..24].copy_from_slice(&seed.to_le_bytes());
    rng.fill(&mut bytes[LABEL_BYTES..]);
    bytes
}

/// The batch number in a record, without verification.
pub(super) fn batch_of(payload: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(payload.get(0..8)?.try_into().ok()?))
}

/// Batch and index of a record; `None` unless every byte matches this campaign.
pub(super) fn read(seed: u64, payload: &[u8]) -> Option<(u64, u32)> {
    let batch = batch_of(payload)?;
    let nth = u32::from_le_bytes(payload.get(8..12)?.try_into().ok()?);
    (nth < BATCH_RECORDS_MAX && payload == record(seed, batch, nth)).then_some((batch, nth))
}

fn chance(seed: u64, batch: u64, nth: u32) -> Rng {
    let mut rng = Rng::with_seed(seed ^ batch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Rng::with_seed(rng.u64(..) ^ u64::from(nth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_record_is_recognised() {
        for (batch, nth) in [(0, 0), (7, 1), (u64::MAX, 3)] {
            let mut payload = record(81, batch, nth);
            assert_eq!(read(81, &payload), Some((batch, nth)));
            assert_eq!(read(82, &payload), None);
            if let Some(last) = payload.last_mut() {
                *last ^= 1;
            }
            assert_eq!(read(81, &payload), None);
        }
        assert_eq!(read(81, &[]), None);
    }
}
