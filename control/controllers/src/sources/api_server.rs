//! ApiServerSources: an event for each change of objects of this API, with the rights of the source's service account.
//!
//! A source has a watch for each kind and namespace. A watch reads the next change once the event of the last one was
//! accepted, so events of one kind keep their order, and a sink that is away holds back the watch.

mod event;
mod permissions;
mod plan;
mod watch;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use contract::core_relay::CoreSenders;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::{Selector, SelectorExt as _};
use tokio::sync::Notify;

use super::event_poster::EventPoster;
use super::{event_types, set_sink};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, items_in};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::event_filters;
use crate::informer_cache::InformerCache;
use crate::oidc_identity;
use crate::work_queue::{ControllerKind, WorkItem};
use types::sources::api_server::{ApiServerSource, DEPLOYED, RESOURCE, SUFFICIENT_PERMISSIONS};
use types::sources::ping::OIDC_IDENTITY_CREATED;
use types::sources::{CloudEventAttributes, SourceKind as _};

use permissions::PermissionCheck;
use plan::{NamespaceScope, WatchPlan, WatchedKind};
use watch::RunningWatches;

const KIND: ControllerKind = ControllerKind::new("ApiServerSource");
/// Rights are checked again after this time: no watch reports a changed role.
const PERMISSIONS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Watches of one source.
const WATCHES_MAX: usize = 256;

#[derive(Debug)]
pub struct ApiServerController {
    sources: InformerCache<ApiServerSource>,
    namespaces: InformerCache<Namespace>,
    poster: EventPoster,
    running: RunningWatches,
    changed: Notify,
}

impl ApiServerController {
    #[must_use]
    pub fn new(relay: Arc<OnceLock<CoreSenders>>) -> Self {
        Self {
            sources: InformerCache::default(),
            namespaces: InformerCache::default(),
            poster: EventPoster::new(relay),
            running: RunningWatches::default(),
            changed: Notify::new(),
        }
    }
}

impl Controller for ApiServerController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.sources);
        watches.own(context.source(), &self.namespaces, move |_| {
            items_in(KIND, &self.sources, None).into_iter().for_each(|item| context.enqueue(item));
        });
        watches.task(watch::run(&self.running, &self.changed, &self.poster, context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

async fn reconcile(
    controller: &ApiServerController,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let from = (item.namespace.clone(), item.name.clone());
    let source = controller.sources.get(&item.namespace, &item.name);
    let Some(source) = source.filter(|source| source.metadata.deletion_timestamp.is_none()) else {
        controller.running.remove(&from);
        controller.poster.retain(|known| *known != from);
        controller.changed.notify_one();
        return Ok(());
    };
    let sink = context.resolver.resolve(item, &source.spec.sink).await?;
    let had = source.status.as_ref().and_then(|status| status.auth.clone());
    let identity = oidc_identity::reconcile_account(context, item, &*source, had.as_ref()).await?;
    let namespaces = selected_namespaces(&source, &controller.namespaces);
    let kinds = watched_kinds(context, &source).await?;
    let permissions = match &kinds {
        Ok(kinds) => permissions::check(context, &source, kinds, &namespaces).await?,
        Err(_) => PermissionCheck::NotChecked,
    };
    context.queue.add_after_unless_sooner(item, PERMISSIONS_CHECK_INTERVAL);

    let mut after = (*source).clone();
    let generation = after.metadata.generation;
    let status = after.status.get_or_insert_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = ApiServerSource::CONDITIONS.manage(&before, now());
    let resolved = sink.as_ref().ok().cloned();
    set_sink(status, &mut conditions, sink);
    identity.mark(&mut conditions, OIDC_IDENTITY_CREATED);
    status.auth = identity.status();
    permissions.mark(&mut conditions, SUFFICIENT_PERMISSIONS);
    let account = status.auth.as_ref().and_then(|auth| auth.service_account_name.clone());
    let inputs = WatchInputs { sink: resolved, kinds, permissions, account, namespaces: &namespaces };
    let deployed = deploy(controller, &source, inputs);
    match &deployed {
        Ok(()) => conditions.mark_true(DEPLOYED),
        Err((reason, why)) => conditions.mark_false(DEPLOYED, reason, why),
    }
    status.namespaces = namespaces;
    status.ce_attributes = if deployed.is_ok() { attributes(&source) } else { Vec::new() };
    conditions.finish_into(&mut status.base, generation);
    let sent = status.ce_attributes.clone();
    context.set_status(&*source, &after).await?;
    event_types::reconcile(context, &*source, &sent).await
}

/// What was found out about the spec of a source.
struct WatchInputs<'a> {
    sink: Option<DestinationAddress>,
    kinds: Result<Vec<WatchedKind>, ResolveError>,
    permissions: PermissionCheck,
    account: Option<String>,
    namespaces: &'a [String],
}

/// Starts, changes or ends the watches of a source.
fn deploy(
    controller: &ApiServerController,
    source: &ApiServerSource,
    inputs: WatchInputs<'_>,
) -> Result<(), (&'static str, String)> {
    let WatchInputs { sink, kinds, permissions, account, namespaces } = inputs;
    let meta = &source.metadata;
    let from = (types::shared::namespace(meta).to_owned(), types::shared::name(meta).to_owned());
    let stop = |reason, why: String| {
        controller.running.remove(&from);
        controller.changed.notify_one();
        Err((reason, why))
    };
    let kinds = match kinds {
        Ok(kinds) => kinds,
        Err(ResolveError(why)) => return stop("KindNotServed", why),
    };
    if !matches!(permissions, PermissionCheck::Sufficient) {
        return stop("InsufficientPermissions", "objects are read once the service account may do so".to_owned());
    }
    let Some(sink) = sink else {
        return stop("SinkNotResolved", "objects are watched once the sink is known".to_owned());
    };
    let is_everywhere = source.spec.namespace_selector.as_ref().is_some_and(|selector| {
        selector.match_labels.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    });
    let scopes = if is_everywhere { 1 } else { namespaces.len() };
    if kinds.len() * scopes > WATCHES_MAX {
        let why = format!("{} kinds in {scopes} namespaces are too many: at most {WATCHES_MAX} watches", kinds.len());
        return stop("TooManyWatches", why);
    }
    let plan = WatchPlan {
        kinds,
        scope: if is_everywhere { NamespaceScope::All } else { NamespaceScope::Namespaces(namespaces.to_vec()) },
        has_objects: source.spec.mode == RESOURCE,
        owner: source.spec.owner.clone(),
        overrides: source.spec.ce_overrides.clone().unwrap_or_default(),
        filter: event_filters::compiled(&source.spec.filters),
        filters: source.spec.filters.clone(),
        sink,
        account,
    };
    controller.running.set(from, plan);
    controller.changed.notify_one();
    Ok(())
}

/// The namespaces that a source watches, sorted.
fn selected_namespaces(source: &ApiServerSource, namespaces: &InformerCache<Namespace>) -> Vec<String> {
    let Some(selector) = &source.spec.namespace_selector else {
        return vec![types::shared::namespace(&source.metadata).to_owned()];
    };
    let Ok(selector) = Selector::try_from(selector.clone()) else { return Vec::new() };
    let mut found: Vec<String> = namespaces
        .all()
        .iter()
        .filter(|home| selector.matches(home.metadata.labels.as_ref().unwrap_or(&Default::default())))
        .filter_map(|home| home.metadata.name.clone())
        .collect();
    found.sort();
    found
}

/// The kinds of `spec.resources` as the API serves them.
async fn watched_kinds(
    context: &ControllerContext,
    source: &ApiServerSource,
) -> Result<Result<Vec<WatchedKind>, ResolveError>, Error> {
    let mut kinds = Vec::new();
    for named in &source.spec.resources {
        let Some((resource, namespaced)) = context.resolver.served_kind(&named.api_version, &named.kind).await? else {
            let why = format!("no kind {} is served in {}", named.kind, named.api_version);
            return Ok(Err(ResolveError(why)));
        };
        let selector = match named.selector.clone().map(Selector::try_from).transpose() {
            Ok(selector) => selector.map(|selector| selector.to_string()).unwrap_or_default(),
            Err(why) => return Ok(Err(ResolveError(format!("selector of {}: {why}", named.kind)))),
        };
        kinds.push(WatchedKind { resource, namespaced, selector });
    }
    Ok(Ok(kinds))
}

/// The types of the events of a source.
fn attributes(source: &ApiServerSource) -> Vec<CloudEventAttributes> {
    let what = if source.spec.mode == RESOURCE { "resource" } else { "ref" };
    let one =
        |change: &str| CloudEventAttributes { kind: event::type_of(what, change), source: event::SOURCE.to_owned() };
    ["add", "delete", "update"].map(one).to_vec()
}
