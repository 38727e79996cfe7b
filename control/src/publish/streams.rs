//! Streams and who reads them, as they go into the table: what has not changed is shared with the table
//! before, so that one Trigger more among ten thousand costs one Trigger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dataplane::events::types::{Seen, Types};
use dataplane::load::StreamTally;
use dataplane::table::{Sequence, Stream, Subscriber, Table};

use super::{Dropped, StreamSpec, SubscriberSpec};

#[derive(Default)]
pub(super) struct Streams {
    /// By path.
    streams: BTreeMap<String, Entry>,
    /// By durable identity.
    subscribers: BTreeMap<String, Reader>,
    /// The names of the subscribers of each path.
    readers: HashMap<String, BTreeSet<String>>,
}

struct Entry {
    spec: StreamSpec,
    tally: Arc<StreamTally>,
    types: Arc<Types>,
    /// As it is in the last table; `None` when something has changed since.
    made: Option<Arc<Stream>>,
}

struct Reader {
    spec: SubscriberSpec,
    made: Arc<Subscriber>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn readers(&self) -> usize {
        self.subscribers.len()
    }

    /// These answer whether anything has changed.
    pub(super) fn set(&mut self, path: &str, spec: StreamSpec) -> bool {
        match self.streams.get_mut(path) {
            Some(entry) if entry.spec == spec => return false,
            // The same stream with other limits goes on counting.
            Some(entry) if entry.spec.name == spec.name => {
                entry.spec = spec;
                entry.made = None;
            }
            _ => {
                self.streams.insert(
                    path.to_owned(),
                    Entry { spec, tally: Arc::default(), types: Arc::default(), made: None },
                );
            }
        }
        true
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        self.streams.remove(path).is_some()
    }

    pub(super) fn set_reader(&mut self, name: &str, spec: SubscriberSpec) -> bool {
        let known = self.subscribers.get(name);
        if known.is_some_and(|known| known.spec == spec) {
            return false;
        }
        let tally = known.map(|known| Arc::clone(&known.made.tally)).unwrap_or_default();
        self.remove_reader(name);
        let made = Arc::new(Subscriber {
            name: name.into(),
            label: spec.label.as_str().into(),
            filter: spec.filter.clone(),
            target: spec.target.clone(),
            reply: spec.reply.clone(),
            dead_letter: spec.dead_letter.clone(),
            hold: spec.hold,
            delivery: spec.delivery,
            begin: spec.begin,
            tally,
        });
        self.readers.entry(spec.path.clone()).or_default().insert(name.to_owned());
        self.touch(&spec.path);
        self.subscribers.insert(name.to_owned(), Reader { spec, made });
        true
    }

    pub(super) fn remove_reader(&mut self, name: &str) -> bool {
        let Some(Reader { spec, .. }) = self.subscribers.remove(name) else { return false };
        if let Some(names) = self.readers.get_mut(&spec.path) {
            names.remove(name);
            if names.is_empty() {
                self.readers.remove(&spec.path);
            }
        }
        self.touch(&spec.path);
        true
    }

    /// Takes away the readers of a stream whose names do not stay.
    pub(super) fn retain_readers(&mut self, path: &str, stays: impl Fn(&str) -> bool) -> bool {
        let names = self.readers.get(path).into_iter().flatten();
        let others: Vec<String> = names.filter(|name| !stays(name)).cloned().collect();
        others.iter().for_each(|name| {
            self.remove_reader(name);
        });
        !others.is_empty()
    }

    fn touch(&mut self, path: &str) {
        if let Some(entry) = self.streams.get_mut(path) {
            entry.made = None;
        }
    }

    pub(super) fn drops(&self) -> Vec<Dropped> {
        let some = self.subscribers.iter().filter(|(_, one)| {
            let tally = &one.made.tally;
            tally.dropped.load(Relaxed) > 0 || tally.filter_over_budget.load(Relaxed) > 0
        });
        let told = |(uid, reader): (&String, &Reader)| Dropped {
            uid: uid.clone(),
            label: reader.spec.label.clone(),
            events: reader.made.tally.dropped_by_reason(),
            over_budget: reader.made.tally.filter_over_budget.load(Relaxed),
        };
        some.map(told).collect()
    }

    pub(super) fn new_types(&self) -> Vec<(String, Seen)> {
        let each = self.streams.iter().filter(|(_, entry)| entry.spec.tells_types);
        each.flat_map(|(path, entry)| entry.types.take().map(|seen| (path.clone(), seen))).collect()
    }

    pub(super) fn forget_types(&self, path: &str) {
        if let Some(entry) = self.streams.get(path) {
            entry.types.forget();
        }
    }

    pub(super) fn pending(&self, path: &str) -> u64 {
        let names = self.readers.get(path).into_iter().flatten();
        names.filter_map(|name| self.subscribers.get(name)).map(|reader| reader.made.tally.pending()).sum()
    }

    /// Makes the table's streams these.
    pub(super) fn fill(&mut self, table: &mut Table) {
        table.streams.clear();
        for (path, entry) in &mut self.streams {
            let stream = entry.made.get_or_insert_with(|| {
                let names = self.readers.get(path).into_iter().flatten();
                let found = names.filter_map(|name| self.subscribers.get(name));
                let subscribers: Vec<_> = found.map(|reader| Arc::clone(&reader.made)).collect();
                Arc::new(Stream {
                    name: entry.spec.name.as_str().into(),
                    event_bytes_max: entry.spec.event_bytes_max,
                    keeping: entry.spec.keeping,
                    quota: Arc::clone(&entry.spec.quota),
                    in_order: subscribers.iter().any(|one| one.delivery.sequence != Sequence::Free),
                    is_closed: entry.spec.is_closed,
                    guards_loops: entry.spec.name.starts_with("broker/"),
                    admission: entry.spec.admission.clone(),
                    types: entry.spec.tells_types.then(|| Arc::clone(&entry.types)),
                    subscribers,
                    tally: Arc::clone(&entry.tally),
                })
            });
            table.streams.insert(path.as_str().into(), Arc::clone(stream));
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane::table::{Begin, Delivery, Filter, Hold, Keeping, Reply};

    use super::*;
    use crate::controllers::trusts::Trusts;

    fn reader(path: &str, url: &str) -> SubscriberSpec {
        SubscriberSpec {
            path: path.into(),
            label: "ns/t".into(),
            filter: Filter::Everything,
            target: Trusts::default().target(&url.into()).unwrap(),
            reply: Reply::Reenter,
            dead_letter: None,
            hold: Hold::Nothing,
            delivery: Delivery::ONCE,
            begin: Begin::Now,
        }
    }

    fn stream(path: &str) -> StreamSpec {
        StreamSpec {
            name: path.into(),
            event_bytes_max: 1,
            keeping: Keeping::default(),
            quota: Arc::default(),
            is_closed: false,
            admission: None,
            tells_types: true,
        }
    }

    #[test]
    fn types_and_counts_of_a_stream_outlive_a_change_of_it() {
        let mut streams = Streams::default();
        streams.set("/a", stream("/a"));
        let first = made(&mut streams);
        let note = |table: &Table| table.streams["/a"].types.as_ref().unwrap().note("t", "/s", "", "");
        note(&first);
        assert_eq!(streams.new_types().len(), 1);
        streams.set("/a", StreamSpec { is_closed: true, ..stream("/a") });
        let second = made(&mut streams);
        note(&second);
        assert!(streams.new_types().is_empty() && second.streams["/a"].is_closed);
        streams.forget_types("/a");
        note(&second);
        assert_eq!(streams.new_types()[0].0, "/a");

        streams.set_reader("1", reader("/a", "http://s/"));
        let third = made(&mut streams);
        let tally = &third.streams["/a"].subscribers[0].tally;
        tally.offered.store(5, Relaxed);
        tally.delivered.store(2, Relaxed);
        assert_eq!((streams.pending("/a"), streams.pending("/b")), (3, 0));
    }

    fn made(streams: &mut Streams) -> Table {
        let mut table = Table::default();
        streams.fill(&mut table);
        table
    }

    #[test]
    fn what_has_not_changed_is_shared_with_the_table_before() {
        let mut streams = Streams::default();
        for path in ["/a", "/b"] {
            assert!(streams.set(path, stream(path)));
        }
        assert!(streams.set_reader("1", reader("/a", "http://s/")));
        assert!(!streams.set_reader("1", reader("/a", "http://s/")));
        let first = made(&mut streams);
        assert!(streams.set_reader("2", reader("/a", "http://s/")));
        let second = made(&mut streams);
        let subscribers = |table: &Table, path: &str| table.streams[path].subscribers.clone();
        assert!(Arc::ptr_eq(&first.streams["/b"], &second.streams["/b"]));
        assert!(Arc::ptr_eq(&subscribers(&first, "/a")[0], &subscribers(&second, "/a")[0]));
        assert_eq!(subscribers(&second, "/a").len(), 2);

        // Another target, and another stream: the counts go along.
        assert!(streams.set_reader("1", reader("/b", "http://other/")));
        let third = made(&mut streams);
        let moved = &subscribers(&third, "/b")[0];
        assert!(Arc::ptr_eq(&moved.tally, &subscribers(&first, "/a")[0].tally));
        assert_eq!((subscribers(&third, "/a").len(), &*moved.target.url), (1, "http://other/"));

        assert!(streams.remove_reader("1") && !streams.remove_reader("1"));
        assert!(made(&mut streams).streams["/b"].subscribers.is_empty());
        assert!(streams.set_reader("3", reader("/a", "http://s/")));
        assert!(streams.retain_readers("/a", |name| name == "2") && !streams.retain_readers("/b", |_| false));
        assert!(!streams.retain_readers("/a", |name| name == "2"), "who stays is no change");
        assert!(streams.remove("/b") && !streams.remove("/b"));
        assert_eq!((streams.len(), streams.readers()), (1, 1));
    }
}
