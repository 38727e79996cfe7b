//! SinkBindings: inject the sink into the programs of Services and Configurations.
//!
//! The injected variables are in the subject's template, as upstream's webhook does it; so a change makes a new Revision,
//! and is visible. A finalizer holds a binding until its variables are removed from its subjects.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::{Selector, SelectorExt};

use super::binding_tokens::BindingTokens;
use super::{NOT_RUN_HERE, set_sink};
use crate::api::{Error, NamespacedObject, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::{InformerCache, ObjectChange};
use crate::oidc_identity::{self, OidcIdentity};
use crate::work_queue::{ControllerKind, WorkItem};
use types::conditions::ConditionManager;
use types::serving::configuration::Configuration;
use types::serving::service::Service;
use types::shared::{controller, name, namespace};
use types::sink_injection::{self, BindableKind, BindingSubject, InjectedSink};
use types::sources::SourceKind;
use types::sources::ping::OIDC_IDENTITY_CREATED;
use types::sources::sink_binding::{
    AVAILABLE, FINALIZER, NOT_BOUND, OIDC_TOKEN_SECRET_CREATED, SinkBinding, TRUST_BUNDLE_PROPAGATED,
};

/// Kinds with a template that a binding may change.
trait HasTemplate: NamespacedObject {
    fn set_sink(&mut self, injected: &InjectedSink);
}

macro_rules! templated {
    ($($kind:ty),+) => {$(
        impl HasTemplate for $kind {
            fn set_sink(&mut self, injected: &InjectedSink) {
                self.spec.template.set_sink(injected);
            }
        }
    )+};
}
templated!(Service, Configuration);

impl HasTemplate for Deployment {
    fn set_sink(&mut self, injected: &InjectedSink) {
        sink_injection::set_pod_sink(&mut self.spec.get_or_insert_default().template, injected);
    }
}

impl HasTemplate for ReplicaSet {
    fn set_sink(&mut self, injected: &InjectedSink) {
        let template = self.spec.get_or_insert_default().template.get_or_insert_default();
        sink_injection::set_pod_sink(template, injected);
    }
}

/// The reason while subjects cannot get a token.
const TOKEN_NOT_CREATED: &str = "TokenNotCreated";

/// Why a binding's subjects get no sink.
struct BindError {
    reason: &'static str,
    message: String,
}

const KIND: ControllerKind = ControllerKind::new("SinkBinding");

#[derive(Debug, Default)]
pub struct BindingController {
    bindings: InformerCache<SinkBinding>,
    namespaces: InformerCache<Namespace>,
    tokens: BindingTokens,
}

impl Controller for BindingController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.bindings);
        watches.own(context.source(), &self.namespaces, move |change| on_namespace_change(self, context, change));
        watches.call::<Service>(move |change| {
            let home = newest(change).map(|service| namespace(&service.metadata)).unwrap_or_default();
            on_subject_change(self, context, BindableKind::Service, home);
        });
        watches.call::<Configuration>(move |change| {
            let home = newest(change).map(|configuration| namespace(&configuration.metadata)).unwrap_or_default();
            on_subject_change(self, context, BindableKind::Configuration, home);
        });
        watches.call::<Deployment>(move |change| {
            let home = newest(change).map(|deployment| namespace(&deployment.metadata)).unwrap_or_default();
            on_subject_change(self, context, BindableKind::Deployment, home);
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

/// Looks again at the bindings whose subject an object of that kind may be.
fn on_subject_change(controller: &BindingController, context: &ControllerContext, runs: BindableKind, home: &str) {
    let bindings = controller.bindings.list(home);
    for binding in bindings.iter().filter(|one| one.spec.subject.bindable_kind() == Some(runs)) {
        context.enqueue(WorkItem::new(KIND, home, name(&binding.metadata)));
    }
}

/// Looks again at the bindings of a namespace that was kept from being bound, or is from now on.
fn on_namespace_change(
    controller: &BindingController,
    context: &ControllerContext,
    (before, after): ObjectChange<'_, Namespace>,
) {
    let is_excluded =
        |home: Option<&Arc<Namespace>>| home.is_some_and(|home| sink_injection::is_excluded(&home.metadata));
    let Some(home) = after.filter(|_| is_excluded(before) != is_excluded(after)) else { return };
    let home = name(&home.metadata);
    for binding in controller.bindings.list(home) {
        context.enqueue(WorkItem::new(KIND, home, name(&binding.metadata)));
    }
}

/// Whether a namespace is kept from being bound (X-SRC-04).
async fn is_excluded(context: &ControllerContext, home: &str) -> Result<bool, Error> {
    let home = Api::<Namespace>::all(context.client.clone()).get_opt(home).await?;
    Ok(home.is_some_and(|home| sink_injection::is_excluded(&home.metadata)))
}

async fn reconcile(controller: &BindingController, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(binding) = controller.bindings.get(&item.namespace, &item.name) else {
        controller.tokens.forget(item);
        return Ok(());
    };
    let runs = binding.spec.subject.bindable_kind();
    if binding.metadata.deletion_timestamp.is_some() {
        if binding.has_finalizer() {
            drop(apply_binding(controller, context, &binding, runs, &InjectedSink::default()).await?); // a deleted subject needs no update
            set_finalizer(context, &binding, false).await?;
        }
        return Ok(());
    }
    let sink = context.resolver.resolve(item, &binding.spec.sink).await?;
    let had = binding.status.as_ref().and_then(|status| status.auth.as_ref());
    let identity = oidc_identity::reconcile_account(context, item, &*binding, had).await?;
    let token = match &sink {
        Ok(sink) => controller.tokens.prepare(context, item, &binding, (sink, &identity)).await?,
        Err(_) => Ok(()),
    };
    let bound = match &sink {
        Ok(sink) if runs.is_some() && token.is_ok() => {
            if !binding.has_finalizer() {
                return set_finalizer(context, &binding, true).await; // and its watch brings it back
            }
            let audience = sink.audience.as_deref().filter(|_| identity.account().is_some());
            let injected = binding.injected_sink(&sink.url, sink.ca_certs.as_deref(), audience);
            Some(apply_binding(controller, context, &binding, runs, &injected).await?)
        }
        _ => None,
    };
    let mut after = (*binding).clone();
    set_status(&mut after, sink, bound, (&identity, token));
    context.set_status(&*binding, &after).await
}

/// Gives all subjects exactly what `injected` has.
async fn apply_binding(
    controller: &BindingController,
    context: &ControllerContext,
    binding: &SinkBinding,
    runs: Option<BindableKind>,
    injected: &InjectedSink,
) -> Result<Result<(), BindError>, Error> {
    match runs {
        Some(BindableKind::Service) => {
            apply_to_subjects(controller, context, &context.caches.services, binding, injected).await
        }
        Some(BindableKind::Configuration) => {
            apply_to_subjects(controller, context, &context.caches.configurations, binding, injected).await
        }
        Some(BindableKind::Deployment) => {
            apply_to_subjects(controller, context, &context.caches.deployments, binding, injected).await
        }
        Some(BindableKind::ReplicaSet) => {
            apply_to_subjects(controller, context, &context.caches.replica_sets, binding, injected).await
        }
        // Told when they are created.
        Some(BindableKind::Job) | None => Ok(Ok(())),
    }
}

async fn apply_to_subjects<K: HasTemplate>(
    controller: &BindingController,
    context: &ControllerContext,
    cache: &InformerCache<K>,
    binding: &SinkBinding,
    injected: &InjectedSink,
) -> Result<Result<(), BindError>, Error> {
    let home = namespace(&binding.metadata);
    if is_excluded(context, home).await? {
        let message = format!("the namespace {home:?} is excluded from binding by its label");
        return Ok(Err(BindError { reason: "SubjectUnavailable", message }));
    }
    let subjects = match subjects(cache, binding) {
        Ok(subjects) => subjects,
        Err(unbound) => return Ok(Err(unbound)),
    };
    for subject in subjects {
        if let Some(first) = older_binding(controller, binding, subject.meta()) {
            // Both would write forever, and each write is a Revision.
            let message = format!("{:?} is bound by the older SinkBinding {first:?}", name(subject.meta()));
            return Ok(Err(BindError { reason: "SubjectUnavailable", message }));
        }
        let mut after = (*subject).clone();
        after.set_sink(injected);
        if after != *subject {
            context.replace(&after).await?;
        }
    }
    Ok(Ok(()))
}

/// The binding that has the subject before this one, if there is such.
fn older_binding(controller: &BindingController, binding: &SinkBinding, subject: &ObjectMeta) -> Option<String> {
    let runs = binding.spec.subject.bindable_kind()?;
    let others = controller.bindings.list(namespace(&binding.metadata));
    let first = others.iter().find(|other| other.age() < binding.age() && other.applies_to(runs, subject));
    first.map(|other| name(&other.metadata).to_owned())
}

/// The one that is named, or all that have the labels: of those there may be none yet.
fn subjects<K: HasTemplate>(cache: &InformerCache<K>, binding: &SinkBinding) -> Result<Vec<Arc<K>>, BindError> {
    let (home, BindingSubject { kind, name, selector, .. }) = (namespace(&binding.metadata), &binding.spec.subject);
    if let Some(name) = name {
        let subject = cache.get(home, name).ok_or_else(|| BindError {
            reason: "SubjectMissing",
            message: format!("there is no {kind} {name:?} in namespace {home}"),
        })?;
        return match controller(subject.meta()) {
            None if sink_injection::is_excluded(subject.meta()) => Err(BindError {
                reason: "SubjectUnavailable",
                message: format!("the {kind} {name:?} is excluded from binding by its label"),
            }),
            None => Ok(vec![subject]),
            Some(owner) => Err(BindError {
                reason: "SubjectUnavailable",
                message: format!("the {kind} belongs to {} {:?}: bind that", owner.kind, owner.name),
            }),
        };
    }
    let selector = selector.clone().unwrap_or_default();
    let selector = Selector::try_from(selector)
        .map_err(|why| BindError { reason: "SubjectUnavailable", message: why.to_string() })?;
    let mut found = cache.list(home);
    let nothing = Default::default();
    let fits = |meta: &ObjectMeta| selector.matches(meta.labels.as_ref().unwrap_or(&nothing));
    found.retain(|subject| {
        let meta = subject.meta();
        controller(meta).is_none() && !sink_injection::is_excluded(meta) && fits(meta)
    });
    Ok(found)
}

async fn set_finalizer(context: &ControllerContext, binding: &SinkBinding, held: bool) -> Result<(), Error> {
    let mut after = binding.clone();
    let finalizers = after.metadata.finalizers.get_or_insert_default();
    finalizers.retain(|one| one != FINALIZER);
    if held {
        finalizers.push(FINALIZER.to_owned());
    }
    context.replace(&after).await.map(drop)
}

fn set_status(
    binding: &mut SinkBinding,
    sink: Result<DestinationAddress, ResolveError>,
    bound: Option<Result<(), BindError>>,
    (identity, token): (&OidcIdentity, Result<(), String>),
) {
    let (is_run, generation) = (binding.spec.subject.bindable_kind().is_some(), binding.metadata.generation);
    let status = binding.status.get_or_insert_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = SinkBinding::CONDITIONS.manage(&before, now());
    status.auth = identity.status();
    identity.mark(&mut conditions, OIDC_IDENTITY_CREATED);
    mark_token(&mut conditions, (identity, &token), sink.as_ref().is_ok_and(|sink| sink.audience.is_none()));
    conditions.mark_true(TRUST_BUNDLE_PROPAGATED); // programs get all that they need of it
    set_sink(status, &mut conditions, sink);
    match (bound, token) {
        (Some(Ok(())), _) => conditions.mark_true(AVAILABLE),
        (Some(Err(BindError { reason, message })), _) => conditions.mark_false(AVAILABLE, reason, &message),
        (None, _) if !is_run => conditions.mark_false(AVAILABLE, NOT_RUN_HERE, NOT_BOUND),
        (None, Err(why)) => conditions.mark_false(AVAILABLE, TOKEN_NOT_CREATED, &why),
        // What its subjects have stays.
        (None, Ok(())) => conditions.mark_unknown(AVAILABLE, "", ""),
    }
    conditions.finish_into(&mut status.base, generation);
}

fn mark_token(
    conditions: &mut ConditionManager<'_>,
    (identity, token): (&OidcIdentity, &Result<(), String>),
    needs_none: bool,
) {
    let kind = OIDC_TOKEN_SECRET_CREATED;
    match (identity, token) {
        (OidcIdentity::Disabled, _) => identity.mark(conditions, kind),
        (_, Err(why)) => conditions.mark_false(kind, TOKEN_NOT_CREATED, why),
        _ if needs_none => {
            conditions.mark_true_with_reason(kind, "NoAudience", "The sink does not require authentication.");
        }
        _ => conditions.mark_true(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::shared::ConditionStatus;
    use types::sources::sink_binding::SinkBindingSpec;

    fn concluded(
        sink: Result<DestinationAddress, ResolveError>,
        identity: &OidcIdentity,
        token: Result<(), String>,
    ) -> Vec<(String, ConditionStatus)> {
        let subject = BindingSubject {
            api_version: "serving.knative.dev/v1".into(),
            kind: "Service".into(),
            ..BindingSubject::default()
        };
        let mut binding = SinkBinding::new("ns", "b", SinkBindingSpec { subject, ..SinkBindingSpec::default() });
        let bound = (sink.is_ok() && token.is_ok()).then_some(Ok(()));
        set_status(&mut binding, sink, bound, (identity, token));
        let conditions = binding.status.unwrap_or_default().base.conditions;
        conditions.into_iter().map(|one| (one.kind, one.status)).collect()
    }

    /// X-SRC-04, COND-06: upstream's five conditions are there, and Ready follows from them.
    #[test]
    fn a_status_has_all_conditions() {
        let sink = |audience: Option<&str>| {
            Ok(DestinationAddress { audience: audience.map(str::to_owned), ..DestinationAddress::from("http://s/") })
        };
        let nowhere = || Err(ResolveError("gone".into()));
        let (yes, no) = (ConditionStatus::True, ConditionStatus::False);
        let (off, own) = (OidcIdentity::Disabled, OidcIdentity::Created("own".to_owned()));
        for (sink, identity, token, secret, ready) in [
            (sink(None), &off, Ok(()), yes, yes),
            (sink(None), &own, Ok(()), yes, yes),
            (sink(Some("a")), &own, Ok(()), yes, yes),
            (sink(Some("a")), &own, Err("refused".to_owned()), no, no),
            (nowhere(), &off, Ok(()), yes, no),
            (nowhere(), &own, Ok(()), yes, no),
        ] {
            let found = concluded(sink, identity, token);
            let of = |kind: &str| found.iter().find(|(known, _)| known == kind).unwrap().1;
            assert_eq!((of(OIDC_IDENTITY_CREATED), of("Ready")), (yes, ready), "{found:?}");
            assert_eq!(of(OIDC_TOKEN_SECRET_CREATED), secret);
            assert_eq!((of(TRUST_BUNDLE_PROPAGATED), found.len()), (yes, 6));
        }
    }

    #[test]
    fn only_what_runs_here_can_be_bound() {
        let runs = |version: &str, kind: &str| {
            BindingSubject { api_version: version.into(), kind: kind.into(), ..BindingSubject::default() }
                .bindable_kind()
        };
        assert_eq!(runs("serving.knative.dev/v1", "Service"), Some(BindableKind::Service));
        assert_eq!(runs("serving.knative.dev/v1", "Configuration"), Some(BindableKind::Configuration));
        assert_eq!(runs("apps/v1", "Deployment"), Some(BindableKind::Deployment));
        assert_eq!(runs("batch/v1", "Job"), Some(BindableKind::Job));
        for (version, kind) in [("v1", "Service"), ("apps/v1", "StatefulSet"), ("serving.knative.dev/v1", "Route")] {
            assert_eq!(runs(version, kind), None, "{version} {kind}");
        }
    }
}
