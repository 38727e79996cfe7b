//! The streams of Brokers that are in external stores, and their last known state.
//!
//! A store may take seconds to answer, so reconciles never wait for it: they read the state here, and a task of the Broker
//! controller asks the stores and enqueues the Brokers whose state has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::event_store::{EventStoreError, ExternalStream, StreamReport};
use contract::load::ByteQuota;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Between two looks at a stream: what senders and conditions learn late of it.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The state of a stream; `None`: its store has not been asked yet.
pub(crate) type ExternalStreamState = Option<Result<StreamReport, EventStoreError>>;

/// Streams by their path on the events listener.
#[derive(Debug, Default)]
pub(crate) struct ExternalStreams {
    entries: Mutex<BTreeMap<String, ExternalStreamEntry>>,
    changed: Notify,
}

#[derive(Debug)]
struct ExternalStreamEntry {
    namespace: String,
    name: String,
    stream: Arc<ExternalStream>,
    quota: Arc<ByteQuota>,
    state: ExternalStreamState,
    /// Its bytes that count against the quota.
    bytes: u64,
    /// When it is to be checked; `None` while it is.
    due: Option<Instant>,
}

/// A stream to be checked.
#[derive(Debug, Clone)]
pub(crate) struct StreamCheck {
    pub(crate) path: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) stream: Arc<ExternalStream>,
}

impl ExternalStreams {
    /// Sets the stream of a Broker; returns the one that is in use, which is the previous one if it is equal.
    pub(crate) fn set(
        &self,
        path: &str,
        (namespace, name): (&str, &str),
        stream: Arc<ExternalStream>,
        quota: Arc<ByteQuota>,
    ) -> Arc<ExternalStream> {
        let mut entries = self.lock();
        if let Some(known) = entries.get(path).filter(|known| *known.stream == *stream && known.quota == quota) {
            return Arc::clone(&known.stream);
        }
        if let Some(before) = entries.remove(path) {
            before.quota.account(before.bytes, 0);
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let due = Some(Instant::now());
        let entry =
            ExternalStreamEntry { namespace, name, stream: Arc::clone(&stream), quota, state: None, bytes: 0, due };
        entries.insert(path.to_owned(), entry);
        self.changed.notify_one();
        stream
    }

    pub(crate) fn remove(&self, path: &str) {
        if let Some(gone) = self.lock().remove(path) {
            gone.quota.account(gone.bytes, 0);
        }
    }

    /// The stream of the Broker at this path, and its state.
    pub(crate) fn get(&self, path: &str) -> Option<(Arc<ExternalStream>, ExternalStreamState)> {
        self.lock().get(path).map(|entry| (Arc::clone(&entry.stream), entry.state.clone()))
    }

    /// Those that are to be checked now.
    pub(crate) fn take_due(&self) -> Vec<StreamCheck> {
        let now = Instant::now();
        let mut entries = self.lock();
        let due = entries.iter_mut().filter(|(_, entry)| entry.due.is_some_and(|due| due <= now));
        let taken = due.map(|(path, entry)| {
            entry.due = None;
            let (namespace, name, stream) = (entry.namespace.clone(), entry.name.clone(), Arc::clone(&entry.stream));
            StreamCheck { path: path.clone(), namespace, name, stream }
        });
        taken.collect()
    }

    /// Resolves when a stream was set.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Records what a check has found; returns whether the Broker's status depends on it. Bytes are counted and not shown.
    pub(crate) fn record(&self, check: &StreamCheck, found: Result<StreamReport, EventStoreError>) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(&check.path).filter(|entry| Arc::ptr_eq(&entry.stream, &check.stream)) else {
            return false; // it was replaced meanwhile
        };
        entry.due = Some(Instant::now() + CHECK_INTERVAL);
        if let Ok(report) = &found {
            entry.quota.account(entry.bytes, report.bytes);
            entry.bytes = report.bytes;
        }
        let shown = |state: &Result<StreamReport, EventStoreError>| {
            state.clone().map(|report| (report.server_version, report.current_replicas))
        };
        let is_news = entry.state.as_ref().map(shown) != Some(shown(&found));
        entry.state = Some(found);
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ExternalStreamEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use contract::event_store::{EventStoreClient, ExternalStreamOptions, StoreConnection, StoreCredentials};

    use super::*;

    fn stream(replicas: u8) -> Arc<ExternalStream> {
        let connection = StoreConnection {
            servers: vec!["nats://a:4222".into()],
            credentials: StoreCredentials::None,
            certificate_authorities: None,
        };
        let options = ExternalStreamOptions {
            replicas,
            retention_bytes: 0,
            retention_time: Duration::ZERO,
            duplicate_window: Duration::from_secs(120),
        };
        let (client, description) = (EventStoreClient::new().0, "Broker ns/b".into());
        Arc::new(ExternalStream { name: "s".into(), description, connection: Arc::new(connection), options, client })
    }

    fn found(bytes: u64, current_replicas: usize) -> Result<StreamReport, EventStoreError> {
        Ok(StreamReport { server_version: "2.15.0".into(), current_replicas, bytes })
    }

    #[test]
    fn equal_stream_keeps_state_and_a_changed_one_is_checked_again() {
        let (streams, quota) = (ExternalStreams::default(), Arc::new(ByteQuota::default()));
        let set = |replicas| streams.set("/b", ("ns", "b"), stream(replicas), Arc::clone(&quota));
        let first = set(3);
        let checks = streams.take_due();
        assert_eq!((checks.len(), streams.take_due().len()), (1, 0), "one check at a time");
        assert!(streams.record(&checks[0], found(100, 3)));
        assert!(Arc::ptr_eq(&set(3), &first) && streams.get("/b").unwrap().1.is_some());
        assert!(!Arc::ptr_eq(&set(1), &first) && streams.get("/b").unwrap().1.is_none());
        assert!(!streams.record(&checks[0], found(100, 3)), "a check of the stream before");
        assert_eq!(streams.take_due().len(), 1);
    }

    #[test]
    fn bytes_count_against_quota_and_are_no_news() {
        let (streams, quota) = (ExternalStreams::default(), Arc::new(ByteQuota::new("namespace ns", 1000, None)));
        streams.set("/b", ("ns", "b"), stream(3), Arc::clone(&quota));
        let check = streams.take_due().remove(0);
        assert!(streams.record(&check, found(100, 3)) && !streams.record(&check, found(700, 3)));
        assert_eq!(quota.used(), 700);
        assert!(streams.record(&check, found(700, 2)));
        assert!(streams.record(&check, Err(EventStoreError::NoLeader { stream: "s".into() })));
        assert_eq!(quota.used(), 700, "what it has is not known now");
        streams.remove("/b");
        assert_eq!((quota.used(), streams.get("/b").is_none()), (0, true));
    }
}
