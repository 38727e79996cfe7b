//! What an adapter says in `/readyz` while it is not ready. The runtime's readiness probe reads it, and the conditions of the
//! Revision have it in their messages.

use serde_json::Value;

use super::{Deployment, owner_item};
use crate::context::ControllerContext;
use crate::controller::{Watches, newest};
use types::serving::annotations::SERVICE;
use types::serving::revision::{ACTIVE, Revision};
use types::serving::service::Service;
use types::shared::{ConditionStatus, HasConditions as _, label, namespace};

/// The reason of an adapter that has not failed yet.
const CONNECTING: &str = "Connecting";

/// The state of an adapter that runs and says that it is not ready, and why.
pub(super) fn told_by_instance(context: &ControllerContext, service: &Service) -> Option<Deployment> {
    let newest = service.status.as_ref()?.latest_created_revision_name.as_deref()?;
    let revision = context.caches.revisions.get(namespace(&service.metadata), newest)?;
    let active = revision.condition(ACTIVE).filter(|active| active.status == ConditionStatus::Unknown)?;
    told(&active.message)
}

/// Reads the object in the message of a condition.
fn told(message: &str) -> Option<Deployment> {
    let object = message.get(message.find('{')?..)?;
    let object = serde_json::Deserializer::from_str(object).into_iter::<Value>().next()?.ok()?;
    let (reason, why) = (object["reason"].as_str()?, object["message"].as_str().unwrap_or_default());
    let is_reason = !reason.is_empty() && reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match is_reason && object["ready"] == false {
        true if reason == CONNECTING => Some(Deployment::Waiting(CONNECTING, why.to_owned())),
        true => Some(Deployment::failed(reason, why.to_owned())),
        false => None,
    }
}

/// Objects of `kind` are reconciled when the Revision that runs their adapter changes.
pub(crate) fn watch_revisions<'a>(watches: &mut Watches<'a>, context: &'a ControllerContext, kind: &'static str) {
    watches.enqueue::<Revision, _>(move |change| {
        let revision = newest(change)?;
        let service = label(&revision.metadata, SERVICE)?;
        owner_item(&*context.caches.services.get(namespace(&revision.metadata), service)?, kind)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TRN-50, TRN-58: the reason of the adapter is that of the condition.
    #[test]
    fn adapter_tells_why_it_is_not_ready() {
        let message = |body: &str| format!("Queued. Not ready yet: HTTP probe failed with statuscode: 503: {body}");
        let body = r#"{"ready":false,"reason":"ConnectionFailed","message":"no such host","live":true,"qos":1}"#;
        let failed = Deployment::failed("ConnectionFailed", "no such host".to_owned());
        assert_eq!(told(&message(body)), Some(failed));
        let connecting = body.replace("ConnectionFailed", CONNECTING);
        assert!(matches!(told(&message(&connecting)), Some(Deployment::Waiting(CONNECTING, _))));
        for other in ["", "{", "{}", r#"{"ready":true,"reason":"A"}"#, r#"{"ready":false,"reason":"not one"}"#] {
            assert_eq!(told(&message(other)), None, "{other}");
        }
    }
}
