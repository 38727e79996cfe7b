//! The watches of ApiServerSources: each follows one kind in one namespace, and sends an event for each change.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{AbortHandle, abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use tokio::sync::Notify;

use super::event::{self, Change};
use super::plan::{NamespaceScope, WatchPlan, WatchedKind};
use crate::context::ControllerContext;
use crate::sources::SourceName;
use crate::sources::event_poster::EventPoster;
use crate::sources::event_sender::{self, API_SERVER_ATTEMPTS_MAX};

/// Pause after a watch failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A watch is opened again after this time (below Kubernetes' limit of 295 s).
const WATCH_SECONDS: u32 = 290;
/// The position is too old for the API's history.
const GONE: u16 = 410;

/// The plans of all sources that run.
#[derive(Debug, Default)]
pub(super) struct RunningWatches(Mutex<HashMap<SourceName, Arc<WatchPlan>>>);

impl RunningWatches {
    pub(super) fn set(&self, source: SourceName, plan: WatchPlan) {
        let mut all = self.lock();
        if all.get(&source).is_none_or(|known| **known != plan) {
            all.insert(source, Arc::new(plan));
        }
    }

    pub(super) fn remove(&self, source: &SourceName) {
        self.lock().remove(source);
    }

    fn all(&self) -> HashMap<SourceName, Arc<WatchPlan>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SourceName, Arc<WatchPlan>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far the watches of one source are: resource versions by kind and namespace. A changed plan goes on from there.
type WatchPositions = Rc<RefCell<HashMap<(String, String), String>>>;

struct RunningSource {
    plan: Arc<WatchPlan>,
    positions: WatchPositions,
    abort: AbortHandle,
}

/// Runs forever.
pub(super) async fn run(running: &RunningWatches, changed: &Notify, poster: &EventPoster, context: &ControllerContext) {
    let mut tasks = FuturesUnordered::new();
    let mut started: HashMap<SourceName, RunningSource> = HashMap::new();
    loop {
        let wanted = running.all();
        started.retain(|source, known| {
            let stays = wanted.contains_key(source);
            if !stays {
                known.abort.abort();
            }
            stays
        });
        for (source, plan) in wanted {
            let known = started.get(&source);
            if known.is_some_and(|known| Arc::ptr_eq(&known.plan, &plan)) {
                continue;
            }
            let positions = known.map(|known| Rc::clone(&known.positions)).unwrap_or_default();
            if let Some(known) = known {
                known.abort.abort();
            }
            let work = run_source(source.clone(), Arc::clone(&plan), Rc::clone(&positions), poster, context);
            let (work, abort) = abortable(work);
            tasks.push(work);
            started.insert(source, RunningSource { plan, positions, abort });
        }
        let mut change = pin!(changed.notified());
        loop {
            tokio::select! {
                () = &mut change => break,
                Some(_) = tasks.next(), if !tasks.is_empty() => {}
            }
        }
    }
}

async fn run_source(
    source: SourceName,
    plan: Arc<WatchPlan>,
    positions: WatchPositions,
    poster: &EventPoster,
    context: &ControllerContext,
) {
    let work = SourceWatches { source: &source, plan: &plan, positions: &positions, poster, context };
    let mut watches = FuturesUnordered::new();
    for kind in &plan.kinds {
        let places = match &plan.scope {
            NamespaceScope::Namespaces(namespaces) if kind.namespaced => namespaces.clone(),
            _ => vec![String::new()],
        };
        for place in places {
            watches.push(work.run(kind, place));
        }
    }
    while watches.next().await.is_some() {}
}

/// What the watches of one source share.
#[derive(Clone, Copy)]
struct SourceWatches<'a> {
    source: &'a SourceName,
    plan: &'a WatchPlan,
    positions: &'a WatchPositions,
    poster: &'a EventPoster,
    context: &'a ControllerContext,
}

impl SourceWatches<'_> {
    /// Follows a kind in one namespace, or in all if `place` is empty, forever.
    async fn run(self, kind: &WatchedKind, place: String) {
        let client = self.context.client.clone();
        let api: Api<DynamicObject> = match place.as_str() {
            "" => Api::all_with(client, &kind.resource),
            place => Api::namespaced_with(client, place, &kind.resource),
        };
        let key = (format!("{}/{}?{}", kind.resource.api_version, kind.resource.plural, kind.selector), place);
        loop {
            let known = self.positions.borrow().get(&key).cloned();
            let position = match known {
                Some(position) => Ok(position),
                None => list_position(&api, &kind.selector).await,
            };
            let followed = match position {
                Ok(position) => {
                    self.positions.borrow_mut().insert(key.clone(), position.clone());
                    let moved = |version: &str| {
                        self.positions.borrow_mut().insert(key.clone(), version.to_owned());
                    };
                    self.follow(kind, &api, &position, moved).await
                }
                Err(why) => Err(why),
            };
            let (source, kind) = (&self.source.1, &kind.resource.kind);
            match followed {
                Ok(()) => {}
                Err(kube::Error::Api(gone)) if gone.code == GONE => {
                    tracing::warn!(source, kind, "changes were missed: the sink was away for too long");
                    self.positions.borrow_mut().remove(&key);
                }
                Err(why) => {
                    tracing::warn!(source, kind, %why, "the watch of a source failed; it starts again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Follows one watch to its end.
    async fn follow(
        self,
        kind: &WatchedKind,
        api: &Api<DynamicObject>,
        position: &str,
        moved: impl Fn(&str),
    ) -> Result<(), kube::Error> {
        let parameters = WatchParams::default().labels(&kind.selector).timeout(WATCH_SECONDS);
        let mut changes = pin!(api.watch(&parameters, position).await?);
        while let Some(change) = changes.try_next().await? {
            let (change, object) = match change {
                WatchEvent::Added(object) => (Change::Add, object),
                WatchEvent::Modified(object) => (Change::Update, object),
                WatchEvent::Deleted(object) => (Change::Delete, object),
                WatchEvent::Bookmark(bookmark) => {
                    moved(&bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(error) => return Err(kube::Error::Api(error)),
            };
            let version = object.metadata.resource_version.clone();
            if let Some(event) = event::outgoing(self.source, self.plan, kind, change, &object) {
                event_sender::send(
                    event,
                    API_SERVER_ATTEMPTS_MAX,
                    |_, _| {},
                    async |event, request, timeout| self.poster.post(self.context, event, request, timeout).await,
                )
                .await;
            }
            if let Some(version) = version {
                moved(&version);
            }
        }
        Ok(())
    }
}

/// The version of what is there now. As upstream, a source tells of changes only.
async fn list_position(api: &Api<DynamicObject>, selector: &str) -> Result<String, kube::Error> {
    let parameters = ListParams::default().labels(selector).limit(1);
    let list = api.list_metadata(&parameters).await?;
    Ok(list.metadata.resource_version.unwrap_or_default())
}
