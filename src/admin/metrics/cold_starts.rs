//! How long requests waited for instances, by phase: one histogram for each, over all cores and backends.

use std::fmt;
use std::sync::Arc;

use dataplane::counters::{ColdStartPhase, CoreCounters};
use dataplane::request_histograms::DURATIONS_US;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::histogram::HistogramSum;

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, cores: &[Arc<CoreCounters>]) -> fmt::Result {
    let mut family = out.encode_descriptor(
        "cold_start_seconds",
        "Wait of requests without an instance, by phase; spawn and listen are part of queue",
        None,
        MetricType::Histogram,
    )?;
    for phase in ColdStartPhase::ALL {
        let mut sum = HistogramSum::default();
        cores.iter().for_each(|core| sum.add(core.cold.of(phase)));
        sum.write(&mut family, &vec![("phase", phase.name().into())], &DURATIONS_US)?;
    }
    Ok(())
}
