//! Why a policy cannot be used.

use crate::gateway::conditions::ConditionRefusal;

/// The reason of a value that cannot be used, and of a reference to such a value.
pub(super) const INVALID: &str = "Invalid";

/// A field has a value that cannot be used.
pub(super) fn invalid(field: &str, why: &str) -> ConditionRefusal {
    ConditionRefusal::new(INVALID, format!("spec.{field}: {}.", why.trim_end_matches('.')))
}
