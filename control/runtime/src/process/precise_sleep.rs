//! Sleeps shorter than the reactor's timer allows, which has a granularity of a millisecond and rounds up.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::process::child::readable;

/// From here on a millisecond more or less is no matter.
const PRECISE_BELOW: Duration = Duration::from_millis(10);

pub(crate) async fn precise_sleep(span: Duration) {
    if span.is_zero() {
        return; // where the reactor's timer would take until its next millisecond
    }
    if span < PRECISE_BELOW
        && let Ok(timer) = timer(span)
        && timer.readable().await.is_ok()
    {
        return;
    }
    tokio::time::sleep(span).await; // also where there is no descriptor left for a timer
}

/// Readable after `span`.
fn timer(span: Duration) -> io::Result<AsyncFd<OwnedFd>> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let once = Timespec { tv_sec: 0, tv_nsec: i64::from(span.subsec_nanos()) };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: never, it_value: once })?;
    readable(timer)
}
