//! Spare instances, which avoid cold starts: annotations of a template, off by default.
//!
//! `sluicegate.dev/spare-instances: "2"` with `sluicegate.dev/spare-mode: warm` (more run than needed) or
//! `frozen` (the default: surplus instances are frozen instead of ended).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::shared::annotation;

pub const SPARE_INSTANCES: &str = "sluicegate.dev/spare-instances";
pub const SPARE_MODE: &str = "sluicegate.dev/spare-mode";
/// Spare instances of one Revision: each keeps its memory while no request needs it.
const SPARES_MAX: u32 = 100;

/// Their number, and whether they are frozen.
#[must_use]
pub fn spares(meta: &ObjectMeta) -> (u32, bool) {
    let count = annotation(meta, SPARE_INSTANCES).and_then(|text| text.parse().ok()).unwrap_or(0);
    (count.min(SPARES_MAX), annotation(meta, SPARE_MODE) != Some("warm"))
}

pub(super) fn validate(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    if let Some(text) = annotation(meta, SPARE_INSTANCES)
        && text.parse::<u32>().ok().is_none_or(|count| count > SPARES_MAX)
    {
        problems.add(format!("{at}[{SPARE_INSTANCES}]"), format!("expected 0 <= {text} <= {SPARES_MAX}"));
    }
    if let Some(mode) = annotation(meta, SPARE_MODE).filter(|mode| !["warm", "frozen"].contains(mode)) {
        problems.add(format!("{at}[{SPARE_MODE}]"), format!("invalid value: {mode}: expected warm or frozen"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(pairs: &[(&str, &str)]) -> ObjectMeta {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta { annotations: Some(pairs.collect()), ..ObjectMeta::default() }
    }

    #[test]
    fn spares_are_frozen_unless_they_are_to_be_warm_and_nothing_else_is_taken() {
        for (pairs, wanted, fields) in [
            (&[][..], (0, true), &[][..]),
            (&[(SPARE_INSTANCES, "2")], (2, true), &[]),
            (&[(SPARE_INSTANCES, "100"), (SPARE_MODE, "warm")], (100, false), &[]),
            (&[(SPARE_INSTANCES, "101")], (100, true), &[SPARE_INSTANCES]),
            (&[(SPARE_INSTANCES, "-1"), (SPARE_MODE, "cold")], (0, true), &[SPARE_INSTANCES, SPARE_MODE]),
        ] {
            let mut problems = FieldErrors::default();
            validate(&meta(pairs), "at", &mut problems);
            let named: Vec<_> = problems.list.iter().map(|p| p.field.clone()).collect();
            assert_eq!(named, fields.iter().map(|key| format!("at[{key}]")).collect::<Vec<_>>());
            assert_eq!(spares(&meta(pairs)), wanted);
        }
    }
}
