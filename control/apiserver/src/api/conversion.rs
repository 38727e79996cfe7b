//! Converts objects between their stored version and their served versions: older and newer versions of a kind, and events,
//! which are one kind in two groups.
//!
//! Requests are converted to the stored version before validation, field ownership and storage; responses are converted
//! here. [`crate::kind::Translation`] has both directions.

use std::sync::Arc;

use crate::store::{ChangeEvent, StoredObject};
use types::kind_registry::KindEntry;

/// The object in this kind's version.
pub(super) fn convert_object(entry: &KindEntry, object: &Arc<StoredObject>) -> Arc<StoredObject> {
    if entry.translation.is_none() {
        return Arc::clone(object);
    }
    let value = entry.from_stored(object.value());
    Arc::new(StoredObject::new(object.key.clone(), object.resource_version, &value))
}

/// The change, with the object in this kind's version.
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
