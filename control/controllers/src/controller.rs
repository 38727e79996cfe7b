//! What a controller is: the kinds that it watches, and what it makes of one object.
//!
//! No controller knows another. One whose objects depend on another kind watches that kind, and enqueues its own objects.
//! What several controllers share lies in modules below all of them, or in [`ControllerContext`].

use std::pin::Pin;
use std::sync::Arc;

use kube::Resource;

use crate::api::Error;
pub(crate) use crate::caches::ControllerTask;
use crate::caches::{CachedKind, Handlers};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::informer_cache::{InformerCache, ObjectChange, ObjectSource, follow};
use crate::work_queue::{ControllerKind, WorkItem};
use types::shared::{name, namespace};

/// What a controller does, in a box: controllers of many types stand in one list.
pub type ControllerFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

pub trait Controller {
    /// Under which its objects are queued.
    fn kind(&self) -> ControllerKind;

    /// Registers what its objects depend on.
    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>);

    /// Restores what the last statuses say, so that traffic flows before the first reconcile.
    fn restore<'a>(&'a self, _context: &'a ControllerContext) -> ControllerFuture<'a> {
        Box::pin(async { Ok(()) })
    }

    /// Brings the system to the state that one object specifies, and reports in its status. Level-triggered: it starts
    /// from the current state, so any event may be missed as long as a later one comes.
    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a>;
}

/// What the controllers are told of.
pub struct Watches<'a> {
    context: &'a ControllerContext,
    pub(crate) handlers: Handlers<'a>,
    /// Each enqueues all objects of a controller.
    resyncs: Vec<Box<dyn Fn() + 'a>>,
    context_handlers: Vec<(ContextChange, Box<dyn Fn() + 'a>)>,
    pub(crate) tasks: Vec<ControllerTask<'a>>,
}

impl<'a> Watches<'a> {
    pub(crate) fn new(context: &'a ControllerContext) -> Self {
        Self {
            context,
            handlers: Handlers::default(),
            resyncs: Vec::new(),
            context_handlers: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// The kind whose objects the controller reconciles: each when it changes, and all when the settings change.
    pub(crate) fn primary<K: CachedKind>(&mut self, kind: ControllerKind) {
        self.enqueue::<K, _>(move |change| [item_of(kind, change)]);
        self.resync(kind, K::cache(&self.context.caches));
    }

    /// A kind that objects of the controller depend on: those that a change concerns.
    pub(crate) fn enqueue<K: CachedKind, I: IntoIterator<Item = WorkItem>>(
        &mut self,
        concerned: impl Fn(ObjectChange<'_, K>) -> I + 'a,
    ) {
        let context = self.context;
        self.call::<K>(move |change| concerned(change).into_iter().for_each(|item| context.enqueue(item)));
    }

    /// The same, for a handler that does more than to enqueue.
    pub(crate) fn call<K: CachedKind>(&mut self, handler: impl Fn(ObjectChange<'_, K>) + 'a) {
        K::handlers(&mut self.handlers).push(Box::new(handler));
    }

    /// A kind whose cache is the controller's own.
    pub(crate) fn own<K: CachedSource>(
        &mut self,
        source: ObjectSource<K>,
        cache: &'a InformerCache<K>,
        handler: impl Fn(ObjectChange<'_, K>) + 'a,
    ) {
        self.task(follow(source, cache, handler));
    }

    /// The kind whose objects the controller reconciles, in a cache of its own.
    pub(crate) fn own_primary<K: CachedSource>(&mut self, kind: ControllerKind, cache: &'a InformerCache<K>) {
        let context = self.context;
        self.own(context.source(), cache, move |change| context.enqueue(item_of(kind, change)));
        self.resync(kind, cache);
    }

    /// All objects in `cache` are reconciled when the settings change.
    pub(crate) fn resync<K: Resource>(&mut self, kind: ControllerKind, cache: &'a InformerCache<K>) {
        let context = self.context;
        self.resyncs.push(Box::new(move || {
            cache.keys().iter().for_each(|(namespace, name)| context.enqueue(WorkItem::new(kind, namespace, name)));
        }));
    }

    /// Shared state that objects of the controller depend on.
    pub(crate) fn on(&mut self, change: ContextChange, handler: impl Fn() + 'a) {
        self.context_handlers.push((change, Box::new(handler)));
    }

    /// What runs beside the reconciles, for ever.
    pub(crate) fn task(&mut self, task: impl Future<Output = ()> + 'a) {
        self.tasks.push(Box::pin(task));
    }

    /// Splits what is registered: handlers by kind, tasks, and the task that handles changes of shared state.
    pub(crate) fn into_tasks(self) -> (Handlers<'a>, Vec<ControllerTask<'a>>) {
        let Self { context, handlers, resyncs, context_handlers, mut tasks } = self;
        tasks.push(Box::pin(async move {
            loop {
                for change in context.changes.take().await {
                    let own = context_handlers.iter().filter(|(on, _)| *on == change);
                    own.for_each(|(_, handler)| handler());
                    if change == ContextChange::Settings {
                        resyncs.iter().for_each(|resync| resync());
                    }
                }
            }
        }));
        (handlers, tasks)
    }
}

/// What a cache needs of a kind.
pub(crate) trait CachedSource:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

impl<K> CachedSource for K where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

/// The object after the change, or before it if it is gone.
pub(crate) fn newest<'a, K>((before, after): ObjectChange<'a, K>) -> Option<&'a Arc<K>> {
    after.or(before)
}

/// The object that has changed.
pub(crate) fn item_of<K: Resource>(kind: ControllerKind, change: ObjectChange<'_, K>) -> WorkItem {
    let meta = newest(change).map(|object| object.meta());
    WorkItem::new(kind, meta.map(namespace).unwrap_or_default(), meta.map(name).unwrap_or_default())
}

/// All objects in `cache`, in one namespace or in all.
pub(crate) fn items_in<K: Resource>(
    kind: ControllerKind,
    cache: &InformerCache<K>,
    home: Option<&str>,
) -> Vec<WorkItem> {
    let keys = cache.keys().into_iter().filter(|(namespace, _)| home.is_none_or(|home| home == namespace));
    keys.map(|(namespace, name)| WorkItem::new(kind, &namespace, &name)).collect()
}
