//! Brokers and channels under the names of upstream's metrics (X-OBS-01). Figures that upstream's processes
//! count separately are distinguished in the same way, by the name of the measuring component
//! (`otel_scope_name`).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use control::controllers::sources::PingOutcomes;
use dataplane::request_histograms::OutcomeKey;
use dataplane::table::{RoutingTable, Subscriber};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::delivery::Detail;
use super::histogram::{HistogramFamily, KNATIVE_US, MetricLabels};
use super::serving::status;

/// Metrics of the table's streams and their subscribers.
#[derive(Debug)]
pub(super) struct EventingMetrics {
    pub(super) table: Arc<RoutingTable>,
    pub(super) pings: Arc<PingOutcomes>,
    pub(super) detail: Detail,
}

/// Histograms per name: 17 lines each, some 6 KB for Triggers with usual names. The emptiest beyond are combined, so that a page
/// has at most 1.2 MB of them, and not 20.
const EVENTING_SERIES_MAX: usize = 100;

/// The only kind of sources that runs in this process.
const PING_SOURCES: &str = "pingsources.sources.knative.dev";

/// Events sent by our sources, by name; written as client requests, as upstream does.
fn sent(tally: &PingOutcomes) -> HistogramFamily<'static> {
    let mut sums = HistogramFamily::default();
    for ((namespace, name), outcomes) in tally.all() {
        let source: MetricLabels<'_> = vec![
            ("kn_source_name", name.into()),
            ("kn_source_namespace", namespace.into()),
            ("kn_source_resourcegroup", PING_SOURCES.into()),
        ];
        for outcome in outcomes.iter() {
            sums.add([source.clone(), status(&outcome.key)].concat(), &outcome.durations);
        }
    }
    sums
}

/// The owner of a stream, by the path where it receives events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamOwner<'a> {
    is_broker: bool,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> StreamOwner<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let (is_broker, rest) = match path.strip_prefix("/brokers/") {
            Some(rest) => (true, rest),
            None => (false, path.strip_prefix("/channels/")?),
        };
        let (namespace, name) = rest.split_once('/')?;
        Some(Self { is_broker, namespace, name })
    }

    fn labels(self, of_brokers: &'static str, of_channels: &'static str) -> MetricLabels<'a> {
        let [name, namespace, scope] = if self.is_broker {
            ["kn_broker_name", "kn_broker_namespace", of_brokers]
        } else {
            ["kn_channel_name", "kn_channel_namespace", of_channels]
        };
        vec![(name, self.name.into()), (namespace, self.namespace.into()), ("otel_scope_name", scope.into())]
    }

    /// Labels of what is sent to a reader: Triggers for a Broker, Subscriptions for a channel.
    fn labels_to(self, subscriber: &Subscriber) -> MetricLabels<'a> {
        let kind = if self.is_broker { "trigger" } else { "subscription" };
        let (namespace, name) = subscriber.label.split_once('/').unwrap_or_default();
        let mut labels = self.labels("knative.dev/pkg/broker/filter", "knative.dev/eventing/pkg/channel/fanout");
        labels.extend([
            ("messaging_destination_name", Cow::Owned(format!("{kind}:{name}.{namespace}"))),
            ("messaging_operation_name", "send".into()),
            ("messaging_system", "knative".into()),
        ]);
        labels
    }
}

impl Collector for EventingMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut dispatched, mut processed) = (HistogramFamily::default(), HistogramFamily::default());
        for (path, stream) in &self.table.streams {
            let Some(owner) = StreamOwner::of(path) else { continue };
            // Upstream's channels do not measure received events.
            for outcome in stream.tally.stored.iter().filter(|_| owner.is_broker) {
                let labels = owner.labels("knative.dev/pkg/broker/ingress", "");
                dispatched.add([labels, status(&outcome.key)].concat(), &outcome.durations);
            }
            for subscriber in &stream.subscribers {
                let labels = owner.labels_to(subscriber);
                for outcome in subscriber.tally.dispatched.iter() {
                    let status = status(&answered(&outcome.key));
                    dispatched.add([labels.clone(), status].concat(), &outcome.durations);
                }
                if let Some(durations) = subscriber.tally.processing() {
                    processed.add(labels, durations);
                }
            }
        }
        for (name, help, sums) in [
            ("kn_eventing_dispatch_duration_seconds", "Forwarded events, one per attempt", dispatched),
            ("kn_eventing_process_duration_seconds", "Time from a stored event to its request", processed),
            ("http_client_request_duration_seconds", "Attempts to send the event of a source", sent(&self.pings)),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Histogram)?;
            let most = if self.detail == Detail::All { usize::MAX } else { EVENTING_SERIES_MAX };
            for (labels, sum) in sums.bounded(most) {
                sum.write(&mut family, &labels, &KNATIVE_US)?;
            }
        }
        Ok(())
    }
}

/// Upstream counts attempts without a response as answered with 500.
fn answered(key: &OutcomeKey) -> OutcomeKey {
    OutcomeKey::of(if key.status == 0 { 500 } else { key.status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_owner_is_found_by_path() {
        for (path, wanted) in [
            ("/brokers/ns/b", Some((true, "ns", "b"))),
            ("/channels/ns/c", Some((false, "ns", "c"))),
            ("/other/ns/c", None),
            ("/brokers/b", None),
        ] {
            let found = StreamOwner::of(path).map(|owner| (owner.is_broker, owner.namespace, owner.name));
            assert_eq!(found, wanted, "{path}");
        }
    }
}
