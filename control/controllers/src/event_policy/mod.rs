//! EventPolicy: resolves the senders that it refers to. The objects that it protects are reconciled when it changes.

use jiff::Timestamp;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::destination_resolver::ResolveError;
use crate::oidc_identity::subject;
use crate::work_queue::{ControllerKind, WorkItem};
use types::eventing::event_policy::{
    AUTHENTICATION_ENABLED, CONDITIONS, EventPolicy, EventPolicyReference, EventPolicyStatus, SUBJECTS_RESOLVED,
};
use types::shared::KReference;

const KIND: ControllerKind = ControllerKind::new("EventPolicy");

#[derive(Debug)]
pub struct EventPolicyController;

impl Controller for EventPolicyController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<EventPolicy>(KIND);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(policy) = context.caches.event_policies.get(&item.namespace, &item.name) else { return Ok(()) };
    let (mut subjects, mut missing) = (Vec::new(), Vec::new());
    for from in &policy.spec.from {
        subjects.extend(from.sub.clone());
        if let Some(reference) = &from.reference {
            match resolve_subjects(context, item, reference).await? {
                Ok(found) => subjects.extend(found),
                Err(ResolveError(why)) => missing.push(why),
            }
        }
    }
    let is_on = context.settings().event_features.authenticates();
    let mut after = (*policy).clone();
    after.status = Some(status(&policy, is_on, subjects, &missing, now()));
    context.set_status(&*policy, &after).await
}

/// The subjects under which an object sends.
async fn resolve_subjects(
    context: &ControllerContext,
    item: &WorkItem,
    reference: &EventPolicyReference,
) -> Result<Result<Vec<String>, ResolveError>, Error> {
    let ns = reference.namespace.as_deref().filter(|ns| !ns.is_empty()).unwrap_or(&item.namespace);
    let sender = KReference {
        api_version: reference.api_version.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: Some(ns.to_owned()),
        ..KReference::default()
    };
    let object = context.resolver.read(item, &sender).await?;
    Ok(object.and_then(|object| {
        let auth = &object["status"]["auth"];
        let several = auth["serviceAccountNames"].as_array().into_iter().flatten();
        let names = several.chain([&auth["serviceAccountName"]]).filter_map(|name| name.as_str());
        let found: Vec<String> = names.map(|account| subject(ns, account)).collect();
        if found.is_empty() {
            let what = format!("{} {ns}/{}", reference.kind, reference.name);
            return Err(ResolveError(format!("{what} has no status.auth: it has no service account of its own")));
        }
        Ok(found)
    }))
}

fn status(
    policy: &EventPolicy,
    is_on: bool,
    subjects: Vec<String>,
    missing: &[String],
    now: Timestamp,
) -> EventPolicyStatus {
    let mut base = policy.status.clone().unwrap_or_default().base;
    let before = std::mem::take(&mut base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    if is_on {
        conditions.mark_true(AUTHENTICATION_ENABLED);
    } else {
        let why = "Feature \"authentication-oidc\" must be enabled in ConfigMap config-features.";
        conditions.mark_false(AUTHENTICATION_ENABLED, "OIDCAuthenticationDisabled", why);
    }
    if missing.is_empty() {
        conditions.mark_true(SUBJECTS_RESOLVED);
    } else {
        let why = format!("Failed to resolve .spec.from[].ref: {}", missing.join("; "));
        conditions.mark_false(SUBJECTS_RESOLVED, "SubjectsNotResolved", &why);
    }
    conditions.finish_into(&mut base, policy.metadata.generation);
    EventPolicyStatus { base, from: subjects }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::eventing::event_policy::EventPolicySpec;
    use types::shared::ConditionStatus;

    /// X-FEA-09
    #[test]
    fn a_policy_is_ready_when_it_is_enforced_and_its_senders_are_known() {
        let policy = EventPolicy::new("ns", "p", EventPolicySpec::default());
        for (is_on, missing, verdict, reason) in [
            (true, vec![], ConditionStatus::True, ""),
            (true, vec!["X ns/x not found".to_owned()], ConditionStatus::False, "SubjectsNotResolved"),
            (false, vec![], ConditionStatus::False, "OIDCAuthenticationDisabled"),
        ] {
            let now = Timestamp::from_second(1).unwrap();
            let status = status(&policy, is_on, vec!["me".into()], &missing, now);
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str(), status.from.len()), (verdict, reason, 1));
        }
    }
}
