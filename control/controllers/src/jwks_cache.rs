//! The keys that verify senders' tokens: fetched from the API that signs tokens, ours or a cluster's, while
//! senders must authenticate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::stream_admission::TokenVerifier;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use apiserver::access::jwks::VerificationKeys;
use kube::Client;

/// Where the API publishes them.
const PATH: &str = "/openid/v1/jwks";
/// How often they are asked for: a server that turns its keys over publishes new ones long before it signs with
/// them.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// ... and after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// An API server that takes longer to answer with a page of keys is not well, and is asked again soon.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct JwksCache {
    current: Mutex<(Value, Arc<dyn TokenVerifier>)>,
    /// The settings have changed.
    settings_changed: Notify,
}

impl Default for JwksCache {
    fn default() -> Self {
        Self {
            current: Mutex::new((Value::Null, Arc::new(VerificationKeys::default()))),
            settings_changed: Notify::default(),
        }
    }
}

impl JwksCache {
    /// As they are known now; the same as long as they are the same.
    #[must_use]
    pub fn verifier(&self) -> Arc<dyn TokenVerifier> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    pub(crate) fn settings_changed(&self) {
        self.settings_changed.notify_one();
    }

    /// Whether they are new.
    fn update(&self, document: Value) -> Result<bool, String> {
        let mut now = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 == document {
            return Ok(false);
        }
        let keys = VerificationKeys::parse(&document).ok_or("the response is not a JSON Web Key Set")?;
        *now = (document, Arc::new(keys));
        Ok(true)
    }
}

impl JwksCache {
    /// Asks once; whether the keys are new.
    pub(crate) async fn fetch(&self, client: &Client) -> Result<bool, String> {
        let request = http::Request::get(PATH).body(Vec::new()).map_err(|why| why.to_string())?;
        match timeout(REQUEST_TIMEOUT, client.request::<Value>(request)).await {
            Ok(Ok(document)) => self.update(document),
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => Err("no answer".to_owned()),
        }
    }

    /// Keeps the keys current while `is_wanted`, forever, and calls `changed` when they are others.
    pub(crate) async fn run(&self, client: &Client, is_wanted: impl Fn() -> bool, changed: impl Fn()) {
        let mut last_logged = String::new();
        loop {
            let mut rest = REFRESH_INTERVAL;
            if is_wanted() {
                let why = match self.fetch(client).await {
                    Ok(true) => {
                        changed();
                        String::new()
                    }
                    Ok(false) => String::new(),
                    Err(why) => why,
                };
                if !why.is_empty() {
                    rest = RETRY_AFTER;
                    if why != last_logged {
                        tracing::warn!(
                            why,
                            "the keys of senders' tokens cannot be read from {PATH}; events whose tokens cannot be \
                             verified get a 503; allow the appliance's account to get that path"
                        );
                    }
                }
                last_logged = why;
            }
            tokio::select! {
                () = sleep(rest) => {}
                () = self.settings_changed.notified() => {}
            }
        }
    }
}
