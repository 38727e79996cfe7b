//! Metrics of certificates by ACME.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{counter, gauge};
use crate::admin::AcmeCounters;

#[derive(Debug)]
pub(super) struct AcmeMetrics(pub(super) Arc<AcmeCounters>);

impl Collector for AcmeMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let ((orders, failures), figures) = (self.0.orders(), self.0.certificates());
        let help = "Certificates ordered by ACME, renewals included";
        counter(&mut out.encode_descriptor("acme_orders", help, None, MetricType::Counter)?, &[], orders)?;
        let help = "Orders by ACME that failed; the log has the host and the reason";
        counter(&mut out.encode_descriptor("acme_failures", help, None, MetricType::Counter)?, &[], failures)?;
        let gauges = [
            ("acme_hosts", "Hosts that get their certificates by ACME", figures.hosts),
            ("acme_certificates", "Hosts that have a certificate by ACME", figures.certificates),
        ];
        for (name, help, value) in gauges {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut family, &[], u64::try_from(value).unwrap_or(u64::MAX))?;
        }
        let (name, help) = (
            "acme_earliest_expiry_timestamp_seconds",
            "When the first of the certificates by ACME expires; a renewal that fails does not move it",
        );
        let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        if let Some(expires) = figures.earliest_expiry {
            gauge(&mut family, &[], u64::try_from(expires.as_second()).unwrap_or(0))?;
        }
        Ok(())
    }
}
