//! Compiles a Trigger's filters for the cores.

use std::collections::BTreeMap;

use contract::filter::cesql;
use contract::table::{AttributeMatches, EventFilter, FilterRule, FilterVerdict};

use types::eventing::filters::{FilterDialect, SubscriptionsApiFilter};
use types::eventing::trigger::TriggerSpec;

/// X-FLT-01: `filters` alone if there are any, or else `filter`. AMB-44: neither is every event.
#[must_use]
pub fn filter(spec: &TriggerSpec) -> EventFilter {
    if !spec.filters.is_empty() {
        return compiled(&spec.filters);
    }
    match spec.filter.as_ref().map(|filter| &filter.attributes) {
        Some(attributes) if !attributes.is_empty() => EventFilter::Exact(pairs(attributes)),
        _ => EventFilter::Everything,
    }
}

/// Filters that must all let an event pass; none lets all of them.
#[must_use]
pub fn compiled(filters: &[SubscriptionsApiFilter]) -> EventFilter {
    if filters.is_empty() { EventFilter::Everything } else { EventFilter::Rules(rules(filters).into()) }
}

fn rules(filters: &[SubscriptionsApiFilter]) -> Vec<FilterRule> {
    filters.iter().filter_map(rule).collect()
}

/// `None` for a filter that is skipped (X-FLT-10).
fn rule(filter: &SubscriptionsApiFilter) -> Option<FilterRule> {
    let Some(dialect) = filter.dialects().next() else {
        // X-FLT-09: an expression that is there and empty has a verdict of its own.
        return filter.cesql.as_ref().map(|_| FilterRule::Always(FilterVerdict::NoFilter));
    };
    Some(match dialect {
        FilterDialect::Exact(attributes) => FilterRule::Exact(exact_attributes(attributes)?),
        FilterDialect::Prefix(attributes) => FilterRule::Prefix(exact_attributes(attributes)?),
        FilterDialect::Suffix(attributes) => FilterRule::Suffix(exact_attributes(attributes)?),
        FilterDialect::All(filters) => FilterRule::All(rules(filters)),
        FilterDialect::Any(filters) => FilterRule::Any(rules(filters)),
        FilterDialect::Not(filter) => match rule(filter) {
            Some(rule) => FilterRule::Not(Box::new(rule)),
            None => FilterRule::Always(FilterVerdict::NoFilter),
        },
        // What was admitted parses. A cluster may hold what we did not admit: it gets nothing, rather than
        // what its author did not want.
        FilterDialect::Sql(text) => cesql::parse(text).map_or(FilterRule::Always(FilterVerdict::Fail), FilterRule::Sql),
    })
}

fn exact_attributes(attributes: &BTreeMap<String, String>) -> Option<AttributeMatches> {
    let is_whole = attributes.iter().all(|(name, value)| !name.is_empty() && !value.is_empty());
    is_whole.then(|| pairs(attributes))
}

fn pairs(attributes: &BTreeMap<String, String>) -> AttributeMatches {
    attributes.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> EventFilter {
        filter(&serde_json::from_value(spec).unwrap())
    }

    fn one(name: &str, value: &str) -> AttributeMatches {
        vec![(name.into(), value.into())]
    }

    fn sql(text: &str) -> FilterRule {
        FilterRule::Sql(cesql::parse(text).unwrap())
    }

    /// X-FLT-01, AMB-44.
    #[test]
    fn filters_take_the_place_of_filter() {
        let attributes = json!({"attributes": {"type": "a"}});
        assert_eq!(of(json!({})), EventFilter::Everything);
        assert_eq!(of(json!({"filter": {}, "filters": []})), EventFilter::Everything);
        assert_eq!(of(json!({"filter": attributes})), EventFilter::Exact(one("type", "a")));
        assert_eq!(of(json!({"filter": attributes, "filters": []})), EventFilter::Exact(one("type", "a")));
        assert_eq!(
            of(json!({"filter": attributes, "filters": [{"exact": {"type": "b"}}]})),
            EventFilter::Rules(vec![FilterRule::Exact(one("type", "b"))].into())
        );
    }

    /// X-FLT-04 to X-FLT-10: each dialect, and what is skipped.
    #[test]
    fn every_dialect_is_compiled_and_empty_filters_are_skipped() {
        for (filter, rules) in [
            (json!({"exact": {"type": "a"}}), vec![FilterRule::Exact(one("type", "a"))]),
            (json!({"prefix": {"type": "a"}}), vec![FilterRule::Prefix(one("type", "a"))]),
            (json!({"suffix": {"type": "a"}}), vec![FilterRule::Suffix(one("type", "a"))]),
            (json!({"cesql": "EXISTS a"}), vec![sql("EXISTS a")]),
            (json!({"cesql": ""}), vec![FilterRule::Always(FilterVerdict::NoFilter)]),
            (json!({"cesql": "("}), vec![FilterRule::Always(FilterVerdict::Fail)]),
            (json!({}), vec![]),
            (json!({"exact": {"type": "a", "source": ""}}), vec![]),
            (json!({"not": {}}), vec![FilterRule::Always(FilterVerdict::NoFilter)]),
            (json!({"not": {"cesql": "TRUE"}}), vec![FilterRule::Not(Box::new(sql("TRUE")))]),
            (
                json!({"any": [{}, {"all": [{"suffix": {"id": "1"}}, {"prefix": {"id": ""}}]}]}),
                vec![FilterRule::Any(vec![FilterRule::All(vec![FilterRule::Suffix(one("id", "1"))])])],
            ),
        ] {
            assert_eq!(of(json!({"filters": [filter]})), EventFilter::Rules(rules.into()), "{filter}");
        }
    }
}
