//! `sluicegate config`: the configuration as objects of Gateway API, and differences between configurations.

mod diff;
mod field_differences;
mod gateway_objects;
mod route_filters;
mod show;

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the routes of flags, variables and config file as objects of Gateway API and policies, in YAML
    #[command(after_help = show::HELP)]
    Show(Box<Settings>),
    /// Compare manifests with a running appliance, or with other manifests
    #[command(after_help = diff::HELP)]
    Diff(diff::DiffArgs),
}

pub(super) fn run(command: ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Show(settings) => show::run(*settings),
        ConfigCommand::Diff(args) => diff::run(&args),
    }
}
