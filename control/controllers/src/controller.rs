//! The controller interface: the kinds that a controller watches, and the reconciliation of one object.
//!
//! No controller depends on another. One whose objects depend on another kind watches that kind, and enqueues its own objects.
//! Code that several controllers share is in modules below all of them, or in [`ControllerContext`].

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

/// One reconcile. Boxed, because controllers of different types are in one list.
pub type ControllerFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
/// A restore. It cannot fail: an object that cannot be restored must not keep the others down.
pub type RestoreFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

pub trait Controller {
    /// Under which its objects are queued.
    fn kind(&self) -> ControllerKind;

    /// Registers what its objects depend on.
    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>);

    /// Restores what the last statuses say, so that traffic flows before the first reconcile.
    fn restore<'a>(&'a self, _context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async {})
    }

    /// Brings the system to the state that one object specifies, and reports in its status. Level-triggered: it starts
    /// from the current state, so any event may be missed as long as a later one comes.
    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a>;
}

/// The watches of the controllers.
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

    /// The same, by the namespace and the name of the object that has changed.
    pub(crate) fn enqueue_by_name<K: CachedKind>(&mut self, concerned: impl Fn(&str, &str) -> Vec<WorkItem> + 'a) {
        self.enqueue::<K, _>(move |change| {
            let meta = newest(change).map(|object| object.meta());
            meta.map(|meta| concerned(namespace(meta), name(meta))).unwrap_or_default()
        });
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

    /// Shared state that objects of the controller depend on: those that a change concerns.
    pub(crate) fn enqueue_on(&mut self, change: ContextChange, concerned: impl Fn() -> Vec<WorkItem> + 'a) {
        let context = self.context;
        self.on(change, move || concerned().into_iter().for_each(|item| context.enqueue(item)));
    }

    /// The same, for a handler that does more than to enqueue.
    pub(crate) fn on(&mut self, change: ContextChange, handler: impl Fn() + 'a) {
        self.context_handlers.push((change, Box::new(handler)));
    }

    /// A task that runs concurrently with the reconciles, forever.
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

/// The traits that a cache needs of a kind.
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

/// The object before the change, if it was deleted, or if another object has its name now.
pub(crate) fn removed<'a, K: Resource>((before, after): ObjectChange<'a, K>) -> Option<&'a Arc<K>> {
    before.filter(|before| after.is_none_or(|after| after.meta().uid != before.meta().uid))
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

#[cfg(test)]
mod tests {
    use super::*;
    use types::eventing::broker::{Broker, BrokerSpec};

    #[test]
    fn object_is_removed_when_no_object_has_its_uid() {
        let broker = |uid: &str| {
            let mut broker = Broker::new("ns", "b", BrokerSpec::default());
            broker.metadata.uid = Some(uid.to_owned());
            Arc::new(broker)
        };
        let (old, changed, other) = (broker("1"), broker("1"), broker("2"));
        assert!(removed((None, Some(&old))).is_none());
        assert!(removed((Some(&old), Some(&changed))).is_none());
        for after in [None, Some(&other)] {
            assert!(removed((Some(&old), after)).is_some_and(|gone| Arc::ptr_eq(gone, &old)));
        }
    }
}
