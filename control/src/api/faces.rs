//! Events are one kind of object under two groups: here they are turned to the one that is asked for.

use std::sync::Arc;

use crate::kind::KindMeta;
use crate::kinds::news::{self, NEWS};
use crate::store::{Change, Event, Stored};

/// Whether objects of this kind are kept as another's.
pub(super) fn is_turned(meta: &KindMeta) -> bool {
    meta.group == NEWS.group && meta.plural == NEWS.plural
}

/// The object as this kind shows it.
pub(super) fn shown(meta: &KindMeta, object: &Arc<Stored>) -> Arc<Stored> {
    if !is_turned(meta) {
        return Arc::clone(object);
    }
    let value = news::shown(&object.value);
    let json = value.to_string().into();
    Arc::new(Stored { key: object.key.clone(), resource_version: object.resource_version, value, json })
}

/// The change as the store takes it.
pub(super) fn kept(meta: &KindMeta, change: Change) -> Change {
    match change {
        Change::Put(key, value) if is_turned(meta) => Change::Put(key, news::kept(&value)),
        Change::Delete(key, value) if is_turned(meta) => Change::Delete(key, news::kept(&value)),
        other => other,
    }
}

/// What happened, to the object as this kind shows it.
pub(super) fn happened(meta: &KindMeta, event: &Arc<Event>) -> Arc<Event> {
    if !is_turned(meta) {
        return Arc::clone(event);
    }
    Arc::new(Event {
        revision: event.revision,
        before: event.before.as_ref().map(|before| shown(meta, before)),
        object: shown(meta, &event.object),
        deleted: event.deleted,
    })
}
