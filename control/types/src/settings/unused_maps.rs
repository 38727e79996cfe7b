//! ConfigMaps that upstream's tools and manifests expect, and that contain no setting of ours.

use super::{ConfigMapEntry, EVENTING, SERVING};

const LOGGING: &str = "\
# Nothing in here is read: the appliance logs as its variable SLUICEGATE_LOG says.
";
const OBSERVABILITY: &str = "\
# Nothing in here is read: metrics stand at /metrics of the admin listener.
";
const LEADERS: &str = "\
# Nothing in here is read: there is one control thread.
";
/// Upstream's manifests name it in `spec.config` of their Brokers.
const BROKER: &str = "\
# What Brokers are like that name this map in spec.config; annotations on the Broker win.
# event-bytes-max: 1Mi
# retention-time: 24h
# on-delete: drop
";

pub(super) const ROWS: &[ConfigMapEntry] = &[
    ConfigMapEntry::unused(SERVING, "config-logging", LOGGING),
    ConfigMapEntry::unused(SERVING, "config-leader-election", LEADERS),
    ConfigMapEntry::unused(EVENTING, "config-br-default-channel", BROKER),
    ConfigMapEntry::unused(EVENTING, "config-logging", LOGGING),
    ConfigMapEntry::unused(EVENTING, "config-observability", OBSERVABILITY),
    ConfigMapEntry::unused(EVENTING, "config-leader-election", LEADERS),
];
