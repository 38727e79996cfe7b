//! A core's events as a whole: its logs, their deliveries and the door.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ring::{Ring, prefetch};
use wal::{AppendError, Log, Position};

use super::admission::Porter;
use super::cloudevent::Event;
use super::delivery::{Desk, Post};
use super::ingress::{self, Intake, Refusal};
use super::journal::Journal;
use super::keeper::{Claim, Keeper, LogFailed, wall_clock_ms};
use super::limits::{RECLAIM_EVERY, SIGNAL_AGAIN};
use super::stalled::{Activity, Phase};
use super::types::Types;
use super::{Answer, companions};
use crate::counters::CoreCounters;
use crate::outcomes::Key;
use crate::signal::{Signal, Signals};
use crate::table::{Durability, Stream, Table};

/// Everything of one core that has to do with events.
pub struct Events<P> {
    ring: Ring,
    /// The first takes appends; the others belonged to cores that are no more, and run empty.
    logs: Vec<Kept<P>>,
    home: Rc<Keeper>,
    porter: Porter,
    rng: RefCell<fastrand::Rng>,
}

/// A log, the deliveries out of it, and what is noted of them: in the log itself, since a note names an event by its place there.
struct Kept<P> {
    keeper: Rc<Keeper>,
    desk: Rc<Desk<P>>,
    journal: Rc<Journal>,
}

impl<P: Post + Clone> Events<P> {
    /// Takes over `home` and the logs that `others` left, and starts their tasks.
    pub fn open(ring: &Ring, home: Log, others: Vec<Log>, post: &P, seed: u64) -> Rc<Self> {
        let home = Keeper::new(ring, home);
        let mut keepers = vec![Rc::clone(&home)];
        keepers.extend(others.into_iter().map(|log| Keeper::new(ring, log)));
        keepers.iter().enumerate().for_each(|(number, keeper)| keeper.set_number(number));
        let mut rng = fastrand::Rng::with_seed(seed);
        let logs = keepers.into_iter().map(|keeper| {
            let journal = Journal::new(&keeper);
            let kept = Some(Rc::clone(&journal));
            let desk = Desk::new(ring, &keeper, &home, kept, post.clone(), rng.u64(..));
            Kept { keeper, desk, journal }
        });
        let logs = logs.collect();
        let (porter, rng) = (Porter::default(), RefCell::new(rng));
        Rc::new(Self { ring: ring.clone(), logs, home, porter, rng })
    }

    /// Starts the tasks that own the logs. A log that fails is reported until somebody hears it.
    pub fn start(self: &Rc<Self>, core: usize, signals: &Signals, counters: &Arc<CoreCounters>) {
        self.ring.spawn(Rc::clone(self).tend(Arc::clone(counters)));
        for Kept { keeper, desk, journal } in &self.logs {
            let (journal, ring) = (Rc::clone(journal), self.ring.clone());
            self.ring.spawn(async move { journal.keep(&ring).await });
            let (keeper, ring, signals) = (Rc::clone(keeper), self.ring.clone(), signals.clone());
            self.ring.spawn(async move {
                let LogFailed { reason } = keeper.run().await;
                if keeper.is_released() {
                    return;
                }
                tracing::error!(core, %reason, "the log failed: nothing more is accepted");
                while !signals.send(Signal::LogFailed { core, reason: reason.clone() }) {
                    ring.sleep(SIGNAL_AGAIN).await;
                }
            });
            let desk = Rc::clone(desk);
            self.ring.spawn(async move { desk.tidy().await });
        }
    }

    /// Once in [`RECLAIM_EVERY`]: retention, space, files, counters; until the logs are another process's.
    async fn tend(self: Rc<Self>, counters: Arc<CoreCounters>) {
        while !self.home.is_released() {
            for Kept { keeper, desk, .. } in self.logs.iter().filter(|kept| !kept.keeper.is_released()) {
                desk.retain(wall_clock_ms());
                keeper.tend();
            }
            let stats: Vec<_> = self.logs.iter().map(|kept| kept.keeper.log().stat()).collect();
            let failed = self.logs.iter().filter(|kept| kept.keeper.log().poison().is_some()).count();
            counters.log.show(&stats, failed as u64);
            self.ring.sleep(RECLAIM_EVERY).await;
        }
    }

    /// Makes the running subscribers those of the table: call it when the core's bell rings. What fails
    /// for one stream is done for the others.
    pub fn sync(&self, table: &Arc<Table>) -> Result<(), AppendError> {
        self.logs.iter().map(|kept| kept.desk.sync(table)).fold(Ok(()), Result::and)
    }

    /// For each log: what a subscriber has still to get, by its place and by the counters.
    #[cfg(test)]
    pub(super) fn outstanding(&self, stream: &Stream, subscriber: &str) -> Vec<(u64, u64)> {
        self.logs.iter().filter_map(|kept| kept.desk.outstanding(stream, subscriber)).collect()
    }

    /// An event must not be stored before all who are to get it are registered (EV-TRG-12).
    fn prepare(&self, table: &Arc<Table>, stream: &Stream) -> Result<(), AppendError> {
        let synced = self.sync(table);
        let is_ready = self.logs.first().is_some_and(|kept| kept.desk.serves(stream));
        if is_ready { Ok(()) } else { synced }
    }

    /// Starts no more deliveries; resolves once those under way have ended and the bookmarks are durable.
    pub async fn drain(&self) {
        for Kept { desk, journal, .. } in &self.logs {
            desk.drain().await;
            journal.write();
        }
        for Kept { keeper, .. } in &self.logs {
            keeper.settle().await;
        }
    }

    /// Gives the logs to another process, after [`Events::drain`].
    pub async fn release(&self) {
        for Kept { keeper, .. } in &self.logs {
            if let Err(why) = keeper.release().await {
                tracing::error!(%why, "a log cannot be handed over");
            }
        }
    }

    /// Answers one request of the events listener. Method and path as they stand in the request line.
    pub async fn answer<'a>(
        &self,
        table: &'a Arc<Table>,
        method: &str,
        path: &str,
        headers: &'a [(&'a str, &'a [u8])],
        body: &'a [u8],
    ) -> Answer {
        let began = self.ring.now();
        let stream = ingress::find(table, path);
        if let Some(stream) = stream {
            self.home.look_ahead(stream);
        }
        let stream_at = stream.map_or(0, |stream| Arc::as_ptr(stream).addr());
        let work = Activity {
            phase: Phase::Intake,
            log: 0,
            stream: stream_at,
            subscriber: 0,
            position: Position::ORIGIN,
        };
        let working = self.ring.heartbeat().begin(work.encode());
        let judged = self.judge(method, stream, headers, body);
        drop(working);
        let answer = match judged {
            Err(refusal) => ingress::refused(&refusal),
            Ok(intake) => {
                let beside = companions::select(headers.iter().copied(), None, &mut self.rng.borrow_mut());
                let (tally, events) = (&intake.stream.tally, intake.events.len() as u64);
                if intake.is_latin1 {
                    tally.latin1.fetch_add(1, Relaxed);
                }
                tally.stored.look_ahead();
                let inside = ingress::from_inside(table, headers);
                let answer = self.take_in(table, intake, &beside, inside).await;
                tally.stored.note_each(events, &Key::of(answer.status), self.ring.now() - began);
                answer
            }
        };
        if let Some(stream) = stream.filter(|_| answer.status >= 400) {
            stream.tally.refused.fetch_add(1, Relaxed);
        }
        answer
    }

    /// Who it is before what it says, so that a stranger learns nothing; what it says before whether he may.
    fn judge<'a>(
        &self,
        method: &str,
        stream: Option<&'a Arc<Stream>>,
        headers: &'a [(&'a str, &'a [u8])],
        body: &'a [u8],
    ) -> Result<Intake<'a>, Refusal> {
        let stream = ingress::addressed(method, stream)?;
        prefetch(&*stream.tally);
        let Some(admission) = &stream.admission else { return ingress::read(stream, headers, body) };
        let count = |refusal| {
            stream.tally.unauthorized.fetch_add(1, Relaxed);
            refusal
        };
        let sender = self.porter.identify(admission, headers, wall_clock_ms() / 1000);
        let sender = sender.map_err(|why| count(why.into()))?;
        let intake = ingress::read(stream, headers, body)?;
        if admission.admits(&sender.subject, &intake.events) {
            return Ok(intake);
        }
        Err(count(Refusal::Forbidden { subject: sender.subject.clone() }))
    }

    /// Takes in a record that is an event of this stream already: a replay. It counts against the quota like
    /// any other, and is always durable before it is acknowledged.
    pub async fn copy(&self, table: &Arc<Table>, path: &str, record: &[u8]) -> Answer {
        let Some(stream) = ingress::find(table, path) else {
            return ingress::refused(&ingress::Refusal::UnknownPath);
        };
        if let Some(refused) = over_quota(stream) {
            stream.tally.refused.fetch_add(1, Relaxed);
            return refused;
        }
        let appended = self.prepare(table, stream).and_then(|()| {
            let feed = self.home.feed_of(stream)?;
            self.home.append(&feed, &[&[record]])
        });
        self.acknowledge(stream, 1, appended, Durability::default()).await
    }

    /// Appends, waits for the disk, and only then answers 202 (EV-RTE-02, DP-ACK-02); unless the stream's owner
    /// wants it sooner.
    ///
    /// `inside`: from which namespace one of our streams sends it on. Within a namespace no quota refuses that, because
    /// what is kept does not become more; and a full log has room for it still.
    async fn take_in(
        &self,
        table: &Arc<Table>,
        intake: Intake<'_>,
        beside: &[super::record::Companion<'_>],
        inside: Option<&str>,
    ) -> Answer {
        let Intake { stream, events, .. } = intake;
        if events.is_empty() {
            return ingress::accepted(); // an empty batch
        }
        if inside != Some(stream.namespace())
            && let Some(refused) = over_quota(stream)
        {
            return refused;
        }
        let claim = if inside.is_some() { Claim::Onward } else { Claim::New };
        if let Some(types) = &stream.types {
            events.iter().for_each(|entering| note_type(types, &entering.event, ""));
        }
        let patience = stream.keeping.durability.patience();
        let appended = self.prepare(table, stream).and_then(|()| {
            let heads: Vec<Vec<u8>> = events.iter().map(|e| e.head(beside)).collect();
            let parts: Vec<[&[u8]; 2]> =
                heads.iter().zip(&events).map(|(head, e)| [&**head, e.event.data.bytes()]).collect();
            let records: Vec<&[&[u8]]> = parts.iter().map(|parts| &parts[..]).collect();
            let feed = self.home.feed_of(stream)?;
            self.home.append_within(&feed, &records, claim, patience.unwrap_or_default())
        });
        self.acknowledge(stream, events.len() as u64, appended, stream.keeping.durability).await
    }

    async fn acknowledge(
        &self,
        stream: &Stream,
        count: u64,
        appended: Result<Range<Position>, AppendError>,
        durability: Durability,
    ) -> Answer {
        let end = match appended {
            Ok(range) => range.end,
            Err(why) => return ingress::not_stored(&why),
        };
        if durability.patience().is_some() {
            stream.tally.accepted.fetch_add(count, Relaxed);
            stream.tally.accepted_unflushed.fetch_add(count, Relaxed);
            return ingress::accepted();
        }
        match self.home.durable(end).await {
            Ok(()) => {
                stream.tally.accepted.fetch_add(count, Relaxed);
                ingress::accepted()
            }
            Err(failed) => ingress::unavailable(&failed.to_string()),
        }
    }
}

/// Tells of the event's type, if it is a new one; `by` names the subscriber whose answer it is.
pub(super) fn note_type(types: &Types, event: &Event<'_>, by: &str) {
    let attribute = |name| event.attribute(name).unwrap_or_default();
    let schema = if event.attribute("specversion") == Some("0.3") { "schemaurl" } else { "dataschema" };
    types.note(attribute("type"), attribute("source"), attribute(schema), by);
}

fn over_quota(stream: &Stream) -> Option<Answer> {
    let quota = stream.quota.exhausted()?;
    stream.tally.over_quota.fetch_add(1, Relaxed);
    Some(ingress::over_quota(quota))
}
