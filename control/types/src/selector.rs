//! Label selectors in objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelectorRequirement, ObjectMeta};

use super::shared::label;
use crate::field_errors::{FieldErrors, MISSING};

/// Whether the object has these labels, and satisfies these expressions; nothing asked is satisfied by all.
#[must_use]
pub fn matches(labels: &BTreeMap<String, String>, expressions: &[LabelSelectorRequirement], meta: &ObjectMeta) -> bool {
    let holds = |part: &LabelSelectorRequirement| {
        let found = label(meta, &part.key);
        let among = || part.values.iter().flatten().any(|value| Some(value.as_str()) == found);
        match part.operator.as_str() {
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            "In" => among(),
            "NotIn" => !among(),
            _ => false, // validation rejects all others
        }
    };
    labels.iter().all(|(key, value)| label(meta, key) == Some(value.as_str())) && expressions.iter().all(holds)
}

/// Expressions of one selector: each is held against every object of a namespace.
const EXPRESSIONS_MAX: usize = 256;

/// Validates the expressions.
pub fn validate(expressions: &[LabelSelectorRequirement], at: &str, problems: &mut FieldErrors) {
    if expressions.len() > EXPRESSIONS_MAX {
        let why = format!("Too many: {}: must have at most {EXPRESSIONS_MAX} items", expressions.len());
        return problems.add(format!("{at}.matchExpressions"), why);
    }
    for (index, part) in expressions.iter().enumerate() {
        let at = format!("{at}.matchExpressions[{index}]");
        let (takes_values, is_known) = match part.operator.as_str() {
            "In" | "NotIn" => (true, true),
            "Exists" | "DoesNotExist" => (false, true),
            _ => (false, false),
        };
        if !is_known {
            problems.add(format!("{at}.operator"), format!("invalid value: {}", part.operator));
        } else if part.values.as_ref().is_some_and(|values| !values.is_empty()) != takes_values {
            problems.add(format!("{at}.values"), format!("invalid value for {}", part.operator));
        }
        if part.key.is_empty() {
            problems.add(format!("{at}.key"), MISSING);
        }
    }
}
