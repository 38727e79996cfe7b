//! Logs go to stderr: text on a terminal, JSON otherwise. `SLUICEGATE_LOG` filters (`debug`, `info,events=debug`).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// # Errors
/// The filter does not parse.
pub(super) fn start() -> Result<(), String> {
    let filter = match std::env::var("SLUICEGATE_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|why| format!("SLUICEGATE_LOG={text:?}: {why}"))?,
        Err(_) => EnvFilter::new("info"),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
    Ok(())
}
