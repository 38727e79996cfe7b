//! `sluicegate run`: the composition root. Composes the parts, prints `ready`, and drains.

mod access_log;
mod acme;
mod advertised_address;
mod api;
mod app;
mod arrival;
mod banner;
mod certificates;
mod cluster;
mod cluster_local;
mod config_watch;
mod control;
mod control_config;
mod cores;
pub(super) mod data_folder;
mod descriptors;
mod event_store;
mod events_tls;
mod first_table;
mod gateway_options;
mod gateway_sockets;
mod health_check;
mod hosts;
mod hot_restart;
mod idle_memory;
mod image_pulls;
mod instances;
mod listener_name;
mod listeners;
pub(super) mod log_names;
mod logging;
mod logs;
mod otlp;
mod preflight;
mod reload;
mod route_authentication;
mod routes;
mod service_manager;
mod service_sockets;
mod signals;
mod sockets;
mod targets;
mod watchdog;

use std::process::ExitCode;

use anyhow::Result;

use crate::config::{RunConfig, Settings};
use app::App;
use hot_restart::{PendingHandover, Successor};

/// Checks the files that settings name, as a start does.
///
/// # Errors The first that cannot be used.
pub(super) fn check_files(config: &RunConfig) -> Result<()> {
    let expiries = ::control::expiry::Expiries::default();
    certificates::load(&config.certificates, &expiries)?;
    config.routes.iter().try_for_each(|rule| certificates::client_tls(rule, &expiries).map(drop))?;
    route_authentication::load(&config.routes)?;
    gateway_options::read(config).map(drop)
}

/// Serves until stopped; returns the exit status of the process.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let (config, log) = match RunConfig::decide(settings.clone()).and_then(|config| Ok((config, logging::start()?))) {
        Ok(both) => both,
        Err(why) => {
            complain!("error: {why}");
            return super::USAGE.into();
        }
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    dataplane::allocator::set_bounds();
    let outcome = App::start(config, settings).and_then(|app| app.map_or(Ok(()), App::run));
    if let Err(why) = &outcome {
        log.send(format!("error: {why:#}\n"));
    }
    log.finish();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Events for the main thread.
enum MainEvent {
    /// SIGTERM or SIGINT.
    Signal,
    /// SIGHUP, or the config file has changed.
    Reload,
    /// SIGUSR2.
    SuccessorRequested,
    /// Certificates may be due for renewal.
    Renewal,
    CoreEnded,
    /// Another process requests the handover.
    HandoverRequested(PendingHandover),
    /// The successor serves. Keep the connection until the end: the successor waits for it to close.
    Replaced(Successor),
    /// The successor got everything, and does not serve.
    Orphaned(anyhow::Error),
    /// The first table is published, or failed.
    Synced(Result<()>),
}
