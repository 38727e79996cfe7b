//! Whether a subscriber's filter matches an event. Attributes only, never the payload (EV-RTE-16).

pub mod cesql;
mod rule;
pub mod steps;

use codec::record::EventRecord;

use self::steps::Steps;
pub use rule::{AttributeMatches, EventFilter, FilterRule, FilterVerdict};

/// Attributes that X-FLT-12 counts as always present are empty strings when unset, and no rule is satisfied
/// by an empty value (X-FLT-10): so for rules absent and empty are the same.
///
/// A filter that uses up its `steps` does not match, whatever the rest of it would return: an error in an
/// expression is the Boolean `false` (X-FLT-09), and a `not` around it must not turn that into a delivery.
#[inline]
#[must_use]
pub fn matches(filter: &EventFilter, record: &EventRecord, steps: &Steps) -> bool {
    let is_wanted = match filter {
        EventFilter::Everything => true,
        EventFilter::Exact(pairs) => {
            let is_wanted = |name: &str, found: &str, wanted: &str| match (wanted, found) {
                ("", "") => record.attribute(name).is_some(), // any value, if present (EV-OBJ-59)
                ("", _) => true,
                _ => found == wanted,
            };
            let test =
                |name: &str, wanted: &str| with_value(record, name, steps, |found| is_wanted(name, found, wanted));
            pairs.iter().all(|(name, wanted)| test(name, wanted))
        }
        EventFilter::Rules(rules) => all(rules, record, steps) != FilterVerdict::Fail,
    };
    is_wanted && !steps.is_over()
}

fn judge(rule: &FilterRule, record: &EventRecord, steps: &Steps) -> FilterVerdict {
    if steps.take(1).is_err() {
        return FilterVerdict::Fail;
    }
    let every = |pairs: &[(Box<str>, Box<str>)], test: fn(&str, &str) -> bool| {
        let holds =
            |(name, wanted): &(Box<str>, Box<str>)| with_value(record, name, steps, |found| test(found, wanted));
        verdict(pairs.iter().all(holds))
    };
    match rule {
        FilterRule::Exact(pairs) => every(pairs, |found, wanted| found == wanted),
        FilterRule::Prefix(pairs) => every(pairs, |found, wanted| found.starts_with(wanted)),
        FilterRule::Suffix(pairs) => every(pairs, |found, wanted| found.ends_with(wanted)),
        FilterRule::All(rules) => all(rules, record, steps),
        FilterRule::Any(rules) => any(rules, record, steps),
        FilterRule::Not(rule) => match judge(rule, record, steps) {
            FilterVerdict::Pass => FilterVerdict::Fail,
            FilterVerdict::Fail => FilterVerdict::Pass,
            FilterVerdict::NoFilter => FilterVerdict::NoFilter,
        },
        FilterRule::Sql(expression) => verdict(expression.holds(record, steps)),
        FilterRule::Always(verdict) => *verdict,
    }
}

const fn verdict(passes: bool) -> FilterVerdict {
    if passes { FilterVerdict::Pass } else { FilterVerdict::Fail }
}

/// X-FLT-06: one that fails, or else the result of the last one.
fn all(rules: &[FilterRule], record: &EventRecord, steps: &Steps) -> FilterVerdict {
    let mut last = FilterVerdict::NoFilter;
    for rule in rules {
        last = judge(rule, record, steps);
        if last == FilterVerdict::Fail {
            break;
        }
    }
    last
}

/// X-FLT-07: one that passes, or else the result of the last one.
fn any(rules: &[FilterRule], record: &EventRecord, steps: &Steps) -> FilterVerdict {
    let mut last = FilterVerdict::NoFilter;
    for rule in rules {
        last = judge(rule, record, steps);
        if last == FilterVerdict::Pass {
            break;
        }
    }
    last
}

/// Tests an attribute by the names of X-FLT-12; empty if it is unset. Without steps left the test fails.
fn with_value(record: &EventRecord, name: &str, steps: &Steps, test: impl FnOnce(&str) -> bool) -> bool {
    let name_of = if name == "datamediatype" { "datacontenttype" } else { name };
    let value = cesql::attribute(record, name_of).unwrap_or_default();
    if steps.take_text(2 * value.len()).is_err() || steps.take(1).is_err() {
        return false;
    }
    if name != "datamediatype" {
        return test(value);
    }
    let media = value.split(';').next().unwrap_or_default().trim();
    if media.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return test(&media.to_ascii_lowercase()); // allocates only for unusual senders
    }
    test(media)
}

#[cfg(test)]
mod tests;
