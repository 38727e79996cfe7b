//! How long requests waited for instances, by phase: one histogram for each, of all cores and backends together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dataplane::counters::{CoreCounters, Phase};
use dataplane::load::DURATIONS_US;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, cores: &[Arc<CoreCounters>]) -> fmt::Result {
    let mut family = out.encode_descriptor(
        "cold_start_seconds",
        "What requests without an instance waited for, by phase; spawn and listen lie within queue",
        None,
        MetricType::Histogram,
    )?;
    let bounds = DURATIONS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    for phase in Phase::ALL {
        let (mut buckets, mut total_us, mut count) =
            (bounds.clone().map(|bound| (bound, 0)).collect::<Vec<_>>(), 0, 0);
        for durations in cores.iter().map(|core| core.cold.of(phase)) {
            for ((_, sum), one) in buckets.iter_mut().zip(&durations.buckets) {
                let one = one.load(Relaxed);
                *sum += one;
                count += one;
            }
            total_us += durations.total_us.load(Relaxed);
        }
        let labels = [("phase", phase.name())];
        let mut one = family.encode_family(&labels)?;
        one.encode_histogram::<NoLabelSet>(total_us as f64 / 1e6, count, &buckets, None)?;
    }
    Ok(())
}
