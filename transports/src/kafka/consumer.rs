//! One membership in the consumer group.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering as Atomic};
use std::time::{Duration, Instant};

use adapter::{DeliveryResult, Error, Intake};
use krafka::consumer::{AutoOffsetReset, Consumer, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition};
use krafka::{ConsumerRecord, Kafka, KrafkaError};

use super::record::event_of;
use super::{Config, OffsetReset, Ordering, failed};
use crate::offset_tracker::OffsetTracker;

/// A poll returns after this time without records, so that a stop is seen.
const POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// While partitions are paused and the client's buffer is full, a poll returns at once without a record. The pause lets the
/// deliveries of this thread go on, which make room.
const EMPTY_POLL_PAUSE: Duration = Duration::from_millis(5);
/// Records of one poll.
const POLL_RECORDS_MAX: u16 = 512;
/// How often the lag is computed.
const LAG_INTERVAL: Duration = Duration::from_secs(1);
/// Before partitions go to another consumer, records in flight are settled within this time.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the group continues once the record is settled.
pub(crate) struct Position {
    topic: Arc<str>,
    partition: i32,
    next: u64,
}

type Partition = (Arc<str>, i32);
type Poll = Pin<Box<dyn Future<Output = Result<Vec<ConsumerRecord>, KrafkaError>>>>;
type Commit = Pin<Box<dyn Future<Output = Result<(), KrafkaError>>>>;

pub(super) struct ConsumerSession {
    consumer: Arc<Consumer>,
    handover: Arc<Handover>,
    progress: HashMap<Partition, OffsetTracker>,
    last: HashMap<Partition, u64>,
    /// Settled and not committed.
    dirty: BTreeMap<Partition, u64>,
    poll: Option<Poll>,
    commit: Option<Commit>,
    is_paused: bool,
    is_ready: bool,
    lag_reported: Option<Instant>,
}

/// What the rebalance waits for.
#[derive(Default)]
struct Handover {
    /// Records in flight and commits that are due.
    busy: AtomicUsize,
    /// Partitions went away with records in flight.
    broken: AtomicBool,
    /// Partitions came.
    assigned: AtomicBool,
}

/// The listener that the client calls.
struct Listener(Arc<Handover>);

impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, _: &[TopicPartition]) {
        self.0.assigned.store(true, Atomic::Release);
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        let deadline = tokio::time::Instant::now() + REVOKE_TIMEOUT;
        while !partitions.is_empty() && self.0.busy.load(Atomic::Acquire) > 0 {
            if tokio::time::Instant::now() > deadline {
                self.0.broken.store(true, Atomic::Release);
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        if !partitions.is_empty() && self.0.busy.load(Atomic::Acquire) > 0 {
            self.0.broken.store(true, Atomic::Release);
        }
    }
}

impl ConsumerSession {
    pub(super) async fn start(kafka: &Kafka, config: &Config, group: &str) -> Result<ConsumerSession, Error> {
        let handover = Arc::new(Handover::default());
        let timeout = Duration::from_millis(config.session_timeout_ms);
        let consumer = kafka
            .consumer(group)
            .enable_auto_commit(false)
            .auto_offset_reset(match config.initial_offset {
                OffsetReset::Latest => AutoOffsetReset::Latest,
                OffsetReset::Earliest => AutoOffsetReset::Earliest,
            })
            .session_timeout(timeout)
            .heartbeat_interval(timeout / 4)
            .max_poll_records(POLL_RECORDS_MAX.into())
            .rebalance_listener(Listener(Arc::clone(&handover)))
            .build()
            .await
            .map_err(failed)?;
        consumer.subscribe(&config.topics).await.map_err(failed)?;
        Ok(ConsumerSession {
            consumer: Arc::new(consumer),
            handover,
            progress: HashMap::new(),
            last: HashMap::new(),
            dirty: BTreeMap::new(),
            poll: None,
            commit: None,
            is_paused: false,
            is_ready: false,
            lag_reported: None,
        })
    }

    pub(super) async fn run(
        &mut self,
        intake: &mut Intake<Position>,
        config: &Config,
        source: &str,
    ) -> Result<(), Error> {
        let mut stop = intake.stop();
        while !(intake.finished() && self.dirty.is_empty() && self.commit.is_none()) {
            if self.handover.broken.load(Atomic::Acquire) {
                return Err(Error::connection("partitions moved to another consumer with records in flight"));
            }
            self.pause_or_resume(intake.free_slots() >= usize::from(POLL_RECORDS_MAX)).await;
            self.begin();
            let stopping = intake.stopping();
            let busy = intake.pending() + self.dirty.len() + usize::from(self.commit.is_some());
            self.handover.busy.store(busy, Atomic::Release);
            tokio::select! {
                (position, outcome) = intake.settled() => {
                    self.settle(position, &outcome);
                    while let Some((position, outcome)) = intake.try_settled() {
                        self.settle(position, &outcome);
                    }
                }
                result = wait(&mut self.commit) => {
                    self.commit = None;
                    result.map_err(failed)?;
                }
                result = wait(&mut self.poll) => {
                    self.poll = None;
                    let records = result.map_err(failed)?;
                    self.adopt(&records, intake).await?;
                    self.report_lag(intake).await;
                    for record in records {
                        self.push(record, intake, config, source);
                    }
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }

    /// From the watermarks of the last responses: no request is sent.
    async fn report_lag(&mut self, intake: &Intake<Position>) {
        if self.lag_reported.is_some_and(|last| last.elapsed() < LAG_INTERVAL) {
            return;
        }
        self.lag_reported = Some(Instant::now());
        let partitions = self.consumer.lag().await;
        // A partition without a response yet is not counted: its lag comes with the next report.
        let events = partitions.values().filter_map(|partition| partition.lag).sum();
        intake.set_lag(events, u32::try_from(partitions.len()).unwrap_or(u32::MAX));
    }

    pub(super) async fn close(&mut self) -> Result<(), Error> {
        self.poll = None;
        self.handover.busy.store(0, Atomic::Release);
        self.consumer.close().await.map_err(failed)
    }

    /// Starts the next poll and the next commit. A poll runs all the time, because it keeps the membership.
    fn begin(&mut self) {
        if self.poll.is_none() {
            let consumer = Arc::clone(&self.consumer);
            self.poll = Some(Box::pin(async move {
                let records = consumer.poll(POLL_TIMEOUT).await;
                if records.as_ref().is_ok_and(Vec::is_empty) {
                    tokio::time::sleep(EMPTY_POLL_PAUSE).await;
                }
                records
            }));
        }
        if self.commit.is_none() && !self.dirty.is_empty() {
            let consumer = Arc::clone(&self.consumer);
            let offsets: Vec<_> = std::mem::take(&mut self.dirty).into_iter().map(offset).collect();
            self.commit = Some(Box::pin(async move { consumer.commit_offsets(offsets).await }));
        }
    }

    /// A window without room for a whole poll pauses the partitions.
    async fn pause_or_resume(&mut self, has_room: bool) {
        if self.is_paused != has_room {
            return;
        }
        for (topic, partitions) in self.consumer.assignment().await {
            match has_room {
                true => self.consumer.resume(&topic, &partitions).await,
                false => self.consumer.pause(&topic, &partitions).await,
            }
        }
        self.is_paused = !has_room;
    }

    /// Ready with the first assignment. Positions of new partitions are committed, so that a kill before their first record is
    /// settled skips nothing.
    async fn adopt(&mut self, records: &[ConsumerRecord], intake: &Intake<Position>) -> Result<(), Error> {
        if !self.handover.assigned.swap(false, Atomic::AcqRel) && self.is_ready {
            return Ok(());
        }
        let assignment = self.consumer.assignment().await;
        if self.is_paused {
            // Partitions that a rebalance brings are not paused, and the window is full.
            for (topic, partitions) in &assignment {
                self.consumer.pause(topic, partitions).await;
            }
        }
        let pairs = assignment
            .iter()
            .flat_map(|(topic, partitions)| partitions.iter().map(|partition| (topic.as_str(), *partition)));
        let pairs: Vec<(&str, i32)> = pairs.collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let committed = self.consumer.committed(&pairs).await.map_err(failed)?;
        for (topic, partition) in pairs {
            if committed.get(&(topic.to_owned(), partition)).is_some_and(|position| position.offset >= 0) {
                continue;
            }
            let mut of_poll = records.iter().filter(|record| *record.topic == *topic && record.partition == partition);
            let first = match of_poll.next() {
                Some(record) => Some(record.offset),
                None => self.consumer.position(topic, partition).await,
            };
            if let Some(first) = first.and_then(|first| u64::try_from(first).ok()) {
                self.dirty.entry((topic.into(), partition)).or_insert(first);
            }
        }
        self.is_ready = true;
        intake.ready();
        Ok(())
    }

    fn push(&mut self, record: ConsumerRecord, intake: &mut Intake<Position>, config: &Config, source: &str) {
        let partition: Partition = (Arc::clone(&record.topic), record.partition);
        let next = u64::try_from(record.offset).unwrap_or(0) + 1;
        // After a rebalance the partition may begin again.
        if self.last.insert(partition.clone(), next).is_some_and(|last| last >= next) {
            self.progress.remove(&partition);
        }
        let key = match (config.ordering, &record.key) {
            (Ordering::Unordered, Some(key)) => Some(String::from_utf8_lossy(key).into_owned()),
            (Ordering::Unordered, None) => None,
            (Ordering::Ordered, _) => Some(format!("{}/{}", record.topic, record.partition)),
        };
        self.progress.entry(partition).or_default().begin(next);
        let event = event_of(&record, source, config.key_type);
        intake.push(event, key.as_deref(), Position { topic: record.topic, partition: record.partition, next });
    }

    fn settle(&mut self, position: Position, outcome: &DeliveryResult) {
        if *outcome != DeliveryResult::Accepted {
            return;
        }
        let partition = (position.topic, position.partition);
        if let Some(next) = self.progress.get_mut(&partition).and_then(|progress| progress.settle(position.next)) {
            self.dirty.insert(partition, next);
        }
    }
}

fn offset(((topic, partition), next): (Partition, u64)) -> (TopicPartition, OffsetAndMetadata) {
    (TopicPartition::new(topic.as_ref(), partition), OffsetAndMetadata::new(i64::try_from(next).unwrap_or(i64::MAX)))
}

async fn wait<T>(future: &mut Option<Pin<Box<dyn Future<Output = T>>>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
