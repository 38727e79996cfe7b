//! `kubectl sluicegate VERB`: the verbs that people use beside kubectl.
//!
//! kubectl runs a program `kubectl-sluicegate` of the search path. Packages install a script of that name, which runs
//! `sluicegate kubectl-plugin`.

use std::process::ExitCode;

use super::event::{EventCommand, EventListArgs, TraceArgs};
use super::{doctor, event, top};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum KubectlVerb {
    /// Show the path of an event: arrival, filters, attempts, replies, dead letters
    Trace(TraceArgs),
    /// Show the newest events, or those that were given up
    List(EventListArgs),
    /// Send events of the log again: to a Trigger's subscriber, or to a Revision that is to replace it
    Replay(Box<event::ReplayArgs>),
    /// Send a Trigger's dead letters to its subscriber again
    Redrive(event::RedriveArgs),
    /// Show the rates, latencies, errors and backlogs of a running appliance, again and again
    Top(top::TopArgs),
    /// Check this host: kernel, limits, cgroups, disk, names, clock; say what each missing thing costs
    Doctor(doctor::DoctorArgs),
}

pub(crate) fn run(verb: KubectlVerb) -> ExitCode {
    match verb {
        KubectlVerb::Trace(args) => event::run(&EventCommand::Trace(args)),
        KubectlVerb::List(args) => event::run(&EventCommand::List(args)),
        KubectlVerb::Replay(args) => event::run(&EventCommand::Replay(args)),
        KubectlVerb::Redrive(args) => event::run(&EventCommand::Redrive(args)),
        KubectlVerb::Top(args) => top::run(&args),
        KubectlVerb::Doctor(args) => doctor::run(&args),
    }
}
