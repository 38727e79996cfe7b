//! Objects that are kept in one form and shown in others: older and newer versions of a kind, and events, which
//! are one kind under two groups.
//!
//! What comes in is turned into the kept form before it is judged, owned and stored; what goes out is turned
//! here. [`crate::kind::Translation`] has the two ways.

use std::sync::Arc;

use crate::kind::Entry;
use crate::store::{Event, Stored};

/// The object as this kind shows it.
pub(super) fn shown(entry: &Entry, object: &Arc<Stored>) -> Arc<Stored> {
    if entry.translation.is_none() {
        return Arc::clone(object);
    }
    let value = entry.show(object.value());
    Arc::new(Stored::new(object.key.clone(), object.resource_version, &value))
}

/// What happened, to the object as this kind shows it.
pub(super) fn happened(entry: &Entry, event: &Event) -> Event {
    if entry.translation.is_none() {
        return event.clone();
    }
    Event {
        before: event.before.as_ref().map(|before| shown(entry, before)),
        object: shown(entry, &event.object),
        deleted: event.deleted,
    }
}
