//! Protection of listeners: rejected requests that a web page may have sent, and certificates in use.

use std::fmt;
use std::sync::Arc;

use control::cross_origin::Rejections;
use control::expiry::{Expiries, Source};
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{counter, gauge};

#[derive(Debug)]
pub(super) struct RejectionMetrics(pub(super) Arc<Rejections>);

#[derive(Debug)]
pub(super) struct CertificateMetrics(pub(super) Arc<Expiries>);

impl Collector for RejectionMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests rejected because a web page may have sent them, by listener and reason";
        let mut family = out.encode_descriptor("cross_origin_rejections", help, None, MetricType::Counter)?;
        for (listener, reason, count) in self.0.counts() {
            counter(&mut family, &[("listener", listener), ("reason", reason)], count)?;
        }
        Ok(())
    }
}

impl Collector for CertificateMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Timestamp::now();
        let of = |source: Source| (source.name(), self.0.summary(source, now));
        let help = "Certificates in use that have expired, by source; the log names them";
        let mut expired = out.encode_descriptor("certificates_expired", help, None, MetricType::Gauge)?;
        for (source, summary) in Source::ALL.map(of) {
            gauge(&mut expired, &[("source", source)], summary.expired)?;
        }
        let (name, help) = (
            "certificates_earliest_expiry_timestamp_seconds",
            "When the first of the certificates in use expires, by source",
        );
        let mut earliest = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (source, summary) in Source::ALL.map(of) {
            if let Some(expires) = summary.earliest {
                let seconds = u64::try_from(expires.as_second()).unwrap_or(0);
                gauge(&mut earliest, &[("source", source)], seconds)?;
            }
        }
        Ok(())
    }
}
