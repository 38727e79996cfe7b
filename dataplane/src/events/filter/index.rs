//! Who wants an event, among all subscribers of a stream.
//!
//! Most filters ask for one `type`, or else one `source`. They are found by a look into a map, so that
//! an event costs by those who want it and by the few filters that ask for neither, not by all.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::steps::Steps;
use super::wants;
use crate::events::record::Record;
use crate::table::{Attributes, Filter, Rule, Subscriber};

/// The subscribers of a stream by what they want.
#[derive(Debug, Default)]
pub struct Index {
    by_type: Map,
    by_source: Map,
    /// Neither is required.
    others: Vec<Entry>,
}

type Map = HashMap<Box<str>, Vec<Entry>, RandomState>;

/// A subscriber that may want an event.
#[derive(Debug)]
pub struct Entry {
    /// Where the subscriber stands in the list that the index was made of.
    pub at: usize,
    /// `None`: everything found here is wanted.
    pub ask: Option<Arc<Subscriber>>,
}

impl Index {
    #[must_use]
    pub fn new(subscribers: &[Arc<Subscriber>]) -> Self {
        let mut index = Self::default();
        for (at, subscriber) in subscribers.iter().enumerate() {
            let filter = &subscriber.filter;
            let ask = (!is_settled_by_its_key(filter)).then(|| Arc::clone(subscriber));
            let entries = match (required(filter, "type"), required(filter, "source")) {
                (Some(value), _) => index.by_type.entry(value.into()).or_default(),
                (None, Some(value)) => index.by_source.entry(value.into()).or_default(),
                (None, None) => &mut index.others,
            };
            entries.push(Entry { at, ask });
        }
        index
    }

    /// The subscribers that may want the event, in no order.
    pub fn candidates<'i>(&'i self, event: &Record) -> impl Iterator<Item = &'i Entry> {
        let found = |map: &'i Map, name: &str| {
            if map.is_empty() { None } else { event.attribute(name).and_then(|value| map.get(value)) }
        };
        let keyed = [found(&self.by_type, "type"), found(&self.by_source, "source")];
        keyed.into_iter().flatten().flatten().chain(&self.others)
    }

    /// Names each subscriber that wants the event, by its place in the list, in no order.
    pub fn visit(&self, event: &Record, mut wanted: impl FnMut(usize)) {
        for entry in self.candidates(event).filter(|entry| entry.wants(event, &Steps::default())) {
            wanted(entry.at);
        }
    }
}

impl Entry {
    /// Whether the subscriber wants the event. The key by which it was found is not asked for again.
    #[must_use]
    pub fn wants(&self, event: &Record, steps: &Steps) -> bool {
        self.ask.as_ref().is_none_or(|subscriber| wants(&subscriber.filter, event, steps))
    }
}

/// A value that the attribute must have, or the filter withholds the event.
fn required<'f>(filter: &'f Filter, name: &str) -> Option<&'f str> {
    match filter {
        Filter::Everything => None,
        Filter::Exact(pairs) => value(pairs, name),
        Filter::Rules(rules) => required_by_all(rules, name),
    }
}

/// One member of an `all` that fails is enough (X-FLT-06).
fn required_by_all<'f>(rules: &'f [Rule], name: &str) -> Option<&'f str> {
    rules.iter().find_map(|rule| match rule {
        Rule::Exact(pairs) => value(pairs, name),
        Rule::All(rules) => required_by_all(rules, name),
        _ => None,
    })
}

/// An empty value asks for presence only.
fn value<'f>(pairs: &'f Attributes, name: &str) -> Option<&'f str> {
    let found = pairs.iter().find(|(key, value)| &**key == name && !value.is_empty());
    found.map(|(_, value)| &**value)
}

fn is_settled_by_its_key(filter: &Filter) -> bool {
    let is_key = |pairs: &Attributes| {
        pairs.len() == 1 && (value(pairs, "type").is_some() || value(pairs, "source").is_some())
    };
    match filter {
        Filter::Everything => true,
        Filter::Exact(pairs) => is_key(pairs),
        Filter::Rules(rules) => matches!(&**rules, [Rule::Exact(pairs)] if is_key(pairs)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::event;
    use super::*;
    use crate::events::filter::cesql;
    use crate::events::tests::trigger;

    fn attributes() -> impl Strategy<Value = Attributes> {
        let name = prop_oneof![Just("type"), Just("source"), Just("color")];
        proptest::collection::vec((name, "[ab]?"), 0..3)
            .prop_map(|pairs| pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let leaf = prop_oneof![
            3 => attributes().prop_map(Rule::Exact),
            1 => attributes().prop_map(Rule::Prefix),
            1 => Just(Rule::Sql(cesql::parse("type = 'a'").unwrap())),
        ];
        leaf.prop_recursive(2, 6, 3, |inner| {
            let list = proptest::collection::vec(inner.clone(), 0..3);
            prop_oneof![
                list.clone().prop_map(Rule::All),
                list.prop_map(Rule::Any),
                inner.prop_map(|rule| Rule::Not(Box::new(rule))),
            ]
        })
    }

    fn filter() -> impl Strategy<Value = Filter> {
        prop_oneof![
            Just(Filter::Everything),
            attributes().prop_map(Filter::Exact),
            proptest::collection::vec(rule(), 0..3).prop_map(|rules| Filter::Rules(rules.into())),
        ]
    }

    proptest! {
        /// X-FLT-02, EV-RTE-04: the index names exactly those whose filter wants the event, once.
        #[test]
        fn the_index_finds_who_asking_everybody_finds(
            filters in proptest::collection::vec(filter(), 0..12),
            ty in "[abc]",
            source in "[abc]",
            color in proptest::option::of("[ab]"),
        ) {
            let color = color.map_or(String::new(), |color| format!(r#","color":"{color}""#));
            let event = event(&format!(r#"{{"specversion":"1.0","id":"1","source":"{source}","type":"{ty}"{color}}}"#));
            let subscribers: Vec<_> = filters
                .into_iter()
                .map(|filter| Arc::new(Subscriber { filter, ..trigger("t", "http://s/") }))
                .collect();
            let steps = Steps::default();
            let mut found = Vec::new();
            Index::new(&subscribers).visit(&event, |at| found.push(at));
            found.sort_unstable();
            let asked: Vec<_> =
                (0..subscribers.len()).filter(|at| wants(&subscribers[*at].filter, &event, &steps)).collect();
            prop_assert_eq!(found, asked);
        }
    }
}
