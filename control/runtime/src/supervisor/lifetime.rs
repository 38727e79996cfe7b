//! The lifetime of an instance: its own program runs, is started again if the manifest says so, and ends with the others.
//!
//! In a Pod each container is started again by itself, and the others run on. In an instance of a Revision, the end of the
//! program that serves is the end of the instance.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tokio::time::{Instant, sleep};

use super::commands::stop_requested;
use super::exit::{TerminationCause, exit_of, not_started};
use super::sidecars::start_captured;
use super::{InstanceProcess, InstanceRun};
use crate::environment::command;
use crate::host::HostContext;
use crate::logs::output_capture::drain;
use crate::process::child::{pid, signal_group};
use crate::{InstanceExit, InstanceSpec, RestartPolicy};

impl InstanceProcess {
    pub(super) async fn run(mut self, host: &HostContext, instance: &mut InstanceRun) -> InstanceExit {
        let (restart, mut failures) = (instance.spec.restart, 0);
        loop {
            let began = Instant::now();
            let end = self.serve(instance).await;
            let ends_alone = restart != RestartPolicy::EndsInstance
                && match end {
                    TerminationCause::Exited => true,
                    TerminationCause::Unhealthy(_) => {
                        self.terminate(instance.grace()).await;
                        true
                    }
                    _ => false,
                };
            if !ends_alone {
                return self.end(&end, host, instance).await;
            }
            let succeeded = matches!(end, TerminationCause::Exited) && has_succeeded(&self.child);
            if !restart.restarts_after(succeeded) {
                self.outlive(instance, succeeded).await;
                return self.end(&end, host, instance).await;
            }
            failures = restart.failures_after(failures, began.elapsed());
            let status = self.reap();
            let exit = self.report(&end, status, &instance.spec).await;
            instance.reporter.restarting(exit.clone());
            if !until_restart(instance, restart.delay(failures)).await {
                return self.release(host, instance, exit).await;
            }
            if let Err(why) = self.start_again(host, instance) {
                return self.release(host, instance, not_started(&why)).await;
            }
            instance.reporter.restarted();
        }
    }

    /// The other containers run on, if the manifest says so, until each has ended by itself.
    async fn outlive(&self, instance: &mut InstanceRun, succeeded: bool) {
        if self.sidecars.outlive(succeeded) {
            instance.reporter.unready();
            tokio::select! {
                () = self.sidecars.until_ended() => {}
                () = stop_requested(&mut instance.commands) => {}
            }
        }
    }

    /// Ends the program and the other containers.
    async fn end(mut self, end: &TerminationCause, host: &HostContext, instance: &InstanceRun) -> InstanceExit {
        let asked = async {
            if matches!(end, TerminationCause::Exited) {
                self.sessions.end();
                // Frozen sidecars in the same control group do not receive their stop signal.
                self.freezer.set(&self.child, false);
            } else {
                self.terminate(instance.grace()).await;
            }
        };
        tokio::join!(asked, self.sidecars.stop(instance.grace()));
        self.sessions.end();
        let status = self.reap();
        self.kill_leftovers(host, &instance.spec).await;
        let exit = self.report(end, status, &instance.spec).await;
        self.group.remove().await;
        exit
    }

    /// Ends the other containers: the program has ended.
    async fn release(self, host: &HostContext, instance: &InstanceRun, exit: InstanceExit) -> InstanceExit {
        self.sidecars.stop(instance.grace()).await;
        self.sessions.end();
        self.kill_leftovers(host, &instance.spec).await;
        self.group.remove().await;
        exit
    }

    /// Ends what is left of the program's process group.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        // The leader is dead and not reaped, so its process id still identifies this group.
        signal_group(&self.child, Signal::KILL);
        self.child.wait()
    }

    async fn kill_leftovers(&self, host: &HostContext, spec: &InstanceSpec) {
        // What a container started ended with its first process.
        if !spec.all_containers().all(|spec| spec.image.is_some()) {
            host.process_reaper.reap(self.record.clone()).await;
        }
    }

    /// How the program ended, with the rest of its output.
    async fn report(
        &mut self,
        end: &TerminationCause,
        status: io::Result<ExitStatus>,
        spec: &InstanceSpec,
    ) -> InstanceExit {
        drain(std::mem::take(&mut self.output_tasks), &self.log).await;
        let starved = self.group.was_out_of_memory();
        match status {
            Ok(status) => {
                exit_of(end, status, spec, (&self.termination_message.read(), &self.log.borrow().tail()), starved)
            }
            Err(why) => not_started(&why), // not our child: cannot be, and is still worth a message
        }
    }

    /// Starts the program again, beside the other containers and with the same volumes.
    fn start_again(&mut self, host: &HostContext, instance: &InstanceRun) -> io::Result<()> {
        let spec = &instance.spec;
        if spec.termination_message.is_some() {
            self.termination_message.create(&spec.credentials)?;
        }
        self.log.borrow_mut().begin_again();
        let words = command(spec, &self.environment);
        let (child, pidfd, readers) = start_captured(&self.launcher, (&words, &self.environment), &self.log)?;
        (self.child, self.pidfd, self.output_tasks) = (child, pidfd, readers);
        self.freezer.reset();
        self.record = self.record.clone().with_leader(pid(&self.child));
        host.records.write(spec, instance.id, &self.record);
        self.sessions.set_leader(pid(&self.child).as_raw_nonzero().get());
        Ok(())
    }
}

/// Returns after `delay`, or with `false` when the instance is to end.
async fn until_restart(instance: &mut InstanceRun, delay: Duration) -> bool {
    tokio::select! {
        biased;
        () = stop_requested(&mut instance.commands) => false,
        () = sleep(delay) => true,
    }
}

/// Whether a process that has ended did so with exit code 0. It stays to be reaped.
fn has_succeeded(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(pid(child)), options).ok().flatten();
    ended.is_some_and(|status| status.exit_status() == Some(0))
}
