//! Counters of cores and tables as OpenMetrics text.

mod acme;
mod cold_starts;
mod compression;
mod delivery;
mod eventing;
mod guarded;
mod histogram;
mod relays;
mod responses;
mod serving;
mod targets;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use control::autoscaler::Autoscaler;
use control::manifests::ManifestMetrics;
use control::runtime::OutputTally;
use dataplane::contract::relay_counters::{DatagramDrop, RelayOutcome};
use dataplane::counters::{CoreCounters, LogCounters};
use dataplane::h2::FloodKind;
use dataplane::load::MirrorComparison;
use dataplane::proxy::{LocalReply, mirror};
use dataplane::signal::SignalQueue;
use dataplane::table::{Backend, RoutingTable};
use dataplane::table_publisher::TablePublisher;
use dataplane::tls::HandshakeOutcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{AdminServer, Health, SpanCounters};
pub(super) use delivery::Detail;
use eventing::EventingMetrics;
use serving::ServingMetrics;
use targets::RefusedTargets;

/// The autoscaler, and the queue on which cores report to it.
#[derive(Debug, Clone)]
pub(crate) struct AutoscalerMetrics {
    pub(crate) autoscaler: Autoscaler,
    pub(crate) signals: SignalQueue,
}

/// Our own metrics begin with `sluicegate`; the same figures are also exported under Knative's names.
pub(super) fn render(admin: &AdminServer, scaler: &AutoscalerMetrics, detail: Detail) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("sluicegate");
    registry.register_collector(Box::new(CoreMetrics(admin.cores.clone())));
    registry.register_collector(Box::new(TableMetrics(Arc::clone(&admin.tables), detail)));
    registry.register_collector(Box::new(ManifestFileMetrics(Arc::clone(&admin.health.manifests))));
    registry.register_collector(Box::new(ReloadMetrics(Arc::clone(&admin.health))));
    registry.register_collector(Box::new(SpanMetrics(Arc::clone(&admin.health.spans))));
    registry.register_collector(Box::new(RefusedTargets(Arc::clone(&admin.health.targets))));
    registry.register_collector(Box::new(guarded::RejectionMetrics(Arc::clone(&admin.health.rejections))));
    registry.register_collector(Box::new(guarded::CertificateMetrics(Arc::clone(&admin.health.expiries))));
    registry.register_collector(Box::new(acme::AcmeMetrics(Arc::clone(&admin.health.acme))));
    registry.register_collector(Box::new(Printed(Arc::clone(&admin.health.output))));
    let mut upstream = Registry::default();
    let table = admin.tables.load();
    let pings = Arc::clone(&admin.health.pings);
    upstream.register_collector(Box::new(EventingMetrics { table: Arc::clone(&table), pings, detail }));
    upstream.register_collector(Box::new(ServingMetrics { table, scaler: scaler.clone() }));
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    encode_registry(&mut text, &upstream)?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// Metrics of the cores.
#[derive(Debug)]
struct CoreMetrics(Vec<Arc<CoreCounters>>);

/// Metrics of the current table's backends, streams and subscribers.
#[derive(Debug)]
struct TableMetrics(Arc<TablePublisher>, Detail);

/// Metrics of the manifests.
#[derive(Debug)]
struct ManifestFileMetrics(Arc<ManifestMetrics>);

/// Metrics of reloads of the settings.
#[derive(Debug)]
struct ReloadMetrics(Arc<Health>);

/// Metrics of exported spans.
#[derive(Debug)]
struct SpanMetrics(Arc<SpanCounters>);

/// Metrics of the output of instances.
#[derive(Debug)]
struct Printed(Arc<OutputTally>);

impl Collector for Printed {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let OutputTally { bytes, throttled_us } = &*self.0;
        let help = "Bytes of instances' output that were stored";
        let mut family = out.encode_descriptor("instance_log_bytes", help, None, MetricType::Counter)?;
        counter(&mut family, &[], bytes.load(Relaxed))?;
        let help = "Milliseconds in which instances' output was not read because of the rate limit";
        let mut family =
            out.encode_descriptor("instance_log_throttled_milliseconds", help, None, MetricType::Counter)?;
        counter(&mut family, &[], throttled_us.load(Relaxed) / 1000)
    }
}

impl Collector for SpanMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, count) in [
            ("spans_sent", "Spans that the collector accepted", &self.0.sent),
            ("spans_failed", "Spans that the collector did not accept", &self.0.failed),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut family, &[], count.load(Relaxed))?;
        }
        Ok(())
    }
}

impl Collector for ManifestFileMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let ManifestMetrics { documents, failed, pruned } = &*self.0;
        for (name, help, count) in [
            ("manifest_documents", "Documents in the files of --manifests", documents),
            ("manifest_errors", "Documents and files that could not be applied; the log has the reasons", failed),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut family, &[], count.load(Relaxed))?;
        }
        let help = "Objects deleted because no manifest contains them";
        let mut family = out.encode_descriptor("manifests_pruned", help, None, MetricType::Counter)?;
        counter(&mut family, &[], pruned.load(Relaxed))
    }
}

impl Collector for ReloadMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let reloads = &self.0.config;
        let help = "1: the settings in force are those of the files; 0: the last reload failed, and the previous settings stay in force";
        let mut family = out.encode_descriptor("config_current", help, None, MetricType::Gauge)?;
        gauge(&mut family, &[], reloads.problem().is_none().into())?;
        for (name, help, count) in [
            ("config_reloads", "Reloads of the settings that took effect", &reloads.reloads),
            (
                "config_reload_failures",
                "Reloads of the settings that changed nothing; the log has the reasons",
                &reloads.failures,
            ),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut family, &[], count.load(Relaxed))?;
        }
        Ok(())
    }
}

impl Collector for CoreMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        type Pick = fn(&CoreCounters) -> &AtomicU64;
        let counters: [(&str, &str, Pick); 15] = [
            ("core_stalls", "Times that the core made no progress for --core-stall-timeout", |c| &c.stalls),
            ("tasks_panicked", "Tasks that panicked", |c| &c.tasks_panicked),
            ("connections", "Connections accepted", |c| &c.connections_taken),
            ("connections_refused", "Connections closed at once because the core has reached its limit", |c| {
                &c.connections_refused
            }),
            ("received_bytes", "Bytes received from clients", |c| &c.bytes_received),
            ("sent_bytes", "Bytes sent to clients", |c| &c.bytes_sent),
            ("http2_connections", "HTTP/2 connections accepted", |c| &c.http2_connections),
            ("http2_violations", "Connections closed for HTTP/2 protocol violations", |c| &c.http2_violations),
            ("upstream_connections", "Connections opened to instances", |c| &c.upstream_opened),
            ("upstream_connections_reused", "Requests that used an open upstream connection", |c| &c.upstream_reused),
            ("upstream_connect_failures", "Upstream connections that could not be established", |c| &c.outliers),
            ("upstream_ejections", "Upstream addresses ejected for a while after timeouts or errors", |c| &c.ejections),
            ("access_log_lines", "Lines written to the access log", |c| &c.access_lines),
            ("spans_dropped", "Spans dropped because the queue was full", |c| &c.spans_dropped),
            ("access_log_dropped", "Access log lines dropped because the buffer was full", |c| &c.access_dropped),
        ];
        for (name, help, pick) in counters {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (core, counts) in self.0.iter().enumerate() {
                counter(&mut family, &[("core", &core.to_string())], pick(counts).load(Relaxed))?;
            }
        }
        let mut floods = out.encode_descriptor(
            "http2_flood_closes",
            "Connections closed for a flood of frames of one kind",
            None,
            MetricType::Counter,
        )?;
        for (core, counts) in self.0.iter().enumerate() {
            for (kind, count) in FloodKind::NAMES.iter().zip(&counts.http2_floods) {
                counter(&mut floods, &[("core", &core.to_string()), ("kind", kind)], count.load(Relaxed))?;
            }
        }
        let mut open = out.encode_descriptor("connections_open", "Open connections", None, MetricType::Gauge)?;
        for (core, counts) in self.0.iter().enumerate() {
            gauge(&mut open, &[("core", &core.to_string())], counts.connections_open.load(Relaxed))?;
        }
        relays::encode(&mut out, &self.0)?;
        compression::encode(&mut out, &self.0)?;
        self.logs(&mut out)?;
        cold_starts::encode(&mut out, &self.0)?;
        BREAKDOWNS.iter().try_for_each(|what| self.by_reason(&mut out, what))
    }
}

/// A counter by reason.
struct ReasonCounters {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: &'static [&'static str],
    pick: fn(&CoreCounters) -> &[AtomicU64],
}

const BREAKDOWNS: [ReasonCounters; 6] = [
    ReasonCounters {
        name: "mirrors_skipped",
        help: "Requests that were not mirrored, by reason",
        label: "reason",
        values: &mirror::SKIPPED,
        pick: |counts| &counts.mirrors_skipped,
    },
    ReasonCounters {
        name: "requests",
        help: "Responses, by class of status; aborted: the response was incomplete",
        label: "class",
        values: &["aborted", "1xx", "2xx", "3xx", "4xx", "5xx"],
        pick: |counts| &counts.requests,
    },
    ReasonCounters {
        name: "refused",
        help: "Responses that the gateway made itself, by reason",
        label: "reason",
        values: &LocalReply::REASONS,
        pick: |counts| &*counts.refused,
    },
    ReasonCounters {
        name: "relayed_connections",
        help: "Connections of TCP and TLS that were relayed, by outcome",
        label: "outcome",
        values: &RelayOutcome::NAMES,
        pick: |counts| &counts.relays.connections,
    },
    ReasonCounters {
        name: "relayed_datagrams_dropped",
        help: "Datagrams of UDP that were not relayed, by reason",
        label: "reason",
        values: &DatagramDrop::NAMES,
        pick: |counts| &counts.relays.datagrams_dropped,
    },
    ReasonCounters {
        name: "tls_handshakes",
        help: "TLS handshakes, by outcome",
        label: "outcome",
        values: &HandshakeOutcome::NAMES,
        pick: |counts| &counts.handshakes,
    },
];

impl CoreMetrics {
    fn logs(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Pick = fn(&LogCounters) -> &AtomicU64;
        let counters: [(&str, &str, Pick); 6] = [
            ("log_flushes", "Flushes of the log", |l| &l.flushes),
            ("log_flushed_bytes", "Bytes flushed", |l| &l.flushed_bytes),
            ("log_flush_microseconds", "Microseconds that flushes took together", |l| &l.flush_us),
            ("log_compacted_bytes", "Bytes of live records that compaction moved", |l| &l.compacted_bytes),
            ("log_corrupt_records", "Records skipped because they are corrupt", |l| &l.damaged),
            ("log_gaps", "Gaps in the acknowledged records, found at the start", |l| &l.gaps),
        ];
        for (name, help, pick) in counters {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (core, counts) in self.0.iter().enumerate() {
                counter(&mut family, &[("core", &core.to_string())], pick(&counts.log).load(Relaxed))?;
            }
        }
        let gauges: [(&str, &str, Pick); 6] = [
            ("log_bytes", "Bytes in segment files", |l| &l.bytes),
            ("log_bytes_max", "Maximum bytes of segment files", |l| &l.bytes_max),
            ("log_unflushed_bytes", "Bytes appended and not yet durable", |l| &l.unflushed_bytes),
            ("log_live_bytes", "Bytes of records that are still needed", |l| &l.live_bytes),
            ("log_corrupt_segments", "Segment files that are truncated or unreadable", |l| &l.broken),
            ("log_failed", "1 if the log accepts nothing until a restart", |l| &l.failed),
        ];
        for (name, help, pick) in gauges {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (core, counts) in self.0.iter().enumerate() {
                gauge(&mut family, &[("core", &core.to_string())], pick(&counts.log).load(Relaxed))?;
            }
        }
        Ok(())
    }

    fn by_reason(&self, out: &mut DescriptorEncoder<'_>, what: &ReasonCounters) -> fmt::Result {
        let mut family = out.encode_descriptor(what.name, what.help, None, MetricType::Counter)?;
        for (core, counts) in self.0.iter().enumerate() {
            for (value, count) in what.values.iter().zip((what.pick)(counts)) {
                let labels = [("core", &*core.to_string()), (what.label, *value)];
                counter(&mut family, &labels, count.load(Relaxed))?;
            }
        }
        Ok(())
    }
}

impl Collector for TableMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let table = self.0.load();
        let mut version = out.encode_descriptor("table_version", "Tables published", None, MetricType::Gauge)?;
        gauge(&mut version, &[], table.version)?;
        backends(&mut out, &table)?;
        delivery::streams(&mut out, &table, self.1)
    }
}

/// By their keys.
pub(crate) fn all_backends(table: &RoutingTable) -> BTreeMap<&str, &Backend> {
    let routes = table.hosts.values().chain(&table.any_host);
    let splits = routes.flat_map(|route| route.all_splits()).filter(|split| !split.backend.key.is_empty()); // or a reply
    splits.map(|split| (&*split.backend.key, &*split.backend)).collect()
}

fn backends(out: &mut DescriptorEncoder<'_>, table: &RoutingTable) -> fmt::Result {
    let backends = all_backends(table);

    type Pick = fn(&Backend) -> u64;
    let gauges: [(&str, &str, Pick); 4] = [
        ("backend_instances", "Ready instances", |b| b.endpoints.len() as u64),
        ("backend_frozen_instances", "Frozen instances", |b| b.load.frozen.load(Relaxed).into()),
        ("backend_active_requests", "Requests that instances process", |b| b.load.in_flight.load(Relaxed).into()),
        ("backend_queued_requests", "Requests in the pending queue", |b| b.load.waiting.load(Relaxed).into()),
    ];
    for (name, help, pick) in gauges {
        let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (key, backend) in &backends {
            gauge(&mut family, &[("backend", key)], pick(backend))?;
        }
    }
    let mut family = out.encode_descriptor("backend_requests", "Requests received", None, MetricType::Counter)?;
    for (key, backend) in &backends {
        counter(&mut family, &[("backend", key)], backend.load.requests.load(Relaxed))?;
    }
    compared(out, &backends)?;
    responses::encode(out, &backends)
}

fn compared(out: &mut DescriptorEncoder<'_>, backends: &BTreeMap<&str, &Backend>) -> fmt::Result {
    let help = "Mirrored requests, by how their status compares with that of the original";
    let mut family = out.encode_descriptor("backend_mirrored_requests", help, None, MetricType::Counter)?;
    for (key, backend) in backends {
        for (outcome, count) in
            MirrorComparison::NAMES.into_iter().zip(backend.load.comparisons().into_iter().flatten())
        {
            counter(&mut family, &[("backend", key), ("outcome", outcome)], count)?;
        }
    }
    Ok(())
}

fn counter(family: &mut MetricEncoder<'_>, labels: &[(&str, &str)], value: u64) -> fmt::Result {
    family.encode_family(&labels)?.encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(&value, None)
}

fn gauge(family: &mut MetricEncoder<'_>, labels: &[(&str, &str)], value: u64) -> fmt::Result {
    family.encode_family(&labels)?.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
}
