//! The wait for the first table.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::oneshot;

use super::MainEvent;

/// Interval of progress lines while a start waits.
const START_PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Waits for the first table. `false`: the process is stopped before there is one. An API that does not
/// respond must not prevent that.
pub(super) fn await_objects(
    synced: oneshot::Receiver<Result<()>>,
    (hear, say): (&mpsc::Receiver<MainEvent>, &mpsc::Sender<MainEvent>),
) -> Result<bool> {
    let tell = say.clone();
    let wait = move || {
        let outcome = synced.blocking_recv().context("the control thread ended at its start").flatten();
        drop(tell.send(MainEvent::Synced(outcome))); // fails only when this process is ending anyway
    };
    std::thread::Builder::new().name("start".to_owned()).spawn(wait).context("no thread")?;
    let mut reloads = false;
    loop {
        match hear.recv_timeout(START_PROGRESS_INTERVAL) {
            Ok(MainEvent::Synced(outcome)) => {
                if reloads {
                    // reload again: the files read before the signal may be out of date
                    drop(say.send(MainEvent::Reload));
                }
                return outcome.map(|()| true);
            }
            Ok(MainEvent::Signal) => return Ok(false),
            Ok(event) => reloads |= matches!(event, MainEvent::Reload),
            Err(_) => {
                tracing::info!("still waiting for the objects; serving starts when they are loaded")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGHUP also applies to files read during the start, which may take long.
    #[test]
    fn reload_during_start_runs_after_it() {
        let (say, hear) = mpsc::channel();
        let (synced, waits) = oneshot::channel();
        say.send(MainEvent::Reload).unwrap();
        synced.send(Ok(())).unwrap();
        assert!(await_objects(waits, (&hear, &say)).unwrap());
        assert!(matches!(hear.try_recv(), Ok(MainEvent::Reload)));
    }
}
