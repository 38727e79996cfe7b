//! Whether a subscriber wants an event. Attributes only, never the payload (EV-RTE-16).

pub mod cesql;
pub mod index;
pub mod steps;

use self::steps::Steps;
use super::record::Record;
use crate::table::{Filter, Rule, Verdict};

/// Attributes that X-FLT-12 counts as always present are empty strings when unset, and no rule is
/// satisfied by an empty value (X-FLT-10): so to rules absent and empty are the same.
///
/// A filter that uses up its `steps` withholds the event, whatever the rest of it would say: an error in an
/// expression is the Boolean `false` (X-FLT-09), and a `not` around it must not turn that into a delivery.
#[must_use]
pub fn wants(filter: &Filter, record: &Record, steps: &Steps) -> bool {
    let is_wanted = match filter {
        Filter::Everything => true,
        Filter::Exact(pairs) => {
            let is_wanted = |name: &str, found: &str, wanted: &str| match (wanted, found) {
                ("", "") => record.attribute(name).is_some(), // any value of what is there (EV-OBJ-59)
                ("", _) => true,
                _ => found == wanted,
            };
            let test = |name: &str, wanted: &str| {
                with_value(record, name, steps, |found| is_wanted(name, found, wanted))
            };
            pairs.iter().all(|(name, wanted)| test(name, wanted))
        }
        Filter::Rules(rules) => all(rules, record, steps) != Verdict::Fail,
    };
    is_wanted && !steps.is_over()
}

fn judge(rule: &Rule, record: &Record, steps: &Steps) -> Verdict {
    if steps.take(1).is_err() {
        return Verdict::Fail;
    }
    let every = |pairs: &[(Box<str>, Box<str>)], test: fn(&str, &str) -> bool| {
        let holds = |(name, wanted): &(Box<str>, Box<str>)| {
            with_value(record, name, steps, |found| test(found, wanted))
        };
        verdict(pairs.iter().all(holds))
    };
    match rule {
        Rule::Exact(pairs) => every(pairs, |found, wanted| found == wanted),
        Rule::Prefix(pairs) => every(pairs, |found, wanted| found.starts_with(wanted)),
        Rule::Suffix(pairs) => every(pairs, |found, wanted| found.ends_with(wanted)),
        Rule::All(rules) => all(rules, record, steps),
        Rule::Any(rules) => any(rules, record, steps),
        Rule::Not(rule) => match judge(rule, record, steps) {
            Verdict::Pass => Verdict::Fail,
            Verdict::Fail => Verdict::Pass,
            Verdict::NoFilter => Verdict::NoFilter,
        },
        Rule::Sql(expression) => verdict(expression.holds(record, steps)),
        Rule::Always(verdict) => *verdict,
    }
}

const fn verdict(passes: bool) -> Verdict {
    if passes { Verdict::Pass } else { Verdict::Fail }
}

/// X-FLT-06: one that fails, or else what the last one says.
fn all(rules: &[Rule], record: &Record, steps: &Steps) -> Verdict {
    let mut last = Verdict::NoFilter;
    for rule in rules {
        last = judge(rule, record, steps);
        if last == Verdict::Fail {
            break;
        }
    }
    last
}

/// X-FLT-07: one that passes, or else what the last one says.
fn any(rules: &[Rule], record: &Record, steps: &Steps) -> Verdict {
    let mut last = Verdict::NoFilter;
    for rule in rules {
        last = judge(rule, record, steps);
        if last == Verdict::Pass {
            break;
        }
    }
    last
}

/// Tests an attribute as X-FLT-12 names them; empty if it is unset. No steps left: the test fails.
fn with_value(record: &Record, name: &str, steps: &Steps, test: impl FnOnce(&str) -> bool) -> bool {
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
        return test(&media.to_ascii_lowercase()); // allocates only for odd senders
    }
    test(media)
}

#[cfg(test)]
mod tests;
