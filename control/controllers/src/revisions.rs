//! Resource versions by kind, as replicas compare them.

use std::collections::BTreeMap;

/// By kind, as the caches name it.
pub(crate) type Revisions = BTreeMap<&'static str, u64>;
