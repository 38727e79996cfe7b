//! Streams and their subscribers, as they go into the table: what has not changed is shared with the previous
//! table, so that one Trigger more among ten thousand costs one Trigger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use contract::event_types::{EventTypeKey, EventTypeRegistry};
use contract::load::StreamCounters;
use contract::table::{DeliveryOrder, EventStream, RoutingTable, Subscriber};

use super::{DroppedEvents, StreamSpec, StreamSubscriberSpec};

#[derive(Default)]
pub(super) struct StreamModel {
    /// Streams by path.
    streams: BTreeMap<String, StreamEntry>,
    /// Subscribers by durable identity.
    subscribers: BTreeMap<String, SubscriberEntry>,
    /// The names of the subscribers of each path.
    subscribers_by_path: HashMap<String, BTreeSet<String>>,
}

struct StreamEntry {
    spec: StreamSpec,
    tally: Arc<StreamCounters>,
    types: Arc<EventTypeRegistry>,
    /// As it is in the last table; `None` when something has changed since.
    compiled: Option<Arc<EventStream>>,
}

struct SubscriberEntry {
    spec: StreamSubscriberSpec,
    compiled: Arc<Subscriber>,
}

impl StreamModel {
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn subscriber_count(&self) -> usize {
        self.subscribers.len()
    }

    /// These answer whether anything has changed.
    pub(super) fn set(&mut self, path: &str, spec: StreamSpec) -> bool {
        match self.streams.get_mut(path) {
            Some(entry) if entry.spec == spec => return false,
            // The same stream with other limits continues counting.
            Some(entry) if entry.spec.name == spec.name => {
                entry.spec = spec;
                entry.compiled = None;
            }
            _ => {
                self.streams.insert(
                    path.to_owned(),
                    StreamEntry { spec, tally: Arc::default(), types: Arc::default(), compiled: None },
                );
            }
        }
        true
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        self.streams.remove(path).is_some()
    }

    pub(super) fn set_subscriber(&mut self, name: &str, spec: StreamSubscriberSpec) -> bool {
        let known = self.subscribers.get(name);
        if known.is_some_and(|known| known.spec == spec) {
            return false;
        }
        let tally = known.map(|known| Arc::clone(&known.compiled.tally)).unwrap_or_default();
        self.remove_subscriber(name);
        let made = Arc::new(Subscriber {
            name: name.into(),
            label: spec.label.as_str().into(),
            filter: spec.filter.clone(),
            target: spec.target.clone(),
            reply: spec.reply.clone(),
            dead_letter: spec.dead_letter.clone(),
            hold: spec.hold,
            delivery: spec.delivery,
            initial_offset: spec.start_position,
            tally,
        });
        self.subscribers_by_path.entry(spec.path.clone()).or_default().insert(name.to_owned());
        self.mark_stale(&spec.path);
        self.subscribers.insert(name.to_owned(), SubscriberEntry { spec, compiled: made });
        true
    }

    pub(super) fn remove_subscriber(&mut self, name: &str) -> bool {
        let Some(SubscriberEntry { spec, .. }) = self.subscribers.remove(name) else { return false };
        if let Some(names) = self.subscribers_by_path.get_mut(&spec.path) {
            names.remove(name);
            if names.is_empty() {
                self.subscribers_by_path.remove(&spec.path);
            }
        }
        self.mark_stale(&spec.path);
        true
    }

    /// Removes the readers of a stream whose names do not stay.
    pub(super) fn retain_subscribers(&mut self, path: &str, stays: impl Fn(&str) -> bool) -> bool {
        let names = self.subscribers_by_path.get(path).into_iter().flatten();
        let others: Vec<String> = names.filter(|name| !stays(name)).cloned().collect();
        others.iter().for_each(|name| {
            self.remove_subscriber(name);
        });
        !others.is_empty()
    }

    fn mark_stale(&mut self, path: &str) {
        if let Some(entry) = self.streams.get_mut(path) {
            entry.compiled = None;
        }
    }

    pub(super) fn dropped_events(&self) -> Vec<DroppedEvents> {
        let some = self.subscribers.iter().filter(|(_, one)| {
            let tally = &one.compiled.tally;
            let counts = [&tally.dropped, &tally.filter_over_budget, &tally.stalled];
            counts.iter().any(|count| count.load(Relaxed) > 0)
        });
        let to_dropped = |(uid, reader): (&String, &SubscriberEntry)| DroppedEvents {
            uid: uid.clone(),
            label: reader.spec.label.clone(),
            events: reader.compiled.tally.dropped_by_reason(),
            over_budget: reader.compiled.tally.filter_over_budget.load(Relaxed),
            set_aside: reader.compiled.tally.stalled.load(Relaxed),
            set_aside_position: reader.compiled.tally.stalled_position.load(Relaxed),
            stream: reader.spec.path.clone(),
        };
        some.map(to_dropped).collect()
    }

    pub(super) fn new_event_types(&self) -> Vec<(String, EventTypeKey)> {
        let each = self.streams.iter().filter(|(_, entry)| entry.spec.reports_event_types);
        each.flat_map(|(path, entry)| entry.types.take().map(|seen| (path.clone(), seen))).collect()
    }

    pub(super) fn reset_event_types(&self, path: &str) {
        if let Some(entry) = self.streams.get(path) {
            entry.types.forget();
        }
    }

    pub(super) fn pending_events(&self, path: &str) -> u64 {
        let names = self.subscribers_by_path.get(path).into_iter().flatten();
        names.filter_map(|name| self.subscribers.get(name)).map(|reader| reader.compiled.tally.pending()).sum()
    }

    /// Makes the table's streams these.
    pub(super) fn write_to(&mut self, table: &mut RoutingTable) {
        table.streams.clear();
        for (path, entry) in &mut self.streams {
            let stream = entry.compiled.get_or_insert_with(|| {
                let names = self.subscribers_by_path.get(path).into_iter().flatten();
                let found = names.filter_map(|name| self.subscribers.get(name));
                let subscribers: Vec<_> = found.map(|reader| Arc::clone(&reader.compiled)).collect();
                let is_ordered = subscribers.iter().any(|one| one.delivery.sequence != DeliveryOrder::Free);
                Arc::new(EventStream {
                    name: entry.spec.name.as_str().into(),
                    event_bytes_max: entry.spec.event_bytes_max,
                    keeping: entry.spec.retention,
                    quota: Arc::clone(&entry.spec.quota),
                    in_order: is_ordered || !entry.spec.retention.deduplication_window.is_zero(),
                    is_closed: entry.spec.is_closed,
                    guards_loops: entry.spec.name.starts_with("broker/"),
                    admission: entry.spec.admission.clone(),
                    types: entry.spec.reports_event_types.then(|| Arc::clone(&entry.types)),
                    subscribers,
                    external: entry.spec.external.clone(),
                    tally: Arc::clone(&entry.tally),
                })
            });
            table.streams.insert(path.as_str().into(), Arc::clone(stream));
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::table::{DeliveryPolicy, EventFilter, HoldReason, InitialOffset, ReplyTarget, RetentionPolicy};

    use super::*;
    use crate::trust_store::TrustStore;

    fn reader(path: &str, url: &str) -> StreamSubscriberSpec {
        StreamSubscriberSpec {
            path: path.into(),
            label: "ns/t".into(),
            filter: EventFilter::Everything,
            target: TrustStore::default().target(&url.into()).unwrap(),
            reply: ReplyTarget::Reenter,
            dead_letter: None,
            hold: HoldReason::Nothing,
            delivery: DeliveryPolicy::ONCE,
            start_position: InitialOffset::Now,
        }
    }

    fn stream(path: &str) -> StreamSpec {
        StreamSpec {
            name: path.into(),
            event_bytes_max: 1,
            retention: RetentionPolicy::default(),
            quota: Arc::default(),
            is_closed: false,
            admission: None,
            reports_event_types: true,
            external: None,
        }
    }

    #[test]
    fn types_and_counts_of_a_stream_outlive_a_change_of_it() {
        let mut streams = StreamModel::default();
        streams.set("/a", stream("/a"));
        let first = made(&mut streams);
        let note = |table: &RoutingTable| table.streams["/a"].types.as_ref().unwrap().note("t", "/s", "", "");
        note(&first);
        assert_eq!(streams.new_event_types().len(), 1);
        streams.set("/a", StreamSpec { is_closed: true, ..stream("/a") });
        let second = made(&mut streams);
        note(&second);
        assert!(streams.new_event_types().is_empty() && second.streams["/a"].is_closed);
        streams.reset_event_types("/a");
        note(&second);
        assert_eq!(streams.new_event_types()[0].0, "/a");

        streams.set_subscriber("1", reader("/a", "http://s/"));
        let third = made(&mut streams);
        let tally = &third.streams["/a"].subscribers[0].tally;
        tally.offered.store(5, Relaxed);
        tally.delivered.store(2, Relaxed);
        assert_eq!((streams.pending_events("/a"), streams.pending_events("/b")), (3, 0));
    }

    fn made(streams: &mut StreamModel) -> RoutingTable {
        let mut table = RoutingTable::default();
        streams.write_to(&mut table);
        table
    }

    #[test]
    fn what_has_not_changed_is_shared_with_the_table_before() {
        let mut streams = StreamModel::default();
        for path in ["/a", "/b"] {
            assert!(streams.set(path, stream(path)));
        }
        assert!(streams.set_subscriber("1", reader("/a", "http://s/")));
        assert!(!streams.set_subscriber("1", reader("/a", "http://s/")));
        let first = made(&mut streams);
        assert!(streams.set_subscriber("2", reader("/a", "http://s/")));
        let second = made(&mut streams);
        let subscribers = |table: &RoutingTable, path: &str| table.streams[path].subscribers.clone();
        assert!(Arc::ptr_eq(&first.streams["/b"], &second.streams["/b"]));
        assert!(Arc::ptr_eq(&subscribers(&first, "/a")[0], &subscribers(&second, "/a")[0]));
        assert_eq!(subscribers(&second, "/a").len(), 2);

        // Another target, and another stream: the counts go along.
        assert!(streams.set_subscriber("1", reader("/b", "http://other/")));
        let third = made(&mut streams);
        let moved = &subscribers(&third, "/b")[0];
        assert!(Arc::ptr_eq(&moved.tally, &subscribers(&first, "/a")[0].tally));
        assert_eq!((subscribers(&third, "/a").len(), &*moved.target.url), (1, "http://other/"));

        assert!(streams.remove_subscriber("1") && !streams.remove_subscriber("1"));
        assert!(made(&mut streams).streams["/b"].subscribers.is_empty());
        assert!(streams.set_subscriber("3", reader("/a", "http://s/")));
        assert!(streams.retain_subscribers("/a", |name| name == "2") && !streams.retain_subscribers("/b", |_| false));
        assert!(!streams.retain_subscribers("/a", |name| name == "2"), "who stays is no change");
        assert!(streams.remove("/b") && !streams.remove("/b"));
        assert_eq!((streams.len(), streams.subscriber_count()), (1, 1));
    }
}
