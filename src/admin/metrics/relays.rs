//! Metrics of layer 4.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dataplane::contract::relay_counters::RelayCounters;
use dataplane::counters::CoreCounters;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{counter, gauge};

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, cores: &[Arc<CoreCounters>]) -> fmt::Result {
    type Pick = fn(&RelayCounters) -> &AtomicU64;
    let counters: [(&str, &str, Pick); 5] = [
        ("relayed_received_bytes", "Bytes of relayed connections and datagrams from clients", |c| &c.bytes_received),
        ("relayed_sent_bytes", "Bytes of relayed connections and datagrams to clients", |c| &c.bytes_sent),
        ("udp_sessions", "Sessions of UDP clients that were opened", |c| &c.sessions),
        ("relayed_received_datagrams", "Datagrams received from clients", |c| &c.datagrams_received),
        ("relayed_sent_datagrams", "Datagrams sent to clients", |c| &c.datagrams_sent),
    ];
    let gauges: [(&str, &str, Pick); 2] = [
        ("relayed_connections_open", "Relayed connections that are open", |c| &c.connections_open),
        ("udp_sessions_open", "Sessions of UDP clients that are open", |c| &c.sessions_open),
    ];
    for (name, help, pick) in counters {
        let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (core, counts) in cores.iter().enumerate() {
            counter(&mut family, &[("core", &core.to_string())], pick(&counts.relays).load(Relaxed))?;
        }
    }
    for (name, help, pick) in gauges {
        let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (core, counts) in cores.iter().enumerate() {
            gauge(&mut family, &[("core", &core.to_string())], pick(&counts.relays).load(Relaxed))?;
        }
    }
    Ok(())
}
