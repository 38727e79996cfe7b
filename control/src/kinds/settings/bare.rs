//! Maps that upstream's tools and manifests expect to find, and that nothing here reads.

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

pub(super) const ROWS: &[Row] = &[
    Row::bare(SERVING, "config-logging", LOGGING),
    Row::bare(SERVING, "config-observability", OBSERVABILITY),
    Row::bare(SERVING, "config-leader-election", LEADERS),
    Row::bare(EVENTING, "config-logging", LOGGING),
    Row::bare(EVENTING, "config-observability", OBSERVABILITY),
    Row::bare(EVENTING, "config-leader-election", LEADERS),
];
