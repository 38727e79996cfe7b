//! The objects that the streams and subscribers of the event logs belong to. The logs contain uids, so that
//! a recreated Broker does not inherit events; users know names. The names are in a file next to the logs,
//! for `sluicegate wal`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dataplane::table::RoutingTable;
use dataplane::table_publisher::TablePublisher;
use tokio::sync::Notify;
use tokio::task;

/// A burst of changes is written once.
const WRITTEN_AFTER: Duration = Duration::from_secs(1);

/// Below the folder of all logs.
const FILE: &str = "names.json";

/// Displayed names by their names in the log.
pub(in crate::cli) type Names = BTreeMap<String, String>;

#[derive(Clone)]
pub(super) struct LogNames {
    file: PathBuf,
    tables: Arc<TablePublisher>,
    changed: Arc<Notify>,
}

impl LogNames {
    pub(super) fn new(data: &Path, tables: &Arc<TablePublisher>) -> Self {
        Self { file: data.join("log").join(FILE), tables: Arc::clone(tables), changed: Arc::default() }
    }

    /// A new table was published.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Writes the file whenever the names change.
    pub(super) async fn keep(self) {
        let mut written = Names::new();
        loop {
            self.changed.notified().await;
            tokio::time::sleep(WRITTEN_AFTER).await;
            let names = of(&self.tables.load());
            if names == written {
                continue;
            }
            let (file, text) = (self.file.clone(), serde_json::to_vec(&names));
            let outcome =
                task::spawn_blocking(move || text.map_err(io::Error::from).and_then(|text| replace(&file, &text)));
            match outcome.await {
                Ok(Ok(())) => written = names,
                Ok(Err(why)) => {
                    tracing::debug!(%why, file = %self.file.display(), "wal stat shows uids instead of names")
                }
                Err(_) => {} // it does not panic
            }
        }
    }
}

/// The names file next to the log in `folder`; empty if no appliance has written any.
pub(in crate::cli) fn read(folder: &Path) -> Names {
    let file = folder.parent().unwrap_or(Path::new("..")).join(FILE);
    std::fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn of(table: &RoutingTable) -> Names {
    let streams = table.streams.iter().flat_map(|(path, stream)| {
        let kind = if path.starts_with("/brokers/") { "trigger" } else { "subscription" };
        let subscribers = stream.subscribers.iter();
        let named = subscribers.map(move |one| (one.name.to_string(), format!("{kind}/{}", one.label)));
        std::iter::once((stream.name.to_string(), path.trim_start_matches('/').to_owned())).chain(named)
    });
    streams.collect()
}

/// Atomically. Other users cannot read it: the folder belongs to its owner.
fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, file)
}
