//! Revisions under the names of upstream's metrics, so that dashboards and alerts for Knative work
//! (X-OBS-02, X-OBS-03). Names, labels and buckets are those of upstream's Prometheus exporter: dots are
//! underscores, a unit is the name's suffix.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use control::autoscaler::{RevisionMetrics, ScalingMetric, ScalingSignals};
use dataplane::load::BackendLoad;
use dataplane::request_histograms::{OutcomeKey, RequestPhase, RouteTag};
use dataplane::table::RoutingTable;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::histogram::{HistogramFamily, HistogramSum, KNATIVE_US, MetricLabels};
use super::{AutoscalerMetrics, all_backends, counter};

/// Histograms of one name: 17 lines each. The emptiest beyond come as one.
const SERIES_MAX: usize = 1000;

/// Revisions with gauges: 15 lines each. Running ones come first, and the number of omitted ones is a gauge
/// too.
pub(super) const REVISION_SERIES_MAX: usize = 1000;

/// The queues in the cores report to the autoscaler, as upstream's activator does.
const AUTOSCALER: (&str, &str) = ("peer", "autoscaler");

/// Metrics of the table's backends and the autoscaler's revisions.
#[derive(Debug)]
pub(super) struct ServingMetrics {
    pub(super) table: Arc<RoutingTable>,
    pub(super) scaler: AutoscalerMetrics,
}

impl Collector for ServingMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        self.requests(&mut out)?;
        self.revisions(&mut out)?;
        self.scaling(&mut out)
    }
}

impl ServingMetrics {
    /// Responses to requests: of instances alone, and as clients see them.
    fn requests(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (mut inside, mut whole) = (HistogramFamily::default(), HistogramFamily::default());
        let backends = all_backends(&self.table);
        for (key, backend) in &backends {
            let Some(revision) = revision(key, &backend.load) else { continue };
            for outcome in backend.load.answers.iter() {
                let status = status(&outcome.key);
                if outcome.key.phase != RequestPhase::Whole {
                    inside.add([revision.clone(), status.clone()].concat(), &outcome.durations);
                }
                if outcome.key.phase != RequestPhase::Upstream {
                    let tag = vec![("kn_route_tag", tag(&outcome.key.tag).to_owned().into())];
                    whole.add([revision.clone(), tag, status].concat(), &outcome.durations);
                }
            }
        }
        for (name, help, sums) in [
            ("kn_serving_invocation_duration_seconds", "Requests to instances, without their wait", inside),
            ("http_server_request_duration_seconds", "Requests to revisions, from head to end of the response", whole),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for (labels, sum) in sums.bounded(SERIES_MAX) {
                sum.write(&mut family, &labels, &KNATIVE_US)?;
            }
        }
        Ok(())
    }

    fn revisions(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (revisions, left_out) = self.scaler.autoscaler.revision_metrics(REVISION_SERIES_MAX);
        let named = revisions.iter().filter_map(|one| Some((revision(&one.key, &one.figures.load)?, one)));
        let named: Vec<(MetricLabels<'_>, &RevisionMetrics)> = named.collect();
        for (name, help, value) in GAUGES {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, one) in &named {
                put(&mut family, labels, value(one))?;
            }
        }
        for (name, metric, help, value) in WINDOWS {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, one) in named.iter().filter(|(_, one)| one.figures.signals.metric == metric) {
                put(&mut family, labels, value(&one.figures.signals))?;
            }
        }
        let help = "Requests in instances and pending, of revisions with a limit";
        let mut family = out.encode_descriptor("kn_serving_queue_depth", help, None, MetricType::Gauge)?;
        for (labels, one) in named.iter().filter(|(_, one)| one.figures.is_limited) {
            put(&mut family, labels, one.figures.load.demand().into())?;
        }
        let (name, help) =
            ("sluicegate_revisions_without_metrics", "Revisions without gauges because there are more than the limit");
        let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        put(&mut family, &MetricLabels::new(), left_out as f64)
    }

    fn scaling(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time to read the counters of a revision";
        let name = "kn_autoscaler_scrape_duration_seconds";
        let mut family = out.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let mut looks = HistogramSum::default();
        looks.add(self.scaler.autoscaler.sample_durations());
        looks.write(&mut family, &MetricLabels::new(), &KNATIVE_US)?;

        let peer: MetricLabels<'_> = vec![(AUTOSCALER.0, AUTOSCALER.1.into())];
        let help = "1 while the autoscaler receives the cores' reports";
        let name = "kn_activator_stats_conn_reachable";
        let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        put(&mut family, &peer, f64::from(u8::from(self.scaler.autoscaler.is_running())))?;
        let help = "Reports dropped because the autoscaler's queue was full";
        let name = "kn_activator_stats_conn_errors";
        let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter(&mut family, &[AUTOSCALER], self.scaler.signals.dropped())
    }
}

type RevisionKey<T> = fn(&T) -> f64;

const GAUGES: [(&str, &str, RevisionKey<RevisionMetrics>); 11] = [
    ("kn_revision_pods_count", "Ready instances", |one| one.pod_counts.ready.into()),
    ("kn_revision_pods_not_ready_count", "Instances that accept no requests", |one| one.pod_counts.not_ready.into()),
    ("kn_revision_pods_pending_count", "Instances that start", |one| one.pod_counts.pending.into()),
    ("kn_revision_pods_terminating_count", "Instances that end", |one| one.pod_counts.terminating.into()),
    ("kn_revision_pods_desired", "Instances requested by the autoscaler", |one| one.figures.signals.desired.into()),
    ("kn_revision_pods_requested", "Target number of instances", |one| one.desired.into()),
    ("kn_revision_capacity_excess", "Capacity beyond the target burst", |one| {
        one.figures.signals.excess_burst_capacity
    }),
    ("kn_revision_panic_mode", "1 in panic mode", |one| u8::from(one.figures.signals.is_panicking).into()),
    ("kn_revision_request_concurrency", "Requests in instances and pending", |one| one.figures.load.demand().into()),
    ("kn_revision_request_queued", "Requests that wait for an instance", |one| {
        one.figures.load.waiting.load(Relaxed).into()
    }),
    ("kn_revision_request_active", "Requests in instances", |one| one.figures.load.in_flight.load(Relaxed).into()),
];

/// Only of revisions that are scaled by this metric.
const WINDOWS: [(&str, ScalingMetric, &str, RevisionKey<ScalingSignals>); 6] = [
    ("kn_revision_concurrency_stable", ScalingMetric::Concurrency, STABLE, |signs| signs.stable),
    ("kn_revision_concurrency_panic", ScalingMetric::Concurrency, PANIC, |signs| signs.panic),
    ("kn_revision_concurrency_target", ScalingMetric::Concurrency, TARGET, |signs| signs.target),
    ("kn_revision_rps_stable_per_second", ScalingMetric::RequestsPerSecond, STABLE, |signs| signs.stable),
    ("kn_revision_rps_panic_per_second", ScalingMetric::RequestsPerSecond, PANIC, |signs| signs.panic),
    ("kn_revision_rps_target_per_second", ScalingMetric::RequestsPerSecond, TARGET, |signs| signs.target),
];
const STABLE: &str = "Demand of all instances over the stable window";
const PANIC: &str = "Demand of all instances over the panic window";
const TARGET: &str = "Target demand per instance";

/// Labels of a backend that belongs to a revision.
fn revision<'a>(key: &'a str, load: &'a BackendLoad) -> Option<MetricLabels<'a>> {
    let (whose, (namespace, name)) = load.labels.get().zip(key.split_once('/'))?;
    Some(vec![
        ("k8s_namespace_name", namespace.into()),
        ("kn_service_name", (&*whose.service).into()),
        ("kn_configuration_name", (&*whose.configuration).into()),
        ("kn_revision_name", name.into()),
    ])
}

/// No status for an aborted response.
pub(super) fn status(key: &OutcomeKey) -> MetricLabels<'static> {
    let text = match key.status {
        0 => return MetricLabels::new(),
        class @ 1..10 => format!("{class}xx"),
        status => status.to_string(),
    };
    vec![("http_response_status_code", text.into())]
}

/// X-QP-12
fn tag(tag: &RouteTag) -> &str {
    match tag {
        RouteTag::Off => "kn:disabled",
        RouteTag::Default => "kn:default",
        RouteTag::Undefined => "kn:undefined",
        RouteTag::Named(name) => name,
    }
}

fn put(family: &mut MetricEncoder<'_>, labels: &MetricLabels<'_>, value: f64) -> fmt::Result {
    family.encode_family(labels)?.encode_gauge(&value)
}
