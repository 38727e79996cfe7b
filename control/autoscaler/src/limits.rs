//! The autoscaler's limits, each with its reason.

use std::time::Duration;

/// Demand is sampled this often while a revision has instances; upstream's autoscaler ticks every 2 s.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// A shorter idle window would end an instance before a sample could show its requests.
pub const IDLE_WINDOW_MIN: Duration = Duration::from_secs(2);
/// Samples kept of a revision: one per tick for the longest stable window (1 h).
pub const SAMPLES_MAX: usize = 3600;
/// Starts in progress at once in one revision. More would only slow each other down on one host, and a
/// burst must not turn into a storm of forks.
pub const STARTING_MAX: u32 = 16;
/// How long a core may still pick an instance after it left the table; and the interval between checks of a draining
/// instance.
pub const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A draining instance gets its SIGTERM after this even if a request is still in it; upstream's largest
/// `timeoutSeconds`.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);
/// A draining instance that has nothing but WebSockets inside gets its SIGTERM after this: they have no end of their own, and a
/// program can say goodbye only once it knows. Upstream's wait for requests that may still come.
pub const WEBSOCKET_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay of the second start after a failure; the first failure of an instance that had been ready is followed by a
/// start at once.
pub const RESTART_DELAY_MIN: Duration = Duration::from_millis(250);
/// Restart delays double up to this: a kubelet's bound of `CrashLoopBackOff`.
pub const RESTART_DELAY_MAX: Duration = Duration::from_secs(300);
/// An instance that is starting when its revision's progress deadline passes gets this much longer to report why it
/// waits; upstream's buffer.
pub const ACTIVATION_BUFFER: Duration = Duration::from_secs(10);
/// An instance that was ready for this long was well, and its end is a first failure again.
pub const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// Changes that a listener may be behind before it misses some.
pub const CHANGES_MAX: usize = 1024;
