//! `spec.filters`: filters, each in one dialect, which can be nested.

use std::collections::BTreeMap;

use contract::filter::cesql;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::field_errors::FieldErrors;
use support::names::is_attribute;

/// Deepest nesting of `all`, `any` and `not`: each level is a frame of the stack for every event.
pub const FILTER_DEPTH_MAX: usize = 32;

/// A filter. A dialect counts as set when it is not empty, as upstream's clients leave out what is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SubscriptionsApiFilter {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exact: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prefix: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub suffix: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub all: Vec<SubscriptionsApiFilter>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub any: Vec<SubscriptionsApiFilter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not: Option<Box<SubscriptionsApiFilter>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cesql: Option<String>,
}

/// The one dialect of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterDialect<'f> {
    Exact(&'f BTreeMap<String, String>),
    Prefix(&'f BTreeMap<String, String>),
    Suffix(&'f BTreeMap<String, String>),
    All(&'f [SubscriptionsApiFilter]),
    Any(&'f [SubscriptionsApiFilter]),
    Not(&'f SubscriptionsApiFilter),
    Sql(&'f str),
}

impl SubscriptionsApiFilter {
    /// The set dialects, in the order of the fields.
    pub fn dialects(&self) -> impl Iterator<Item = FilterDialect<'_>> {
        let map = |map| Some(map).filter(|map: &&BTreeMap<_, _>| !map.is_empty());
        let list = |list| Some(list).filter(|list: &&[Self]| !list.is_empty());
        [
            map(&self.exact).map(FilterDialect::Exact),
            map(&self.prefix).map(FilterDialect::Prefix),
            map(&self.suffix).map(FilterDialect::Suffix),
            list(&self.all).map(FilterDialect::All),
            list(&self.any).map(FilterDialect::Any),
            self.not.as_deref().map(FilterDialect::Not),
            self.cesql.as_deref().filter(|text| !text.is_empty()).map(FilterDialect::Sql),
        ]
        .into_iter()
        .flatten()
    }
}

/// X-FLT-11: one dialect each, names that attributes have, expressions that parse; likewise inside.
pub fn validate(filters: &[SubscriptionsApiFilter], at: &str, problems: &mut FieldErrors) {
    each(filters, at, FILTER_DEPTH_MAX, problems);
}

fn each(filters: &[SubscriptionsApiFilter], at: &str, levels: usize, problems: &mut FieldErrors) {
    for (index, filter) in filters.iter().enumerate() {
        one(filter, &format!("{at}[{index}]"), levels, problems);
    }
}

fn one(filter: &SubscriptionsApiFilter, at: &str, levels: usize, problems: &mut FieldErrors) {
    let Some(levels) = levels.checked_sub(1) else {
        problems.add(at, format!("filters are nested more than {FILTER_DEPTH_MAX} levels deep"));
        return;
    };
    if filter.dialects().count() > 1 {
        problems.add(at, "multiple dialects found, filters can have only one dialect set");
    }
    for dialect in filter.dialects() {
        match dialect {
            FilterDialect::Exact(map) => names(map, &format!("{at}.exact"), problems),
            FilterDialect::Prefix(map) => names(map, &format!("{at}.prefix"), problems),
            FilterDialect::Suffix(map) => names(map, &format!("{at}.suffix"), problems),
            FilterDialect::All(filters) => each(filters, &format!("{at}.all"), levels, problems),
            FilterDialect::Any(filters) => each(filters, &format!("{at}.any"), levels, problems),
            FilterDialect::Not(filter) => one(filter, &format!("{at}.not"), levels, problems),
            FilterDialect::Sql(text) => {
                if let Err(why) = cesql::parse(text) {
                    problems.add(format!("{at}.cesql"), format!("invalid value: {why}"));
                }
            }
        }
    }
}

/// X-FLT-10: a filter with an empty value is skipped when events come, so its author would get every event. What was
/// stored before is left alone.
pub fn refuse_empty(
    filters: &[SubscriptionsApiFilter],
    before: Option<&[SubscriptionsApiFilter]>,
    at: &str,
    problems: &mut FieldErrors,
) {
    if before != Some(filters) {
        empty_in(filters, at, FILTER_DEPTH_MAX, problems);
    }
}

fn empty_in(filters: &[SubscriptionsApiFilter], at: &str, levels: usize, problems: &mut FieldErrors) {
    let Some(levels) = levels.checked_sub(1) else { return };
    for (index, filter) in filters.iter().enumerate() {
        empty(filter, &format!("{at}[{index}]"), levels, problems);
    }
}

fn empty(filter: &SubscriptionsApiFilter, at: &str, levels: usize, problems: &mut FieldErrors) {
    for (dialect, attributes) in [("exact", &filter.exact), ("prefix", &filter.prefix), ("suffix", &filter.suffix)] {
        for (name, _) in attributes.iter().filter(|(_, value)| value.is_empty()) {
            let why = format!("invalid arguments, attribute and value can't be empty: {name}");
            problems.add(format!("{at}.{dialect}"), why);
        }
    }
    if filter.cesql.as_deref() == Some("") {
        problems.add(format!("{at}.cesql"), "invalid value: the expression can't be empty");
    }
    empty_in(&filter.all, &format!("{at}.all"), levels, problems);
    empty_in(&filter.any, &format!("{at}.any"), levels, problems);
    if let (Some(inner), Some(levels)) = (&filter.not, levels.checked_sub(1)) {
        empty(inner, &format!("{at}.not"), levels, problems);
    }
}

/// Calls of functions that do not exist. Events that reach one are withheld, as the language specifies it,
/// so the filter is valid, but surely not intended.
#[must_use]
pub fn missing_functions(filters: &[SubscriptionsApiFilter]) -> Vec<String> {
    let mut missing = Vec::new();
    find_missing(filters, FILTER_DEPTH_MAX, &mut missing);
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn find_missing(filters: &[SubscriptionsApiFilter], levels: usize, missing: &mut Vec<String>) {
    let Some(levels) = levels.checked_sub(1) else { return };
    for dialect in filters.iter().flat_map(SubscriptionsApiFilter::dialects) {
        match dialect {
            FilterDialect::Exact(_) | FilterDialect::Prefix(_) | FilterDialect::Suffix(_) => {}
            FilterDialect::All(inner) | FilterDialect::Any(inner) => find_missing(inner, levels, missing),
            FilterDialect::Not(inner) => find_missing(std::slice::from_ref(inner), levels, missing),
            FilterDialect::Sql(text) => {
                if let Ok(expression) = cesql::parse(text) {
                    missing.extend(expression.missing_functions());
                }
            }
        }
    }
}

/// The warnings about a Trigger (as JSON) when it is written.
#[must_use]
pub fn warnings(trigger: &Value) -> Vec<String> {
    // Filters of another shape are refused elsewhere.
    let filters: Vec<SubscriptionsApiFilter> =
        serde_json::from_value(trigger["spec"]["filters"].clone()).unwrap_or_default();
    let warning = |call| format!("spec.filters: CESQL has no function {call}: an event that reaches it does not pass");
    missing_functions(&filters).into_iter().map(warning).collect()
}

pub fn names(attributes: &BTreeMap<String, String>, at: &str, problems: &mut FieldErrors) {
    for name in attributes.keys().filter(|name| !is_attribute(name)) {
        problems.add(at, format!("Invalid attribute name: \"{name}\": must match ^[a-z][a-z0-9]*$"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(filters: Value) -> Vec<(String, String)> {
        let filters: Vec<SubscriptionsApiFilter> = serde_json::from_value(filters).unwrap();
        let mut problems = FieldErrors::default();
        validate(&filters, "spec.filters", &mut problems);
        problems.list.into_iter().map(|problem| (problem.field, problem.message)).collect()
    }

    /// X-FLT-11: what is wrong is named where it stands, however deep.
    #[test]
    fn each_refusal_names_its_place() {
        for (filter, field, message) in [
            (json!({"exact": {"type": "a"}, "prefix": {"type": "a"}}), "[0]", "only one dialect"),
            (json!({"cesql": "TRUE", "not": {}}), "[0]", "only one dialect"),
            (json!({"exact": {"Type": "a"}}), "[0].exact", "\"Type\""),
            (json!({"prefix": {"1a": "a"}}), "[0].prefix", "\"1a\""),
            (json!({"suffix": {"": "a"}}), "[0].suffix", "\"\""),
            (json!({"cesql": "type ="}), "[0].cesql", "at character 7"),
            (json!({"cesql": " "}), "[0].cesql", "at character 2"),
            (json!({"all": [{}, {"exact": {"a_b": "a"}}]}), "[0].all[1].exact", "\"a_b\""),
            (json!({"any": [{"not": {"cesql": "("}}]}), "[0].any[0].not.cesql", "at character 2"),
        ] {
            let found = problems(json!([filter]));
            assert_eq!(found.len(), 1, "{filter}: {found:?}");
            assert_eq!(found[0].0, format!("spec.filters{field}"));
            assert!(found[0].1.contains(message), "{found:?}");
        }
    }

    /// X-FLT-10, X-FLT-11: none is one too few, and no reason to refuse.
    #[test]
    fn what_has_one_dialect_or_none_is_taken() {
        let filters = json!([
            {}, {"cesql": ""}, {"exact": {}, "prefix": {"type": "a"}}, {"exact": {"type": ""}},
            {"any": [{"suffix": {"type": "a", "source": "b"}}, {"cesql": "EXISTS a"}]}, {"not": {}},
        ]);
        assert_eq!(problems(filters), []);
    }

    /// X-FLT-10: an empty value is refused wherever it stands, unless it was there before.
    #[test]
    fn empty_value_of_a_filter_is_refused() {
        let found = |filters: &Value, before: Option<&Value>| {
            let read =
                |filters: &Value| -> Vec<SubscriptionsApiFilter> { serde_json::from_value(filters.clone()).unwrap() };
            let mut problems = FieldErrors::default();
            let before = before.map(read);
            refuse_empty(&read(filters), before.as_deref(), "spec.filters", &mut problems);
            problems.list.into_iter().map(|problem| problem.field).collect::<Vec<_>>()
        };
        for (filter, field) in [
            (json!({"exact": {"type": ""}}), "[0].exact"),
            (json!({"prefix": {"type": "a", "source": ""}}), "[0].prefix"),
            (json!({"any": [{}, {"suffix": {"type": ""}}]}), "[0].any[1].suffix"),
            (json!({"not": {"all": [{"cesql": ""}]}}), "[0].not.all[0].cesql"),
        ] {
            let filters = json!([filter]);
            assert_eq!(found(&filters, None), [format!("spec.filters{field}")]);
            assert!(found(&filters, Some(&filters)).is_empty());
        }
        assert!(found(&json!([{}, {"exact": {}}, {"exact": {"type": "a"}}, {"cesql": "TRUE"}]), None).is_empty());
    }

    /// X-SQL-06: such a call is admitted with a warning.
    #[test]
    fn unknown_function_is_reported_at_any_depth() {
        let filters = json!([
            { "any": [{ "not": { "cesql": "LENGHT(type) = 1 OR lenght(id) > LEFT(1)" } }, { "exact": { "a": "b" } }] },
            { "cesql": "LENGTH(type) > 1" }, { "all": [{ "cesql": "NOT (1 IN (2, NOW()))" }] },
        ]);
        let warning = warnings(&json!({ "spec": { "filters": filters } }));
        let names = ["LEFT with 1 argument:", "LENGHT with 1", "NOW with 0 arguments", "lenght with 1"];
        assert_eq!(warning.len(), names.len(), "{warning:?}");
        assert!(warning.iter().zip(names).all(|(one, name)| one.contains(name)), "{warning:?}");
        assert!(warnings(&json!({ "spec": { "filters": 7 } })).is_empty());
        assert_eq!(problems(filters), []);
    }

    #[test]
    fn filters_in_filters_have_a_bottom() {
        let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "not": inner }));
        assert_eq!(problems(json!([nested(FILTER_DEPTH_MAX)])), []);
        assert!(problems(json!([nested(FILTER_DEPTH_MAX + 1)]))[0].1.contains("nested"));
    }
}
