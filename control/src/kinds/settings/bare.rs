//! Maps that upstream's tools and manifests expect to find, and that no setting comes from.

use super::{EVENTING, Row, SERVING};

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

pub(super) const ROWS: &[Row] = &[
    Row::bare(SERVING, "config-logging", LOGGING),
    Row::bare(SERVING, "config-leader-election", LEADERS),
    Row::bare(EVENTING, "config-br-default-channel", BROKER),
    Row::bare(EVENTING, "config-logging", LOGGING),
    Row::bare(EVENTING, "config-observability", OBSERVABILITY),
    Row::bare(EVENTING, "config-leader-election", LEADERS),
];
