//! A stream in an external store: the same ingress and deliveries, with a store that is a task of the simulation.

use std::collections::BTreeSet;

use codec::encode::EncodedEvent;
use contract::event_store::{
    EventStoreClient, EventStoreError, ExternalStream, ExternalStreamOptions, PublishRequest, ReceivedEvent,
    StoreConnection, StoreCredentials, StoreRequest, StoredEvent, SubscribeRequest,
};
use contract::table::DeliveryOrder;
use tokio::sync::mpsc;

use super::*;

/// What the store does with the next events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreBehavior {
    Works,
    HasNoLeader,
    Refuses,
}

struct FakeStore {
    behavior: Cell<StoreBehavior>,
    /// By sequence, from 1.
    events: RefCell<Vec<EncodedEvent>>,
    ids: RefCell<BTreeSet<Box<str>>>,
    readers: RefCell<Vec<(mpsc::Sender<ReceivedEvent>, usize)>>,
    acknowledged: RefCell<Vec<u64>>,
    ended: Cell<u32>,
}

impl FakeStore {
    /// The store of the fixture's next stream.
    fn start(rig: &BrokerFixture) -> Rc<Self> {
        let (client, requests) = EventStoreClient::new();
        let connection = StoreConnection {
            servers: vec!["nats://a:4222".into()],
            credentials: StoreCredentials::None,
            certificate_authorities: None,
        };
        let options = ExternalStreamOptions {
            replicas: 3,
            retention_bytes: 0,
            retention_time: Duration::ZERO,
            duplicate_window: seconds(120),
        };
        let (name, description) = ("s".into(), "Broker ns/b".into());
        let stream = ExternalStream { name, description, connection: Arc::new(connection), options, client };
        rig.external.replace(Some(Arc::new(stream)));
        let store = Rc::new(Self {
            behavior: Cell::new(StoreBehavior::Works),
            events: RefCell::default(),
            ids: RefCell::default(),
            readers: RefCell::default(),
            acknowledged: RefCell::default(),
            ended: Cell::new(0),
        });
        rig.ring.spawn(Rc::clone(&store).serve(rig.ring.clone(), requests));
        store
    }

    async fn serve(self: Rc<Self>, ring: Ring, mut requests: mpsc::Receiver<StoreRequest>) {
        while let Some(request) = requests.recv().await {
            match request {
                StoreRequest::Publish(request) => self.publish(*request).await,
                StoreRequest::Subscribe(request) => {
                    let SubscribeRequest { consumer, events, mut done, .. } = *request;
                    self.readers.borrow_mut().push((events, consumer.unfinished_max));
                    let store = Rc::clone(&self);
                    ring.spawn(async move {
                        while let Some(sequence) = done.recv().await {
                            store.acknowledged.borrow_mut().push(sequence);
                        }
                        store.ended.set(store.ended.get() + 1);
                    });
                }
                other => panic!("a core does not send {other:?}"),
            }
        }
    }

    async fn publish(&self, request: PublishRequest) {
        let PublishRequest { message, answer, .. } = request;
        let outcome = match self.behavior.get() {
            StoreBehavior::Works => Ok(StoredEvent { is_duplicate: !self.ids.borrow_mut().insert(message.id) }),
            StoreBehavior::HasNoLeader => Err(EventStoreError::NoLeader { stream: "s".into() }),
            StoreBehavior::Refuses => Err(EventStoreError::TooLarge { bytes: 2, max: 1 }),
        };
        if outcome == Ok(StoredEvent { is_duplicate: false }) {
            self.events.borrow_mut().push(message.content.clone());
            let sequence = self.events.borrow().len() as u64;
            self.deliver(sequence, &message.content).await;
        }
        drop(answer.send(outcome));
    }

    async fn deliver(&self, sequence: u64, content: &EncodedEvent) {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let readers: Vec<_> = self.readers.borrow().iter().map(|(events, _)| events.clone()).collect();
        for events in readers {
            let headers = content.headers().map(|(name, value)| (name.into(), text(value).into())).collect();
            let event = ReceivedEvent { sequence, at_ms: 1_700_000_000_000, headers, body: content.body.clone() };
            drop(events.send(event).await); // it may have ended
        }
    }

    fn acknowledged(&self) -> Vec<u64> {
        let mut all = self.acknowledged.borrow().clone();
        all.sort_unstable();
        all
    }
}

/// EV-RTE-02, EV-RTE-10, EV-DLV-08: events, replies and dead letters of a stream in a store; an event is acknowledged only
/// when its delivery has ended.
#[test]
fn events_of_store_are_delivered_and_then_acknowledged() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let store = FakeStore::start(&rig);
    let fails = Subscriber { dead_letter: Some(target("http://dead/")), ..trigger("fails", "http://fails/") };
    let stream = rig.publish(vec![of_type(trigger("b", "http://b/"), "B"), of_type(fails, "A")]);
    rig.sync();
    rig.rule(|call| match (&*call.url, call.id.as_str()) {
        ("http://fails/", "1") => reply("1", "B"),
        ("http://fails/", _) => ScriptedAnswer::Status(500),
        _ => ScriptedAnswer::Status(202),
    });
    rig.run(async {
        rig.rest(seconds(1)).await;
        assert_eq!((rig.post("1", "A").await, rig.post("2", "A").await), (202, 202));
        rig.rest(Duration::from_millis(500)).await;
        // The second event waits for its retry at one subscriber: 1 and 3, the reply, are done at both.
        assert_eq!(store.acknowledged(), [1, 1, 2, 3, 3]);
        rig.rest(seconds(10)).await;
    });
    assert_eq!((rig.ids("http://b/"), rig.ids("http://dead/")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    assert_eq!(store.acknowledged(), [1, 1, 2, 2, 3, 3]);
    assert_eq!((ends(&stream, 0), ends(&stream, 1)), ([1, 2, 0, 0, 0], [1, 1, 1, 0, 0]));
    assert_eq!(stream.tally.accepted.load(Relaxed), 3);
    assert_eq!(rig.calls("http://b/")[0].header("ce-knativearrivaltime").as_deref(), Some("2023-11-14T22:13:20Z"));
}

/// DP-ACK-10: what the store does not take is not acknowledged, and its sender learns whether to try again. What it has
/// already is.
#[test]
fn answer_is_that_of_the_store() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let store = FakeStore::start(&rig);
    let stream = rig.publish(Vec::new());
    rig.run(async {
        for (behavior, status) in [
            (StoreBehavior::Works, 202),
            (StoreBehavior::HasNoLeader, 503),
            (StoreBehavior::Refuses, 413),
            (StoreBehavior::Works, 202),
        ] {
            store.behavior.set(behavior);
            assert_eq!(rig.post("1", "A").await, status, "{behavior:?}");
        }
    });
    let tally = &stream.tally;
    let counts = [&tally.accepted, &tally.refused, &tally.deduplicated].map(|count| count.load(Relaxed));
    assert_eq!((counts, store.events.borrow().len()), ([1, 2, 1], 1));
}

/// EV-RTE-11: a reply waits while the store cannot take it, and its event is not acknowledged before.
#[test]
fn reply_waits_for_the_store() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let store = FakeStore::start(&rig);
    rig.publish(vec![of_type(trigger("a", "http://a/"), "A")]);
    rig.sync();
    rig.rule(|_| reply("1", "B"));
    rig.run(async {
        rig.rest(seconds(1)).await;
        assert_eq!(rig.post("1", "A").await, 202);
        store.behavior.set(StoreBehavior::HasNoLeader);
        rig.rest(seconds(60)).await;
        assert_eq!((store.acknowledged(), rig.calls("http://a/").len()), (vec![], 1));
        store.behavior.set(StoreBehavior::Works);
        rig.rest(seconds(10)).await;
    });
    assert_eq!((store.acknowledged(), rig.calls("http://a/").len()), (vec![1, 2], 1));
}

/// A message that is no event is dropped with a count, and does not come again.
#[test]
fn message_that_is_no_event_is_dropped() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let store = FakeStore::start(&rig);
    let stream = rig.publish(vec![trigger("a", "http://a/")]);
    rig.sync();
    rig.run(async {
        rig.rest(seconds(1)).await;
        let content = EncodedEvent { fields: b"color: red\r\n".to_vec(), body: "text".into() };
        store.deliver(7, &content).await;
        rig.rest(seconds(1)).await;
    });
    assert_eq!((store.acknowledged(), ends(&stream, 0)), (vec![7], [0, 0, 0, 1, 0]));
}

/// A stop, a removed subscriber and another order give back what is not done.
#[test]
fn what_is_not_done_is_given_back() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let store = FakeStore::start(&rig);
    let subscriber = |sequence| {
        let plain = trigger("a", "http://a/");
        Subscriber { delivery: DeliveryPolicy { sequence, retries_max: 1000, ..plain.delivery }, ..plain }
    };
    rig.publish(vec![subscriber(DeliveryOrder::Free)]);
    rig.sync();
    rig.rule(|_| ScriptedAnswer::Status(500));
    rig.run(async {
        rig.rest(seconds(1)).await;
        assert_eq!(rig.post("1", "A").await, 202);
        rig.rest(seconds(5)).await;
        rig.publish(vec![subscriber(DeliveryOrder::Strict)]);
        rig.sync();
        rig.rest(seconds(1)).await;
        assert_eq!(store.ended.get(), 1);
        assert_eq!(store.readers.borrow().iter().map(|(_, max)| *max).collect::<Vec<_>>(), [256, 1]);
        rig.events.drain().await;
        rig.rest(seconds(1)).await;
    });
    assert_eq!((store.ended.get(), store.acknowledged()), (2, vec![]));
}
