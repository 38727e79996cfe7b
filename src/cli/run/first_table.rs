//! The wait for the first table.

use std::mem;
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
    // A reload and a successor asked for during the start are asked for again after it: the files read
    // before the signal may be out of date, and only a serving process can hand over its sockets.
    let mut deferred = Vec::new();
    loop {
        match hear.recv_timeout(START_PROGRESS_INTERVAL) {
            Ok(MainEvent::Synced(outcome)) => {
                for event in deferred {
                    drop(say.send(event));
                }
                return outcome.map(|()| true);
            }
            Ok(MainEvent::Signal) => return Ok(false),
            Ok(event @ (MainEvent::Reload | MainEvent::SuccessorRequested)) => {
                let same = mem::discriminant(&event);
                if deferred.iter().all(|kept| mem::discriminant(kept) != same) {
                    deferred.push(event);
                }
            }
            Ok(_) => {}
            Err(_) => {
                tracing::info!("still waiting for the objects; serving starts when they are loaded")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGHUP also applies to files read during the start, which may take long, and SIGUSR2 starts a successor
    /// after it.
    #[test]
    fn signals_during_start_act_once_after_it() {
        let (say, hear) = mpsc::channel();
        let (synced, waits) = oneshot::channel();
        say.send(MainEvent::Reload).unwrap();
        say.send(MainEvent::SuccessorRequested).unwrap();
        say.send(MainEvent::Reload).unwrap();
        synced.send(Ok(())).unwrap();
        assert!(await_objects(waits, (&hear, &say)).unwrap());
        assert!(matches!(hear.try_recv(), Ok(MainEvent::Reload)));
        assert!(matches!(hear.try_recv(), Ok(MainEvent::SuccessorRequested)));
        assert!(hear.try_recv().is_err());
    }
}
