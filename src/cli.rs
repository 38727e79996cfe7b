//! The command line: one file per verb.

/// Prints to stderr, with a line end unless it is a `part` of a line. `eprintln!` would panic when the
/// reader of stderr is gone, as in `sluicegate 2>&1 | head -1`.
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

mod adapter;
mod admin_client;
mod api;
mod api_access;
mod completion;
mod config;
mod demo;
mod doctor;
mod event;
mod example;
mod image;
mod import;
mod kubeconfig;
mod kubectl_plugin;
mod load;
mod man;
mod run;
mod selftest;
mod top;
mod validate;
mod wal;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};

use crate::config::Settings;
use crate::version::LONG_VERSION;

#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, long_version = LONG_VERSION, about, propagate_version = true, disable_help_subcommand = true)]
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
    /// Run the adapter of a built-in transport; its configuration is in the environment
    Adapter(adapter::AdapterArgs),
    /// Back up the objects of a running appliance, or restore them
    #[command(subcommand)]
    Api(api::ApiCommand),
    /// Show what happened to events in a running appliance, and send them again
    #[command(subcommand)]
    Event(event::EventCommand),
    /// Pull, list, import and remove container images
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Inspect a log without disturbing it, even while it is in use
    #[command(subcommand)]
    Wal(wal::WalCommand),
    /// Show the configuration as objects of Gateway API, and what manifests would change
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Check config files and manifests: what is wrong, in which file and line, and what was probably meant
    Validate(validate::ValidateArgs),
    /// Kill, tear and flip on a disk of yours: is anything lost that was acknowledged?
    Selftest(selftest::SelftestArgs),
    /// Check this host: kernel, limits, cgroups, disk, names, clock; say what each missing thing costs
    Doctor(doctor::DoctorArgs),
    /// Send requests to a URL, and report rates, latencies, failures and processor time
    Load(Box<load::LoadArgs>),
    /// Copy the objects of a Knative cluster into a running appliance, and report what differs there
    Import(import::ClusterImportArgs),
    /// Show the rates, latencies, errors and backlogs of a running appliance, again and again
    Top(top::TopArgs),
    /// The verbs of `kubectl sluicegate`, for the program `kubectl-sluicegate` that packages install
    #[command(subcommand, override_usage = "kubectl sluicegate <COMMAND>")]
    KubectlPlugin(kubectl_plugin::KubectlVerb),
    /// Print the completion script of a shell
    Completion(completion::CompletionArgs),
    /// Write the manual pages into a folder
    Man(man::ManArgs),
    /// Print the version, the commit, the build profile and the features
    Version,
}

/// Below the flags of `run`.
const SETTINGS: &str = "\
Each flag is also a key of the --config file and the variable shown below it. A flag overrides its variable, which overrides \
the key. Empty variables are ignored. A variable holds several values separated by `;`, where a flag may be given more \
than once; a quoted `;`, as in `a=sh -c 'x; y'`, does not separate.
SLUICEGATE_LOG sets the log level: error, warn, info (the default) or debug, for all or for single targets, like \
info,instance=off, which omits the output of instances.";

/// Exit status of an invalid command line or configuration.
const USAGE: u8 = 2;

/// Parses the command line and runs the verb; returns the exit status of the process.
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
        Command::Adapter(args) => adapter::run(&args),
        Command::Api(verb) => api::run(&verb),
        Command::Event(verb) => event::run(&verb),
        Command::Image(verb) => image::run(&verb),
        Command::Wal(verb) => wal::run(&verb),
        Command::Config(verb) => config::run(verb),
        Command::Validate(args) => validate::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Top(args) => top::run(&args),
        Command::KubectlPlugin(verb) => kubectl_plugin::run(verb),
        Command::Completion(args) => completion::print(&args),
        Command::Man(args) => man::write(&args),
        Command::Version => exit_code(tell(&format!("sluicegate {LONG_VERSION}\n")).map(|()| true)),
    }
}

/// The command line as it is parsed. Empty variables are ignored, because unit files and Compose leave them
/// so.
fn command() -> clap::Command {
    without_empty_variables(Cli::command())
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|text| text.is_empty());
    command
        .mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg })
        .mut_subcommands(without_empty_variables)
}

/// Help and version go to stdout; every error is one line on stderr that names what is wrong, and where to
/// find help.
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
            // The names of missing arguments are on lines of their own.
            let what: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let tip = lines.find_map(|line| line.strip_prefix("tip: ")).map(|tip| format!("; {tip}"));
            let tip = tip.unwrap_or_default();
            complain!("{}{tip}; see `sluicegate {}--help`", what.join(" "), verbs(std::env::args().skip(1)));
            USAGE.into()
        }
    }
}

/// The subcommands at the beginning of a command line, each followed by a blank.
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

/// Prints a result to stdout. A reader that closes the pipe early is no failure.
fn tell(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => Err(why).context("stdout"),
        _ => Ok(()),
    }
}

/// The exit status of a verb: `Ok(false)` when it did its work and found something wrong.
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
    fn help_names_innermost_subcommand() {
        let of = |words: &[&str]| verbs(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(of(&["event", "replay", "--trigger", "x"]), "event replay ");
        assert_eq!(of(&["run", "event"]), "run ");
        assert_eq!(of(&["nonsense", "run"]), "");
    }
}
