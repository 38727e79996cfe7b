//! Objects that are kept in one form and shown in others: older and newer versions of a kind, and events, which
//! are one kind under two groups.
//!
//! What comes in is turned into the kept form before it is judged, owned and stored; what goes out is turned
//! here. [`crate::kind::Translation`] has the two ways.

use std::sync::Arc;

use crate::store::{ChangeEvent, StoredObject};
use types::kind_registry::KindEntry;

/// The object as this kind shows it.
pub(super) fn convert_object(entry: &KindEntry, object: &Arc<StoredObject>) -> Arc<StoredObject> {
    if entry.translation.is_none() {
        return Arc::clone(object);
    }
    let value = entry.from_stored(object.value());
    Arc::new(StoredObject::new(object.key.clone(), object.resource_version, &value))
}

/// What happened, to the object as this kind shows it.
pub(super) fn convert_event(entry: &KindEntry, event: &ChangeEvent) -> ChangeEvent {
    if entry.translation.is_none() {
        return event.clone();
    }
    ChangeEvent {
        before: event.before.as_ref().map(|before| convert_object(entry, before)),
        object: convert_object(entry, &event.object),
        deleted: event.deleted,
    }
}
