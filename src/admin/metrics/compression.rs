//! Metrics of responses that the proxy compresses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dataplane::contract::compression_counters::CompressionCounters;
use dataplane::counters::CoreCounters;
use dataplane::table::ContentCoding;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::counter;

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, cores: &[Arc<CoreCounters>]) -> fmt::Result {
    type Pick = fn(&CompressionCounters) -> &AtomicU64;
    let counters: [(&str, &str, Pick); 3] = [
        ("compression_input_bytes", "Bytes of bodies before compression", |c| &c.bytes_in),
        ("compression_output_bytes", "Bytes of bodies after compression", |c| &c.bytes_out),
        (
            "compression_skipped_responses",
            "Responses sent as they were because the core was compressing too many",
            |c| &c.skipped,
        ),
    ];
    for (name, help, pick) in counters {
        let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (core, counts) in cores.iter().enumerate() {
            counter(&mut family, &[("core", &core.to_string())], pick(&counts.compression).load(Relaxed))?;
        }
    }
    let help = "Responses that were compressed, by coding";
    let mut family = out.encode_descriptor("compressed_responses", help, None, MetricType::Counter)?;
    for (core, counts) in cores.iter().enumerate() {
        for (coding, count) in ContentCoding::ALL.into_iter().zip(&counts.compression.responses) {
            counter(&mut family, &[("core", &core.to_string()), ("coding", coding.name())], count.load(Relaxed))?;
        }
    }
    Ok(())
}
