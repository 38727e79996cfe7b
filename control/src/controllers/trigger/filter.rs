//! What a Trigger says of the events it wants, compiled for the cores.

use std::collections::BTreeMap;

use dataplane::events::filter::cesql;
use dataplane::table::{Attributes, Filter, Rule, Verdict};

use crate::kinds::eventing::filters::{Dialect, SubscriptionsApiFilter};
use crate::kinds::eventing::trigger::TriggerSpec;

/// X-FLT-01: `filters` alone if there are any, or else `filter`. AMB-44: neither is every event.
#[must_use]
pub fn filter(spec: &TriggerSpec) -> Filter {
    if !spec.filters.is_empty() {
        return compiled(&spec.filters);
    }
    match spec.filter.as_ref().map(|filter| &filter.attributes) {
        Some(attributes) if !attributes.is_empty() => Filter::Exact(pairs(attributes)),
        _ => Filter::Everything,
    }
}

/// Filters that must all let an event pass; none lets all of them.
#[must_use]
pub fn compiled(filters: &[SubscriptionsApiFilter]) -> Filter {
    if filters.is_empty() { Filter::Everything } else { Filter::Rules(rules(filters).into()) }
}

fn rules(filters: &[SubscriptionsApiFilter]) -> Vec<Rule> {
    filters.iter().filter_map(rule).collect()
}

/// `None` for a filter that is skipped (X-FLT-10).
fn rule(filter: &SubscriptionsApiFilter) -> Option<Rule> {
    let Some(dialect) = filter.dialects().next() else {
        // X-FLT-09: an expression that is there and empty has a verdict of its own.
        return filter.cesql.as_ref().map(|_| Rule::Always(Verdict::NoFilter));
    };
    Some(match dialect {
        Dialect::Exact(attributes) => Rule::Exact(whole(attributes)?),
        Dialect::Prefix(attributes) => Rule::Prefix(whole(attributes)?),
        Dialect::Suffix(attributes) => Rule::Suffix(whole(attributes)?),
        Dialect::All(filters) => Rule::All(rules(filters)),
        Dialect::Any(filters) => Rule::Any(rules(filters)),
        Dialect::Not(filter) => match rule(filter) {
            Some(rule) => Rule::Not(Box::new(rule)),
            None => Rule::Always(Verdict::NoFilter),
        },
        // What was admitted parses. A cluster may hold what we did not admit: it gets nothing, rather than
        // what its author did not want.
        Dialect::Sql(text) => cesql::parse(text).map_or(Rule::Always(Verdict::Fail), Rule::Sql),
    })
}

fn whole(attributes: &BTreeMap<String, String>) -> Option<Attributes> {
    let is_whole = attributes.iter().all(|(name, value)| !name.is_empty() && !value.is_empty());
    is_whole.then(|| pairs(attributes))
}

fn pairs(attributes: &BTreeMap<String, String>) -> Attributes {
    attributes.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> Filter {
        filter(&serde_json::from_value(spec).unwrap())
    }

    fn one(name: &str, value: &str) -> Attributes {
        vec![(name.into(), value.into())]
    }

    fn sql(text: &str) -> Rule {
        Rule::Sql(cesql::parse(text).unwrap())
    }

    /// X-FLT-01, AMB-44.
    #[test]
    fn filters_take_the_place_of_filter() {
        let attributes = json!({"attributes": {"type": "a"}});
        assert_eq!(of(json!({})), Filter::Everything);
        assert_eq!(of(json!({"filter": {}, "filters": []})), Filter::Everything);
        assert_eq!(of(json!({"filter": attributes})), Filter::Exact(one("type", "a")));
        assert_eq!(of(json!({"filter": attributes, "filters": []})), Filter::Exact(one("type", "a")));
        assert_eq!(
            of(json!({"filter": attributes, "filters": [{"exact": {"type": "b"}}]})),
            Filter::Rules(vec![Rule::Exact(one("type", "b"))].into())
        );
    }

    /// X-FLT-04 to X-FLT-10: each dialect, and what is skipped.
    #[test]
    fn every_dialect_is_compiled_and_empty_filters_are_skipped() {
        for (filter, rules) in [
            (json!({"exact": {"type": "a"}}), vec![Rule::Exact(one("type", "a"))]),
            (json!({"prefix": {"type": "a"}}), vec![Rule::Prefix(one("type", "a"))]),
            (json!({"suffix": {"type": "a"}}), vec![Rule::Suffix(one("type", "a"))]),
            (json!({"cesql": "EXISTS a"}), vec![sql("EXISTS a")]),
            (json!({"cesql": ""}), vec![Rule::Always(Verdict::NoFilter)]),
            (json!({"cesql": "("}), vec![Rule::Always(Verdict::Fail)]),
            (json!({}), vec![]),
            (json!({"exact": {"type": "a", "source": ""}}), vec![]),
            (json!({"not": {}}), vec![Rule::Always(Verdict::NoFilter)]),
            (json!({"not": {"cesql": "TRUE"}}), vec![Rule::Not(Box::new(sql("TRUE")))]),
            (
                json!({"any": [{}, {"all": [{"suffix": {"id": "1"}}, {"prefix": {"id": ""}}]}]}),
                vec![Rule::Any(vec![Rule::All(vec![Rule::Suffix(one("id", "1"))])])],
            ),
        ] {
            assert_eq!(of(json!({"filters": [filter]})), Filter::Rules(rules.into()), "{filter}");
        }
    }
}
