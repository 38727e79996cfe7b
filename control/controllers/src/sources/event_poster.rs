//! Sends requests with events as deliveries are sent: to a Service of ours without the network, with a token if the sink
//! authenticates senders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use codec::encode;
use codec::http::LocalResponse;
use contract::access_token::AccessToken;
use contract::core_relay::CoreSenders;
use contract::post_error::PostError;

use super::SourceName;
use super::event_sender::OutgoingEvent;
use crate::context::ControllerContext;

#[derive(Debug)]
pub(super) struct EventPoster {
    /// By these the cores send them, once they run.
    relay: Arc<OnceLock<CoreSenders>>,
    /// Held so that there is a token for the next event.
    access_tokens: Mutex<HashMap<SourceName, Arc<AccessToken>>>,
}

impl EventPoster {
    pub(super) fn new(relay: Arc<OnceLock<CoreSenders>>) -> Self {
        Self { relay, access_tokens: Mutex::default() }
    }

    pub(super) async fn post(
        &self,
        context: &ControllerContext,
        event: &OutgoingEvent,
        request: encode::EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        let transport = |why: String| PostError::Transport(why.into());
        let ways = self.relay.get().ok_or_else(|| transport("nothing is sent yet".to_owned()))?;
        let mut target = context.trust_store.target(&event.sink).map_err(transport)?;
        let (namespace, _) = &event.from;
        let audience = event.sink.audience.as_deref();
        context.access_tokens.attach(&mut target, namespace, event.account.as_deref(), audience);
        match target.access_token.clone() {
            Some(pass) => drop(self.lock().insert(event.from.clone(), pass)),
            None => drop(self.lock().remove(&event.from)),
        }
        ways.send_to_core(target, request, timeout).await
    }

    /// Forgets the tokens of sources that do not exist any more.
    pub(super) fn retain(&self, exists: impl Fn(&SourceName) -> bool) {
        self.lock().retain(|source, _| exists(source));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SourceName, Arc<AccessToken>>> {
        self.access_tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
