//! Finds the matching subscribers of an event.
//!
//! Most filters require one `type`, or else one `source`. They are found by a map look-up, so that the cost
//! of an event depends on the matching subscribers and the few filters that require neither, not on all.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use codec::record::EventRecord;
use contract::filter::matches;
use contract::filter::steps::Steps;
use contract::table::{AttributeMatches, EventFilter, FilterRule, Subscriber};

/// The subscribers of a stream by their filters.
#[derive(Debug, Default)]
pub struct FilterIndex {
    by_type: AttributeMap,
    by_source: AttributeMap,
    /// Filters that require neither.
    others: Vec<FilterIndexEntry>,
}

type AttributeMap = HashMap<Box<str>, Vec<FilterIndexEntry>, RandomState>;

/// A subscriber that may match an event.
#[derive(Debug)]
pub struct FilterIndexEntry {
    /// Index of the subscriber in the list that the index was built from.
    pub at: usize,
    /// `None`: every event found here matches.
    pub attributes: Option<Arc<Subscriber>>,
}

impl FilterIndex {
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
            entries.push(FilterIndexEntry { at, attributes: ask });
        }
        index
    }

    /// The subscribers that may match the event, in no order.
    pub fn candidates<'i>(&'i self, event: &EventRecord) -> impl Iterator<Item = &'i FilterIndexEntry> {
        let found = |map: &'i AttributeMap, name: &str| {
            if map.is_empty() { None } else { event.attribute(name).and_then(|value| map.get(value)) }
        };
        let keyed = [found(&self.by_type, "type"), found(&self.by_source, "source")];
        keyed.into_iter().flatten().flatten().chain(&self.others)
    }

    /// Calls `wanted` with the list index of each matching subscriber, in no order.
    pub fn visit(&self, event: &EventRecord, mut wanted: impl FnMut(usize)) {
        for entry in self.candidates(event).filter(|entry| entry.wants(event, &Steps::default())) {
            wanted(entry.at);
        }
    }
}

impl FilterIndexEntry {
    /// Whether the subscriber matches the event. The attribute by which it was found is not checked again.
    #[must_use]
    pub fn wants(&self, event: &EventRecord, steps: &Steps) -> bool {
        self.attributes.as_ref().is_none_or(|subscriber| matches(&subscriber.filter, event, steps))
    }
}

/// A value that the attribute must have for the filter to match.
fn required<'f>(filter: &'f EventFilter, name: &str) -> Option<&'f str> {
    match filter {
        EventFilter::Everything => None,
        EventFilter::Exact(pairs) => value(pairs, name),
        EventFilter::Rules(rules) => required_by_all(rules, name),
    }
}

/// One failing member of an `all` is enough (X-FLT-06).
fn required_by_all<'f>(rules: &'f [FilterRule], name: &str) -> Option<&'f str> {
    rules.iter().find_map(|rule| match rule {
        FilterRule::Exact(pairs) => value(pairs, name),
        FilterRule::All(rules) => required_by_all(rules, name),
        _ => None,
    })
}

/// An empty value only requires presence.
fn value<'f>(pairs: &'f AttributeMatches, name: &str) -> Option<&'f str> {
    let found = pairs.iter().find(|(key, value)| &**key == name && !value.is_empty());
    found.map(|(_, value)| &**value)
}

fn is_settled_by_its_key(filter: &EventFilter) -> bool {
    let is_key = |pairs: &AttributeMatches| {
        pairs.len() == 1 && (value(pairs, "type").is_some() || value(pairs, "source").is_some())
    };
    match filter {
        EventFilter::Everything => true,
        EventFilter::Exact(pairs) => is_key(pairs),
        EventFilter::Rules(rules) => matches!(&**rules, [FilterRule::Exact(pairs)] if is_key(pairs)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::trigger;
    use codec::cloudevent::structured;
    use codec::record;
    use contract::filter::cesql;

    fn event(envelope: &str) -> EventRecord {
        let event = structured::parse(envelope.as_bytes()).unwrap();
        let mut bytes = record::encode_head(&event, &[], 0);
        bytes.extend(event.data.bytes());
        EventRecord::decode(bytes.into()).unwrap()
    }

    fn attributes() -> impl Strategy<Value = AttributeMatches> {
        let name = prop_oneof![Just("type"), Just("source"), Just("color")];
        proptest::collection::vec((name, "[ab]?"), 0..3)
            .prop_map(|pairs| pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn rule() -> impl Strategy<Value = FilterRule> {
        let leaf = prop_oneof![
            3 => attributes().prop_map(FilterRule::Exact),
            1 => attributes().prop_map(FilterRule::Prefix),
            1 => Just(FilterRule::Sql(cesql::parse("type = 'a'").unwrap())),
        ];
        leaf.prop_recursive(2, 6, 3, |inner| {
            let list = proptest::collection::vec(inner.clone(), 0..3);
            prop_oneof![
                list.clone().prop_map(FilterRule::All),
                list.prop_map(FilterRule::Any),
                inner.prop_map(|rule| FilterRule::Not(Box::new(rule))),
            ]
        })
    }

    fn filter() -> impl Strategy<Value = EventFilter> {
        prop_oneof![
            Just(EventFilter::Everything),
            attributes().prop_map(EventFilter::Exact),
            proptest::collection::vec(rule(), 0..3).prop_map(|rules| EventFilter::Rules(rules.into())),
        ]
    }

    proptest! {
        /// X-FLT-02, EV-RTE-04: the index finds exactly the subscribers whose filter matches, once.
        #[test]
        fn index_finds_same_subscribers_as_full_scan(
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
            FilterIndex::new(&subscribers).visit(&event, |at| found.push(at));
            found.sort_unstable();
            let asked: Vec<_> =
                (0..subscribers.len()).filter(|at| matches(&subscribers[*at].filter, &event, &steps)).collect();
            prop_assert_eq!(found, asked);
        }
    }
}
