//! The runtime's limits, each with its reason.

use std::time::Duration;

/// Initial interval of readiness attempts. A connect to a closed loopback port costs some 20 µs; each wait is a sixteenth
/// longer than the last, so the time that they add is a thirty-second of the start's at the mean.
pub const PROBE_STEP_MIN: Duration = Duration::from_micros(200);
/// Attempts of a slow starter back off to this; below 25 ms, so that a cold request never waits for
/// a polling interval that a person could feel.
pub const PROBE_STEP_MAX: Duration = Duration::from_millis(20);
/// Default timeout of one attempt; Kubernetes' default `timeoutSeconds`.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Default interval of a probe (Kubernetes' default `periodSeconds`).
pub const PROBE_PERIOD: Duration = Duration::from_secs(10);
/// Default number of failures in a row that count (Kubernetes' default `failureThreshold`).
pub const PROBE_FAILURES_MAX: u32 = 3;
/// Bytes of a probe's response that are read: only the status line.
pub const PROBE_HEAD_BYTES_MAX: usize = 1024;
/// So much of the output of a probe's command is quoted when it fails.
pub const PROBE_OUTPUT_BYTES_MAX: usize = 512;
/// Until the body of a failed HTTP probe has arrived: far less than the timeout of a probe, which then counts as no answer.
pub const PROBE_DETAILS_TIMEOUT: Duration = Duration::from_millis(100);
/// An instance that is not ready after this is slow, and the reason is reported; again after twice as long each time, up to
/// the next, if it is something else.
pub const NOT_READY_REPORT_DELAY_MIN: Duration = Duration::from_secs(1);
pub const NOT_READY_REPORT_DELAY_MAX: Duration = Duration::from_secs(60);
/// How long a ready instance has to answer whether it speaks HTTP/2; without an answer it does not. HTTP/1 servers reject the preface, or
/// close, as soon as they have read it. Only an instance that listens before it can answer takes this long.
pub const HTTP2_PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a ready instance that refused a connection has to accept one again.
pub const VERIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Prefork processes, which wait to become instances. Each costs the host a process and some hundred KiB; two, so that
/// one is ready while the other is being created.
pub const PREFORK_PROCESSES_MAX: usize = 2;
/// A prefork process gets its launch spec through a pipe with this capacity. A longer one goes to
/// a new process.
pub const LAUNCH_SPEC_BYTES_MAX: usize = 64 * 1024;
/// Delay between a ready instance and the start of the next prefork process: the first request of the instance goes first. Its
/// answer takes some milliseconds where all processors are busy, and starting a process takes four.
pub const PREFORK_DELAY: Duration = Duration::from_millis(10);
/// An instance that starts for longer than this does not delay the start of prefork processes.
pub const PREFORK_IDLE_WAIT_MAX: Duration = Duration::from_millis(50);

/// Minimum distance between the id ranges of two processes on one data folder. Each instance takes an id, and half a
/// million starts are more than a process makes while its successor comes up.
pub const GENERATION_IDS: u64 = 1 << 20;

/// Ports are tried at random; with half of the range taken, 64 misses in a row do not happen.
pub const PORT_ATTEMPTS_MAX: u32 = 64;

/// Output of one container that is read per second, as written to its log: some 40,000 short lines, which take a few
/// hundredths of a processor to write. A program that prints more waits on its pipe.
pub const OUTPUT_BYTES_PER_SECOND: u64 = 2 * 1024 * 1024;
/// The same for all containers together, of those that print more than their own rate.
pub const OUTPUT_ALL_BYTES_PER_SECOND: u64 = 16 * 1024 * 1024;
/// The burst of either rate, as a duration: a start that dumps its configuration, or a stack trace.
pub const OUTPUT_BURST: Duration = Duration::from_secs(2);
/// How often the log mentions that a container waits on its output.
pub const OUTPUT_THROTTLE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A longer line of output is split into parts of this size, as container runtimes do.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// One log file of an instance; with its one predecessor it holds between one and two of these.
pub const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Instances of one revision whose logs are retained; the oldest are removed first. With `LOG_BYTES_MAX` a crash loop
/// costs the disk at most 5 * 2 * 4 MiB for each container.
pub const LOGS_RETAINED_MAX: usize = 5;
/// Lines of output quoted in a failure's message.
pub const TAIL_LINES_MAX: usize = 10;
/// Bytes of each quoted line: a message ends up in a condition, which users read in a terminal.
pub const TAIL_LINE_BYTES_MAX: usize = 300;
/// Output that the appliance's own log repeats of one container in each [`OUTPUT_LIMIT_PERIOD`]: some three hundred short lines, far
/// more than users read, and far less than would keep the lines of others from being written. The rest is in the
/// instance's log, and a line says how many are missing.
pub const OUTPUT_BYTES_PER_PERIOD_MAX: usize = 64 * 1024;
/// The overhead of each log line, which counts as well: its prefix and its time.
pub const OUTPUT_LINE_OVERHEAD_BYTES: usize = 192;
/// How often that starts again: a flood cannot fill it for longer than a user waits for the next line of another instance.
pub const OUTPUT_LIMIT_PERIOD: Duration = Duration::from_secs(1);
/// How long the pipes are read after the instance's end; a process that left the group may hold them
/// open, so not forever.
pub const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Delay before a sidecar that ended is restarted; doubled each time, up to the next. A kubelet's figures are 10 s and
/// 5 min, for hosts that fetch images first.
pub const SIDECAR_RESTART_MIN: Duration = Duration::from_millis(250);
pub const SIDECAR_RESTART_MAX: Duration = Duration::from_secs(60);
/// Delay before the second restart in a row of a container of a Pod, and the longest delay. A kubelet's first is 10 s, for hosts
/// that look for an image each time; its bound is the same.
pub const RESTART_DELAY_MIN: Duration = Duration::from_secs(1);
pub const RESTART_DELAY_MAX: Duration = Duration::from_secs(300);
/// A container of a Pod that ran for this long was well, and its end is a first failure again; a kubelet's figure.
pub const RESTART_HEALTHY_AFTER: Duration = Duration::from_secs(600);
/// Failures of a sidecar in a row, without a healthy period, that end the instance: its start is attempted again, and
/// the Revision says why.
pub const SIDECAR_FAILURES_MAX: u32 = 3;
/// A sidecar that failed and has no readiness probe is ready again when it has run for this long.
pub const SIDECAR_STABLE_AFTER: Duration = Duration::from_secs(1);
/// An instance without a readiness probe that listens nowhere is ready when it has run for this long: a program that cannot
/// start has ended by then.
pub const RUNNING_READY_AFTER: Duration = Duration::from_secs(1);
/// A sidecar that ran for this long was healthy, and its next failure is the first one again.
pub const SIDECAR_HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// The first id of this host that users in user namespaces have: above what systemd gives to containers (up to 0x6fffffff).
pub const USER_ID_MIN: u32 = 0x7000_0000;
/// Instances with a user namespace at a time: as many blocks of 65,536 ids as there are below systemd's next range.
pub const USER_ID_BLOCKS_MAX: u32 = 4094;

/// Ports of an instance besides the one that serves: what its control group's programs have room for.
pub const OTHER_PORTS_MAX: usize = contract::cgroup_ports::PORTS_MAX - 1;

/// Maximum processes and threads of a container, or of a process with a control group of its own: far above what servers have, far below what would
/// keep the host from starting anything.
pub const GROUP_PIDS_MAX: u32 = 4096;
/// Length of an instance's host name: what a kubelet allows, one less than the kernel.
pub const HOST_NAME_BYTES_MAX: usize = 63;
/// Processor time is assigned at this interval (the kernel's default).
pub const CPU_PERIOD_US: u64 = 100_000;
/// A control group without a process is removed at an appliance's start if it still exists after this; a new one
/// has a process within milliseconds.
pub const ABANDONED_CGROUP_AGE_MIN: Duration = Duration::from_secs(10);
/// Attempts to remove a control group, 10 ms apart.
pub const GROUP_REMOVE_ATTEMPTS: u32 = 100;

/// Size of an instance's `/dev`, which is for devices.
pub const DEVICES_BYTES_MAX: u64 = 64 * 1024;
/// Size of an instance's `/dev/shm`, as container runtimes have it; an `emptyDir` with the medium `Memory` that is mounted there may be larger.
pub const SHARED_MEMORY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Size of an instance's termination message (Kubernetes' limit).
pub const TERMINATION_BYTES_MAX: u64 = 4096;

/// Longest time from SIGTERM to SIGKILL: a year is as good as no end, and no clock overflows.
pub const GRACE_PERIOD_MAX: Duration = Duration::from_secs(365 * 86_400);

/// At start, leftovers of a crashed appliance get SIGKILL and this long to vanish.
pub const LEFTOVER_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client's connection to a port of an instance, which is on this host.
pub const SESSION_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A command that is killed has ended with its instance if the instance ends within this time; the kernel takes milliseconds. The
/// client of a command that was killed alone waits this long for its exit code.
pub const SESSION_INSTANCE_END_WAIT: Duration = Duration::from_secs(2);
/// Looks, 100 ms apart, whether a program that is to read changed files handles SIGHUP. After 10 s, a program has started or never
/// will.
pub const RELOAD_SIGNAL_ATTEMPTS_MAX: u32 = 100;
