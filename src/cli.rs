//! The command line: one file a verb.

/// Says something on stderr, with an end of line unless it is a `part` of one. `eprintln!` would panic where the reader of
/// stderr is gone, as in `sluicegate 2>&1 | head -1`.
macro_rules! complain {
    (part $($text:tt)*) => {{
        use std::io::Write as _;
        drop(write!(std::io::stderr().lock(), $($text)*));
    }};
    ($($text:tt)*) => {{
        use std::io::Write as _;
        drop(writeln!(std::io::stderr().lock(), $($text)*));
    }};
}

mod api;
mod api_access;
mod demo;
mod event;
mod example;
mod image;
mod kubeconfig;
mod run;
mod selftest;
mod wal;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};

use crate::config::Settings;

#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, about, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve: HTTP to routes, events to Brokers, and the Kubernetes-style API that steers both
    #[command(after_help = SETTINGS)]
    Run(Box<Settings>),
    /// Start on a temporary folder, apply the examples, drive real traffic, and show what happened
    Demo,
    /// Print a kubeconfig for kubectl and kn
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// A small example program, as an instance of a Service would be
    #[command(subcommand)]
    Example(example::ExampleProgram),
    /// Back up the objects of a running appliance, or restore them
    #[command(subcommand)]
    Api(api::ApiCommand),
    /// Ask a running appliance what became of events, and have them sent again
    #[command(subcommand)]
    Event(event::EventCommand),
    /// Pull, list, import and remove container images
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Look into a log without disturbing it, even while it is in use
    #[command(subcommand)]
    Wal(wal::WalCommand),
    /// Kill, tear and flip on a disk of yours: is anything lost that was acknowledged?
    Selftest(selftest::SelftestArgs),
    /// Print the version
    Version,
}

/// Below the flags of `run`.
const SETTINGS: &str = "\
Each flag is also a key of the --config file and the variable that stands below it. A flag goes before its variable, that before \
the key, and a variable that is empty is none. A variable holds several values with `;` between, where a flag may be given more \
than once; what is quoted, as in `a=sh -c 'x; y'`, is not parted.
SLUICEGATE_LOG says what the log has: error, warn, info (the default) or debug, for all or for a target of its own, like \
info,instance=off, which leaves out what instances print.";

/// Exit status of a command line or configuration that says something impossible.
const USAGE: u8 = 2;

/// Parses the command line and carries it out; the answer is the process's exit status.
pub(crate) fn main() -> std::process::ExitCode {
    // Before anything else: this process is about to become an instance.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(verb) if verb == control::runtime::init::VERB => return control::runtime::init::run(words),
        // This one reads a layer from a registry, and is about to give up its rights.
        Some(verb) if verb == images::unpack::VERB => return images::unpack::unpack_child_main(words),
        _ => {}
    }

    let asked = command().try_get_matches().and_then(|asked| Cli::from_arg_matches(&asked));
    let cli = match asked {
        Ok(cli) => cli,
        Err(why) => return refuse(&why),
    };
    match cli.verb {
        Command::Run(settings) => run::run(*settings),
        Command::Demo => demo::run(),
        Command::Kubeconfig(args) => kubeconfig::print(&args),
        Command::Example(program) => example::run(&program),
        Command::Api(verb) => api::run(&verb),
        Command::Event(verb) => event::run(&verb),
        Command::Image(verb) => image::run(&verb),
        Command::Wal(verb) => wal::run(&verb),
        Command::Selftest(args) => selftest::run(&args),
        Command::Version => exit_code(tell(&format!("sluicegate {}\n", env!("CARGO_PKG_VERSION"))).map(|()| true)),
    }
}

/// The command line as it is read. A variable that is empty is none: unit files and Compose leave them so.
fn command() -> clap::Command {
    without_empty_variables(Cli::command())
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|text| text.is_empty());
    command
        .mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg })
        .mut_subcommands(without_empty_variables)
}

/// Help and version go to stdout; everything else is one line that names what is wrong, and where help is.
fn refuse(why: &clap::Error) -> ExitCode {
    match why.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => exit_code(tell(&why.to_string()).map(|()| true)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            complain!(part "{why}");
            USAGE.into()
        }
        _ => {
            let text = why.to_string();
            let mut lines = text.lines().map(str::trim);
            // The names of what is missing stand in lines of their own.
            let what: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let tip = lines.find_map(|line| line.strip_prefix("tip: ")).map(|tip| format!("; {tip}"));
            let tip = tip.unwrap_or_default();
            complain!("{}{tip}; see `sluicegate {}--help`", what.join(" "), verbs(std::env::args().skip(1)));
            USAGE.into()
        }
    }
}

/// The subcommands that a command line begins with, each with a blank behind it.
fn verbs(words: impl Iterator<Item = String>) -> String {
    let (mut command, mut verbs) = (Cli::command(), String::new());
    for word in words {
        let Some(verb) = command.find_subcommand(&word).cloned() else { break };
        verbs.push_str(&word);
        verbs.push(' ');
        command = verb;
    }
    verbs
}

/// What a verb has found out, on stdout. Whoever has read enough of it closes the pipe, and that is no failure.
fn tell(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => Err(why).context("stdout"),
        _ => Ok(()),
    }
}

/// What the shell hears of a verb: `Ok(false)` when it did its work and found something wrong.
fn exit_code(outcome: anyhow::Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            complain!("error: {why:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_named_for_the_innermost_subcommand() {
        let of = |words: &[&str]| verbs(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(of(&["event", "replay", "--trigger", "x"]), "event replay ");
        assert_eq!(of(&["run", "event"]), "run ");
        assert_eq!(of(&["nonsense", "run"]), "");
    }
}
