//! The keys that senders' tokens are checked by: asked of the API that signs tokens, ours or a cluster's, while
//! senders have to say who they are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dataplane::events::admission::Papers;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::world::World;
use crate::access::keys::KeySet;

/// Where the API publishes them.
const PATH: &str = "/openid/v1/jwks";
/// How often they are asked for: a server that turns its keys over publishes new ones long before it signs with
/// them.
const REFRESH: Duration = Duration::from_secs(300);
/// ... and after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// An API server that takes longer to answer with a page of keys is not well, and is asked again soon.
const REQUEST_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Keys {
    now: Mutex<(Value, Arc<dyn Papers>)>,
    /// The settings have changed.
    bell: Notify,
}

impl Default for Keys {
    fn default() -> Self {
        Self { now: Mutex::new((Value::Null, Arc::new(KeySet::default()))), bell: Notify::default() }
    }
}

impl Keys {
    /// As they are known now; the same as long as they are the same.
    #[must_use]
    pub fn papers(&self) -> Arc<dyn Papers> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    pub(super) fn settings_changed(&self) {
        self.bell.notify_one();
    }

    /// Whether they are new.
    fn take(&self, document: Value) -> Result<bool, String> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 == document {
            return Ok(false);
        }
        let keys = KeySet::parse(&document).ok_or("the answer is no set of keys")?;
        *now = (document, Arc::new(keys));
        Ok(true)
    }
}

/// Asks once; whether the keys are new.
pub(super) async fn fetch(world: &World) -> Result<bool, String> {
    let request = http::Request::get(PATH).body(Vec::new()).map_err(|why| why.to_string())?;
    match timeout(REQUEST_MAX, world.client.request::<Value>(request)).await {
        Ok(Ok(document)) => world.keys.take(document),
        Ok(Err(why)) => Err(why.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Keeps them current, for ever.
pub(super) async fn tend(world: &World) {
    let mut told = String::new();
    loop {
        let mut rest = REFRESH;
        if world.settings().event_features.authenticates() {
            let why = match fetch(world).await {
                Ok(true) => {
                    super::policies::look_at_protected(world, None);
                    String::new()
                }
                Ok(false) => String::new(),
                Err(why) => why,
            };
            if !why.is_empty() {
                rest = RETRY;
                if why != told {
                    tracing::warn!(
                        why,
                        "the keys of {PATH} cannot be had; until then the events of senders that nobody knows get 503. \
                         The appliance's account must be allowed to get that path"
                    );
                }
            }
            told = why;
        }
        tokio::select! {
            () = sleep(rest) => {}
            () = world.keys.bell.notified() => {}
        }
    }
}
