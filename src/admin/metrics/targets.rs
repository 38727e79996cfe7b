//! Connects rejected by the target policy.

use std::fmt;
use std::sync::Arc;

use dataplane::target_policy::TargetPolicy;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::counter;

#[derive(Debug)]
pub(super) struct RefusedTargets(pub(super) Arc<TargetPolicy>);

impl Collector for RefusedTargets {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests not sent because the target policy rejects the address, by reason";
        let mut family = out.encode_descriptor("targets_refused", help, None, MetricType::Counter)?;
        self.0.refused().try_for_each(|(reason, count)| counter(&mut family, &[("reason", reason)], count))
    }
}
