//! Processor time of a process, all threads, user and system, in nanoseconds: the clock that `clock_getcpuclockid(3)` names.
//!
//! `/proc/PID/stat` counts in ticks of 10 ms, which is too coarse for a short round.

use std::time::Duration;

use nix::errno::Errno;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::error::LoadTestError;

/// The clock of one process's processor time.
#[derive(Debug, Clone, Copy)]
pub struct ProcessCpu {
    pid: u32,
    clock: ClockId,
}

impl ProcessCpu {
    /// The clock of process `pid`, which may be of any user.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(pid: u32) -> Result<Self, LoadTestError> {
        let failed = |why: Errno| LoadTestError::ProcessClock { pid, why: why.desc().to_owned() };
        let id = i32::try_from(pid).ok().filter(|id| *id > 0).ok_or_else(|| failed(Errno::ESRCH))?;
        let made = Self { pid, clock: clock_getcpuclockid(Pid::from_raw(id)).map_err(failed)? };
        made.now()?;
        Ok(made)
    }

    /// This process.
    ///
    /// # Errors
    /// The kernel has no such clock.
    pub fn own() -> Result<Self, LoadTestError> {
        Self::of(std::process::id())
    }

    /// The time used so far.
    ///
    /// # Errors
    /// The process has ended.
    pub fn now(&self) -> Result<Duration, LoadTestError> {
        let now = self.clock.now().map_err(|why| {
            let why = if why == Errno::EINVAL { Errno::ESRCH } else { why }; // the kernel's word for a process that is gone
            LoadTestError::ProcessClock { pid: self.pid, why: why.desc().to_owned() }
        })?;
        Ok(now.into())
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_clock_counts_work_and_not_sleep() {
        let clock = ProcessCpu::own().unwrap();
        let before = clock.now().unwrap();
        let mut sum = 0_u64;
        while clock.now().unwrap() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(clock.now().unwrap() > before);
    }

    #[test]
    fn clock_of_missing_process_is_rejected() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        for pid in [0, u32::MAX, pid] {
            let why = ProcessCpu::of(pid).unwrap_err().to_string();
            assert!(why.contains(&format!("process {pid}")) && why.contains("process id"), "{why}");
        }
    }
}
