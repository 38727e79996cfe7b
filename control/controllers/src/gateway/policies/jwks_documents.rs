//! JSON Web Key Sets that policies name by URI: fetched, cached, and fetched again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver::access::jwks::VerificationKeys;
use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::jwks_fetch::JwksFetcher;
use crate::context::ControllerContext;

/// How often a document is fetched: issuers publish new keys long before they sign with them.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// After a failure, doubled up to the interval.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
/// Documents of all policies: 256 KiB each at most. The policies of others are in force without keys.
const DOCUMENTS_MAX: usize = 256;
/// Documents that are fetched at a time.
const FETCHES_MAX: usize = 8;
/// How long the task sleeps if there is no document.
const IDLE: Duration = Duration::from_secs(3600);

/// The keys of a document as they are known now.
#[derive(Debug, Clone, Default)]
pub(super) struct FetchedKeys {
    /// Changes with the keys and with the failure.
    pub(super) version: u64,
    /// Empty before the first success. After a failure they stay.
    pub(super) keys: Arc<VerificationKeys>,
    /// Why the last attempt failed, or that there was none.
    pub(super) failure: Option<String>,
}

#[derive(Debug)]
struct JwksDocument {
    fetched: FetchedKeys,
    /// What the keys were read from.
    document: Value,
    due: Instant,
    retry_delay: Duration,
}

#[derive(Debug, Default)]
pub(super) struct JwksDocuments {
    documents: Mutex<BTreeMap<String, JwksDocument>>,
    /// There is a new URI.
    added: Notify,
}

impl JwksDocuments {
    /// The keys of a URI. A new one is fetched soon.
    pub(super) fn get(&self, uri: &str) -> FetchedKeys {
        let mut documents = self.lock();
        if let Some(known) = documents.get(uri) {
            return known.fetched.clone();
        }
        let failure = Some(if documents.len() < DOCUMENTS_MAX {
            "it has not been fetched yet".to_owned()
        } else {
            format!("the policies name more than {DOCUMENTS_MAX} URIs")
        });
        let fetched = FetchedKeys { failure, ..FetchedKeys::default() };
        if documents.len() < DOCUMENTS_MAX {
            let made = JwksDocument {
                fetched: fetched.clone(),
                document: Value::Null,
                due: Instant::now(),
                retry_delay: RETRY_DELAY_MIN,
            };
            documents.insert(uri.to_owned(), made);
            self.added.notify_one();
        }
        fetched
    }

    /// Keeps the documents of `wanted` URIs current, forever, and calls `changed` with a URI whose keys or failure are others.
    pub(super) async fn run(
        &self,
        context: &ControllerContext,
        wanted: impl Fn() -> BTreeSet<String>,
        changed: impl Fn(&str),
    ) {
        let fetcher = JwksFetcher::new(Arc::clone(&context.config.targets));
        loop {
            let due = self.due(&wanted(), Instant::now());
            let changed = &changed;
            let fetch = |uri: String| {
                let fetcher = &fetcher;
                async move {
                    let result = fetcher.fetch(&uri, || context.trust_store.system_authorities()).await;
                    if self.store(&uri, result, Instant::now()) {
                        changed(&uri);
                    }
                }
            };
            stream::iter(due).for_each_concurrent(FETCHES_MAX, fetch).await;
            tokio::select! {
                () = sleep_until(self.next_due()) => {}
                () = self.added.notified() => {}
            }
        }
    }

    /// The URIs to fetch now. Those that no policy names are forgotten when they are due.
    fn due(&self, wanted: &BTreeSet<String>, now: Instant) -> Vec<String> {
        let mut documents = self.lock();
        documents.retain(|uri, document| document.due > now || wanted.contains(uri));
        documents.iter().filter(|(_, document)| document.due <= now).map(|(uri, _)| uri.clone()).collect()
    }

    fn next_due(&self) -> Instant {
        let documents = self.lock();
        documents.values().map(|document| document.due).min().unwrap_or_else(|| Instant::now() + IDLE)
    }

    /// Whether the keys or the failure are others than before.
    fn store(&self, uri: &str, result: Result<Value, String>, now: Instant) -> bool {
        let mut documents = self.lock();
        let Some(known) = documents.get_mut(uri) else { return false };
        let read = result.and_then(|document| {
            if document == known.document {
                return Ok(None);
            }
            let keys = VerificationKeys::parse(&document).filter(|keys| !keys.is_empty());
            let keys = keys.ok_or("it is not a JSON Web Key Set with public keys of signatures")?;
            Ok(Some((document, Arc::new(keys))))
        });
        let failure = match read {
            Ok(new) => {
                known.due = now + REFRESH_INTERVAL;
                known.retry_delay = RETRY_DELAY_MIN;
                if let Some((document, keys)) = new {
                    (known.document, known.fetched.keys) = (document, keys);
                    known.fetched.version += 1;
                    known.fetched.failure = None;
                    return true;
                }
                None
            }
            Err(why) => {
                known.due = now + known.retry_delay;
                known.retry_delay = (known.retry_delay * 2).min(REFRESH_INTERVAL);
                Some(why)
            }
        };
        if failure == known.fetched.failure {
            return false;
        }
        if let Some(why) = &failure {
            tracing::warn!(
                uri,
                why,
                "the keys of a SecurityPolicy cannot be fetched; those that are known stay in use"
            );
        }
        known.fetched.failure = failure;
        known.fetched.version += 1;
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, JwksDocument>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(id: &str) -> Value {
        let key = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": id, "x": key }] })
    }

    #[tokio::test]
    async fn keys_stay_in_use_after_a_failure() {
        let (documents, now) = (JwksDocuments::default(), Instant::now());
        let uri = "http://a.test/keys";
        assert!(documents.get(uri).keys.is_empty());
        let wanted = BTreeSet::from([uri.to_owned()]);
        assert_eq!(documents.due(&wanted, Instant::now()), [uri]);
        assert!(documents.store(uri, Ok(document("1")), now));
        let first = documents.get(uri);
        assert!(!first.keys.is_empty() && first.failure.is_none());
        assert!(!documents.store(uri, Ok(document("1")), now), "the same document");
        assert!(documents.store(uri, Err("refused".to_owned()), now));
        assert!(!documents.store(uri, Err("refused".to_owned()), now), "the same failure");
        let failed = documents.get(uri);
        assert!(Arc::ptr_eq(&failed.keys, &first.keys) && failed.failure.is_some());
        assert!(documents.store(uri, Ok(document("2")), now));
        assert!(!Arc::ptr_eq(&documents.get(uri).keys, &first.keys));
        assert!(documents.store(uri, Ok(json!({ "keys": [] })), now), "a document without keys is a failure");
        assert!(!documents.get(uri).keys.is_empty());
    }

    #[tokio::test]
    async fn attempts_are_spaced_and_unused_documents_forgotten() {
        let (documents, uri) = (JwksDocuments::default(), "http://a.test/keys");
        documents.get(uri);
        let (wanted, start) = (BTreeSet::from([uri.to_owned()]), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..10 {
            documents.store(uri, Err("refused".to_owned()), start);
            delays.push((documents.next_due() - start).as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!(documents.due(&wanted, start).is_empty());
        assert!(documents.due(&BTreeSet::new(), start + REFRESH_INTERVAL).is_empty());
        assert!(documents.lock().is_empty());
    }

    #[test]
    fn documents_are_limited() {
        let documents = JwksDocuments::default();
        for n in 0..=DOCUMENTS_MAX {
            documents.get(&format!("http://a.test/{n}"));
        }
        assert_eq!(documents.lock().len(), DOCUMENTS_MAX);
    }
}
