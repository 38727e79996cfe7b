//! How a process gets its folder and its sockets: by itself, or from the previous process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::data_folder::{self, DataFolder};
use super::gateway_sockets::GatewaySockets;
use super::hot_restart::{self, Predecessor};
use super::listener_name::ListenerName;
use super::logs::OpeningLogs;
use super::sockets::activation::PassedSockets;
use super::sockets::unix::PreparedSocket;
use super::sockets::{self, BoundSockets};
use crate::config::RunConfig;

/// A process that was handed over continues if its successor dies, and learns of that within milliseconds.
/// Until then its sockets are in use, and it cannot be asked; each attempt waits some time for the sockets.
const ATTEMPTS_MAX: u32 = 5;
const ATTEMPT_STEP: Duration = Duration::from_millis(100);

pub(super) struct Arrival {
    pub(super) folder: DataFolder,
    pub(super) logs: OpeningLogs,
    pub(super) sockets: BoundSockets,
    pub(super) gateway_sockets: Arc<GatewaySockets>,
    /// It serves requests until this process does.
    pub(super) predecessor: Option<Predecessor>,
}

/// # Errors The folder or an address is in use by another process, or the previous process rejects the
/// handover.
pub(super) fn arrive(config: &RunConfig, mut api_socket: Option<PreparedSocket>) -> Result<Arrival> {
    let mut passed = PassedSockets::read()?;
    for attempt in 1.. {
        if config.hot_restart
            && let Some((predecessor, inherited)) = hot_restart::begin(config)?
        {
            let of_gateway = |name: &ListenerName| matches!(name, ListenerName::Gateway { .. });
            let (of_gateways, inherited) = inherited.into_iter().partition(|(name, _)| of_gateway(name));
            let gateway_sockets = GatewaySockets::new(config.workers, of_gateways, true);
            let sockets = BoundSockets::inherit(inherited, &mut api_socket)?;
            predecessor.wait_for_folder()?;
            let folder = data_folder::take_with_retry(&config.data)?;
            let (logs, predecessor) = (OpeningLogs::start(config)?, Some(predecessor));
            return Ok(Arrival { folder, logs, sockets, gateway_sockets, predecessor });
        }
        match start(config, &mut passed, &mut api_socket) {
            Err(why) if config.hot_restart && attempt < ATTEMPTS_MAX && is_in_use(&why) => pause(),
            outcome => return outcome,
        }
    }
    unreachable!("the last attempt returns")
}

/// A start without a previous process.
fn start(config: &RunConfig, passed: &mut PassedSockets, api_socket: &mut Option<PreparedSocket>) -> Result<Arrival> {
    let folder = data_folder::take(&config.data)?;
    let sockets = BoundSockets::bind(config, passed, api_socket)?;
    let gateway_sockets = GatewaySockets::new(config.workers, Vec::new(), false);
    Ok(Arrival { folder, logs: OpeningLogs::start(config)?, sockets, gateway_sockets, predecessor: None })
}

/// Whether another process has the folder or an address.
fn is_in_use(why: &anyhow::Error) -> bool {
    sockets::is_taken(why) || why.is::<data_folder::FolderInUse>()
}

#[allow(clippy::disallowed_methods, reason = "nothing runs yet but this thread")]
fn pause() {
    std::thread::sleep(ATTEMPT_STEP);
}
