//! Signal handling of a running appliance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};

use super::MainEvent;

/// Same as in shells: ended by SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// SIGHUP reloads, and SIGUSR2 starts a successor. The first SIGTERM or SIGINT drains; a second SIGINT, or any
/// signal after SIGTERM's drain began, ends the process at once. Instances die with their parent. Before the
/// process has its folder and sockets, and may be waiting for another process, there is nothing to drain.
pub(super) fn listen(say: mpsc::Sender<MainEvent>, arrived: Arc<AtomicBool>) -> Result<()> {
    // A file at its size limit (`ulimit -f`) is an error of its write, not the end of the process; and
    // the signal with which other servers reopen their logs must not end it either.
    for signal in [SIGXFSZ, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::default()).context("no signal handler")?;
    }
    let mut signals =
        signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2]).context("no signal handler")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut is_logged = false;
            for signal in signals.forever() {
                if signal == SIGHUP {
                    drop(say.send(MainEvent::Reload));
                    continue;
                }
                if signal == SIGUSR2 {
                    drop(say.send(MainEvent::SuccessorRequested));
                    continue;
                }
                if signal == SIGINT && (is_logged || !arrived.load(Relaxed)) {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                if !arrived.load(Relaxed) {
                    std::process::exit(0);
                }
                is_logged = true;
                drop(say.send(MainEvent::Signal)); // a receiver that is gone is ending already
            }
        })
        .context("no thread for signals")?;
    Ok(())
}
