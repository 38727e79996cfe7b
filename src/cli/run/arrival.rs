//! How a process comes to its folder and its sockets: by itself, or from the process before it.

use std::time::Duration;

use anyhow::Result;

use super::descriptors;
use super::folder::{self, Folder};
use super::logs::Opening;
use super::sockets::unix::Prepared;
use super::sockets::{self, Sockets};
use super::takeover::{self, Predecessor};
use crate::config::Config;

/// A process that was taken over from goes on if its successor dies, and hears of that within milliseconds. Until then its
/// sockets are in use, and it cannot be asked; each attempt waits some time for the sockets.
const ATTEMPTS_MAX: u32 = 5;
const ATTEMPT_STEP: Duration = Duration::from_millis(100);

pub(super) struct Arrival {
    pub(super) folder: Folder,
    pub(super) logs: Opening,
    pub(super) sockets: Sockets,
    /// It serves requests until this one does.
    pub(super) predecessor: Option<Predecessor>,
}

/// # Errors
/// The folder or an address is another process's, or the process before refuses.
pub(super) fn arrive(config: &Config, mut api_socket: Option<Prepared>) -> Result<Arrival> {
    descriptors::raise_limit(config.workers)?;
    for attempt in 1.. {
        if config.hot_restart
            && let Some((predecessor, inherited)) = takeover::begin(config)?
        {
            let sockets = Sockets::inherit(inherited, &mut api_socket)?;
            predecessor.wait_for_folder()?;
            let folder = folder::take_patiently(&config.data)?;
            return Ok(Arrival {
                folder,
                logs: Opening::begin(config)?,
                sockets,
                predecessor: Some(predecessor),
            });
        }
        match start(config, &mut api_socket) {
            Err(why) if config.hot_restart && attempt < ATTEMPTS_MAX && is_in_use(&why) => pause(),
            outcome => return outcome,
        }
    }
    unreachable!("the last attempt returns")
}

/// Without a process before this one.
fn start(config: &Config, api_socket: &mut Option<Prepared>) -> Result<Arrival> {
    let folder = folder::take(&config.data)?;
    let sockets = Sockets::bind(config, api_socket)?;
    Ok(Arrival { folder, logs: Opening::begin(config)?, sockets, predecessor: None })
}

/// Another process has the folder or an address.
fn is_in_use(why: &anyhow::Error) -> bool {
    sockets::is_taken(why) || why.is::<folder::InUse>()
}

#[allow(clippy::disallowed_methods, reason = "nothing runs yet but this thread")]
fn pause() {
    std::thread::sleep(ATTEMPT_STEP);
}
