//! Field ownership (`metadata.managedFields`), and the merge of the fields of several owners into one object.

pub(super) mod field_location;
mod field_set;
mod field_writer;
mod initial_fields;
pub(super) mod last_applied;
pub(super) mod managed_fields;
pub(super) mod merge;

pub(super) use field_set::FieldSet;
pub(super) use field_writer::FieldWriter;
pub(super) use managed_fields::{FieldOwner, effective_managed_fields, track_update};

/// How the groups of Knative's kinds end, whose schemas differ from those of Kubernetes' own.
const KNATIVE: &str = "knative.dev";
