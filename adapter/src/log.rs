//! JSON lines on stderr.

use tracing_subscriber::EnvFilter;

/// `filter` is a level or a list of `target=level`.
pub(crate) fn init(filter: Option<&str>) {
    let parsed = filter.filter(|filter| !filter.is_empty()).map(EnvFilter::try_new);
    let (filter, error) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new("info"), Some(error)),
        None => (EnvFilter::new("info"), None),
    };
    let subscriber =
        tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).flatten_event(true);
    // An error means that a test has set one already.
    let _ = subscriber.try_init();
    if let Some(error) = error {
        tracing::warn!(%error, "ADAPTER_LOG is neither a level nor a filter; info is used");
    }
}
