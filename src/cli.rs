//! The command line: one file a verb.

mod api;
mod demo;
mod event;
mod example;
mod kubeconfig;
mod reach;
mod run;
mod selftest;
mod wal;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::config::Settings;

#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, about, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve: HTTP to routes, events to Brokers, and the Kubernetes-style API that steers both
    Run(Box<Settings>),
    /// Start on a temporary folder, apply the examples, drive real traffic, and show what happened
    Demo,
    /// Print a kubeconfig for kubectl and kn
    Kubeconfig(kubeconfig::Args),
    /// A small example program, as an instance of a Service would be
    #[command(subcommand)]
    Example(example::Program),
    /// Back up the objects of a running appliance, or restore them
    #[command(subcommand)]
    Api(api::Verb),
    /// Ask a running appliance what became of events, and have them sent again
    #[command(subcommand)]
    Event(event::Verb),
    /// Look into a log without disturbing it, even while it is in use
    #[command(subcommand)]
    Wal(wal::Verb),
    /// Kill, tear and flip on a disk of yours: is anything lost that was acknowledged?
    Selftest(selftest::Args),
    /// Print the version
    Version,
}

/// Exit status of a command line or configuration that says something impossible.
const USAGE: u8 = 2;

/// Parses the command line and carries it out; the answer is the process's exit status.
pub(crate) fn main() -> std::process::ExitCode {
    // Before anything else: this process is about to become an instance.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|verb| verb == control::runtime::init::VERB) {
        return control::runtime::init::run(words);
    }

    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(why) => return refuse(&why),
    };
    match cli.verb {
        Verb::Run(settings) => run::run(*settings),
        Verb::Demo => demo::run(),
        Verb::Kubeconfig(args) => kubeconfig::print(&args),
        Verb::Example(program) => example::run(&program),
        Verb::Api(verb) => api::run(&verb),
        Verb::Event(verb) => event::run(&verb),
        Verb::Wal(verb) => wal::run(&verb),
        Verb::Selftest(args) => selftest::run(&args),
        Verb::Version => {
            println!("sluicegate {}", env!("CARGO_PKG_VERSION"));
            std::process::ExitCode::SUCCESS
        }
    }
}

/// Help and version go to stdout; everything else is one line that names what is wrong.
fn refuse(why: &clap::Error) -> std::process::ExitCode {
    match why.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print!("{why}");
            std::process::ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{why}");
            USAGE.into()
        }
        _ => {
            // The names of what is missing stand in lines of their own.
            let text = why.to_string();
            let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            eprintln!("{}; see `sluicegate --help`", lines.join(" "));
            USAGE.into()
        }
    }
}

/// What the shell hears of a verb: `Ok(false)` when it did its work and found something wrong.
fn exit_code(outcome: anyhow::Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why:#}");
            ExitCode::FAILURE
        }
    }
}
