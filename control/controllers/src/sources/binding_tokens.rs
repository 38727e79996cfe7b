//! The tokens with which the subjects of SinkBindings send: each is in a Secret, which the containers see as a file, and is replaced
//! before it expires.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Resource as _;
use kube::api::ObjectMeta;

use crate::access_tokens::{RENEW_AT_FRACTION, TokenRequester};
use crate::api::Error;
use crate::context::ControllerContext;
use crate::destination_resolver::DestinationAddress;
use crate::oidc_identity::OidcIdentity;
use crate::owned_child::{apply, decide, owner_references};
use crate::work_queue::WorkItem;
use support::clock::Deadline;
use types::shared::{is_controlled_by, name};
use types::sink_injection::{TOKEN_KEY, token_secret};
use types::sources::sink_binding::SinkBinding;

/// How long a token is good, in seconds (Kubernetes' default).
const TOKEN_SECONDS: i64 = 3_600;
/// Until a token that was refused is requested again: its account may be made a moment later.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// What the token in a Secret is for, and when another one is due.
#[derive(Debug)]
struct WrittenToken {
    account: String,
    audience: String,
    renewal: Deadline,
}

/// The tokens that this process has written. After a start, each is written once more.
#[derive(Debug, Default)]
pub(super) struct BindingTokens {
    written: Mutex<HashMap<WorkItem, WrittenToken>>,
}

impl BindingTokens {
    pub(super) fn forget(&self, item: &WorkItem) {
        self.lock().remove(item);
    }

    /// Has a current token in the binding's Secret if the sink requires one. The inner error says why there is none; the binding is
    /// reconciled again.
    pub(super) async fn prepare(
        &self,
        context: &ControllerContext,
        item: &WorkItem,
        binding: &SinkBinding,
        (sink, identity): (&DestinationAddress, &OidcIdentity),
    ) -> Result<Result<(), String>, Error> {
        let (account, audience) = match (identity.account_for(sink), &sink.audience) {
            (Ok(Some(account)), Some(audience)) => (account, audience),
            (Ok(_), _) => {
                self.forget(item);
                return Ok(Ok(()));
            }
            (Err(why), _) => return Ok(Err(why)),
        };
        let secret = token_secret(name(&binding.metadata));
        let existing = context.api::<Secret>(&item.namespace).get_opt(&secret).await?;
        let is_ours = existing.as_ref().is_some_and(|found| is_controlled_by(&found.metadata, &binding.metadata));
        if is_ours && self.is_current(context, item, (account, audience)) {
            return Ok(Ok(()));
        }
        let requester = TokenRequester { client: &context.client, clock: &context.config.clock };
        let (token, good_for) = match requester.request(&item.namespace, account, audience, TOKEN_SECONDS).await {
            Ok(issued) => issued,
            Err(why) => {
                context.queue.add_after(item.clone(), RETRY_AFTER);
                return Ok(Err(format!("a token of service account {account} was not issued: {why}")));
            }
        };
        let wanted = Secret {
            metadata: ObjectMeta {
                name: Some(secret.clone()),
                namespace: Some(item.namespace.clone()),
                owner_references: owner_references(binding),
                ..ObjectMeta::default()
            },
            data: Some([(TOKEN_KEY.to_owned(), ByteString(token.into_bytes()))].into()),
            ..Secret::default()
        };
        let take = |to: &mut Secret, from: Secret| to.data = from.data;
        match apply(context, decide(binding.meta(), existing.as_ref(), wanted, take)).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                let why = format!("Secret {secret} exists and does not belong to this binding; rename one of them");
                return Ok(Err(why));
            }
            // The role of a follower allows no write of Secrets.
            Err(Error::Api(kube::Error::Api(refused))) if refused.code == 403 => {
                return Ok(Err(format!("Secret {secret} cannot be written: {}", refused.message)));
            }
            Err(why) => return Err(why),
        }
        let wait = good_for.mul_f64(RENEW_AT_FRACTION).max(RETRY_AFTER);
        context.queue.add_after(item.clone(), wait);
        let renewal = Deadline::new(context.config.clock.both(), wait);
        let written = WrittenToken { account: account.to_owned(), audience: audience.clone(), renewal };
        self.lock().insert(item.clone(), written);
        Ok(Ok(()))
    }

    fn is_current(&self, context: &ControllerContext, item: &WorkItem, (account, audience): (&str, &str)) -> bool {
        let written = self.lock();
        written.get(item).is_some_and(|known| {
            (known.account.as_str(), known.audience.as_str()) == (account, audience)
                && !known.renewal.has_passed(context.config.clock.both())
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkItem, WrittenToken>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
