//! The numbers of workloads, each with its reason.

use std::time::Duration;

/// Pods that clients wrote and this host runs. Each costs a process at least, and a kubelet runs 110.
pub const PODS_MAX: usize = 1000;
/// A Pod has no deadline for its readiness, as in Kubernetes: ten years.
pub const START_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);
/// For the end of a Pod whose object is already gone.
pub const FORGOTTEN_GRACE: Duration = Duration::from_secs(1);
/// Changes that a listener may be behind before it misses some.
pub const CHANGES_MAX: usize = 1024;

/// Pods that a ReplicaSet or a Job creates or deletes in one reconcile; the next follows at once. Kubernetes' figure.
pub const BURST_PODS_MAX: usize = 500;
/// Before the Pod of a Job that failed is replaced; twice as long each time, up to the next. Kubernetes' first is 10 s.
pub const JOB_RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
/// Kubernetes' figure.
pub const JOB_RETRY_DELAY_MAX: Duration = Duration::from_secs(360);

/// Ports of a core Service, besides 80 and 443, at which instances reach it by its name: each has a socket for every core.
pub const SERVICE_PORTS_MAX: usize = 16;
/// The same of all Services together.
pub const ALL_SERVICE_PORTS_MAX: usize = 1024;
/// Addresses that are tried for a Service: two of a host meet on one about never.
pub const SERVICE_ADDRESSES_TRIED_MAX: u64 = 8;
