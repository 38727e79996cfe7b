//! Whether a subscriber wants an event. Attributes only, never the payload (EV-RTE-16).

pub mod cesql;
pub mod index;

use super::record::Record;
use crate::table::{Filter, Rule, Verdict};

/// Attributes that X-FLT-12 counts as always present are empty strings when unset, and no rule is
/// satisfied by an empty value (X-FLT-10): so to rules absent and empty are the same.
#[must_use]
pub fn wants(filter: &Filter, record: &Record) -> bool {
    match filter {
        Filter::Everything => true,
        Filter::Exact(pairs) => {
            let is_wanted = |name: &str, found: &str, wanted: &str| match (wanted, found) {
                ("", "") => record.attribute(name).is_some(), // any value of what is there (EV-OBJ-59)
                ("", _) => true,
                _ => found == wanted,
            };
            let mut pairs = pairs.iter();
            pairs.all(|(name, wanted)| with_value(record, name, |found| is_wanted(name, found, wanted)))
        }
        Filter::Rules(rules) => all(rules, record) != Verdict::Fail,
    }
}

fn judge(rule: &Rule, record: &Record) -> Verdict {
    let every = |pairs: &[(Box<str>, Box<str>)], test: fn(&str, &str) -> bool| {
        verdict(pairs.iter().all(|(name, wanted)| with_value(record, name, |found| test(found, wanted))))
    };
    match rule {
        Rule::Exact(pairs) => every(pairs, |found, wanted| found == wanted),
        Rule::Prefix(pairs) => every(pairs, |found, wanted| found.starts_with(wanted)),
        Rule::Suffix(pairs) => every(pairs, |found, wanted| found.ends_with(wanted)),
        Rule::All(rules) => all(rules, record),
        Rule::Any(rules) => any(rules, record),
        Rule::Not(rule) => match judge(rule, record) {
            Verdict::Pass => Verdict::Fail,
            Verdict::Fail => Verdict::Pass,
            Verdict::NoFilter => Verdict::NoFilter,
        },
        Rule::Sql(expression) => verdict(expression.holds(record)),
        Rule::Always(verdict) => *verdict,
    }
}

const fn verdict(passes: bool) -> Verdict {
    if passes { Verdict::Pass } else { Verdict::Fail }
}

/// X-FLT-06: one that fails, or else what the last one says.
fn all(rules: &[Rule], record: &Record) -> Verdict {
    let mut last = Verdict::NoFilter;
    for rule in rules {
        last = judge(rule, record);
        if last == Verdict::Fail {
            break;
        }
    }
    last
}

/// X-FLT-07: one that passes, or else what the last one says.
fn any(rules: &[Rule], record: &Record) -> Verdict {
    let mut last = Verdict::NoFilter;
    for rule in rules {
        last = judge(rule, record);
        if last == Verdict::Pass {
            break;
        }
    }
    last
}

/// Looks at an attribute as X-FLT-12 names them; empty if it is unset.
fn with_value<T>(record: &Record, name: &str, look: impl FnOnce(&str) -> T) -> T {
    if name != "datamediatype" {
        return look(cesql::attribute(record, name).unwrap_or_default());
    }
    let content_type = record.attribute("datacontenttype").unwrap_or_default();
    let media = content_type.split(';').next().unwrap_or_default().trim();
    if media.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return look(&media.to_ascii_lowercase()); // allocates only for odd senders
    }
    look(media)
}

#[cfg(test)]
mod tests;
