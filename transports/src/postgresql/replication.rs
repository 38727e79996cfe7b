//! Logical replication by `pgoutput`: each changed row is an event.
//!
//! The position (LSN) of a transaction is confirmed to the server once the sink accepted all events up to its commit, so after
//! a kill the server sends the rest again, by whole transactions.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use adapter::{DeliveryResult, Error, Intake};
use serde::Deserialize;

mod change;
mod pgoutput;
mod stream;

use super::connection::{PostgresqlConnection, quote_identifier};
use crate::offset_tracker::OffsetTracker;
use crate::ordering::Ordering;
use change::{CommitPosition, event_of, row_key};
use pgoutput::{Relation, RowChange, parse};
use stream::{ReplicationMessage, ReplicationStream};

/// A confirmed position reaches the server within this time.
const CONFIRM_PERIOD: Duration = Duration::from_millis(100);
/// The server hears of the adapter at least so often; it gives up after `wal_sender_timeout`, by default 60 s.
const STATUS_PERIOD: Duration = Duration::from_secs(10);
/// The server answers a status at once. Without any message for so long the connection is lost.
const SERVER_TIMEOUT: Duration = Duration::from_secs(120);
/// Events in flight up to which a stop waits for the end of the transaction, so that it is not sent again.
const STOP_EVENTS_MAX: usize = 4096;
/// An object of this name exists already.
const DUPLICATE_OBJECT: &str = "42710";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Replication {
    /// The replication slot. It is created if it is absent, and keeps changes while no adapter is connected.
    slot: String,
    publication: String,
    /// Tables of a publication that does not exist yet, as `TABLE` or `SCHEMA.TABLE`. Empty: all tables.
    #[serde(default)]
    tables: Vec<String>,
    /// `ordered` as committed, or `unordered` except for the changes of one row.
    #[serde(default)]
    ordering: Ordering,
}

impl Replication {
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if self.slot.is_empty() || self.slot.len() > 63 || !self.slot.bytes().all(is_allowed) {
            return Err(Error::config(format!(
                "ADAPTER_RECEIVER: replication.slot: {:?} is not up to 63 lower-case letters, digits and underscores",
                self.slot
            )));
        }
        Ok(())
    }

    /// Makes what is missing, and starts the stream. `has_run`: this process has used the slot.
    async fn start(&self, connection: &PostgresqlConnection, has_run: bool) -> Result<ReplicationStream, Error> {
        let mut stream = ReplicationStream::open(connection).await?;
        let name = self.publication.replace('\'', "''");
        let found = stream.query(&format!("SELECT 1 FROM pg_publication WHERE pubname = '{name}'")).await?;
        if found.rows == 0 {
            let tables: Vec<String> = self.tables.iter().map(|table| quote_path(table)).collect();
            let what = if tables.is_empty() { "ALL TABLES".to_owned() } else { format!("TABLE {}", tables.join(", ")) };
            let statement = format!("CREATE PUBLICATION {} FOR {what}", quote_identifier(&self.publication));
            stream.query(&statement).await?;
            tracing::info!(publication = self.publication, "publication was created");
        }
        // After the publication: the server looks it up as it was at the position of the slot.
        let create = format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT", self.slot);
        match stream.query(&create).await {
            Ok(_) if has_run => {
                tracing::error!(
                    slot = self.slot,
                    "the replication slot was dropped and is new; changes in between are lost"
                );
            }
            Ok(_) => {
                tracing::info!(slot = self.slot, "replication slot was created; changes from now on become events")
            }
            Err(error) if error.message.contains(DUPLICATE_OBJECT) => {}
            Err(error) => return Err(error),
        }
        let publication = self.publication.replace('"', "\"\"").replace('\'', "''");
        let start = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names '\"{publication}\"')",
            self.slot
        );
        stream.start_copy(&start).await?;
        Ok(stream)
    }

    pub(super) async fn receive(
        &self,
        connection: &PostgresqlConnection,
        has_run: &mut bool,
        intake: &mut Intake<u64>,
    ) -> Result<(), Error> {
        let stream = self.start(connection, *has_run).await?;
        *has_run = true;
        intake.ready();
        let session = ReplicationSession {
            stream,
            source: connection.source(),
            ordering: self.ordering,
            relations: HashMap::new(),
            transaction: None,
            commits: VecDeque::new(),
            progress: OffsetTracker::default(),
            events: 0,
            settled: 0,
            confirmed: 0,
            is_dirty: false,
        };
        session.run(intake).await
    }
}

fn quote_path(table: &str) -> String {
    let parts: Vec<String> = table.split('.').map(quote_identifier).collect();
    parts.join(".")
}

/// One stream of changes.
struct ReplicationSession {
    stream: ReplicationStream,
    source: String,
    ordering: Ordering,
    relations: HashMap<u32, Relation>,
    /// The transaction that is being received.
    transaction: Option<CommitPosition>,
    /// The last event of each received transaction, and the position after it.
    commits: VecDeque<(u64, u64)>,
    progress: OffsetTracker,
    /// Events of this stream, and how many of them are settled without a gap.
    events: u64,
    settled: u64,
    /// The position that the server may forget: never past an event that is not settled.
    confirmed: u64,
    /// The server does not know `confirmed` yet.
    is_dirty: bool,
}

impl ReplicationSession {
    async fn run(mut self, intake: &mut Intake<u64>) -> Result<(), Error> {
        let mut stop = intake.stop();
        let mut confirm = tokio::time::interval(CONFIRM_PERIOD);
        confirm.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_status = tokio::time::Instant::now();
        let mut last_message = last_status;
        loop {
            let stopping = intake.stopping();
            let ends_transaction = stopping && self.transaction.is_some() && intake.pending() < STOP_EVENTS_MAX;
            if intake.finished() && !ends_transaction {
                break;
            }
            let is_reading = intake.has_room() || ends_transaction;
            tokio::select! {
                settled = intake.settled() => {
                    let mut settled = Some(settled);
                    while let Some((event, outcome)) = settled {
                        self.settle(event, &outcome);
                        settled = intake.try_settled();
                    }
                }
                message = self.stream.message(), if is_reading => {
                    last_message = tokio::time::Instant::now();
                    let wants_status = self.take(message?, intake)?;
                    if wants_status {
                        last_status = tokio::time::Instant::now();
                        self.send_status(false).await?;
                    }
                }
                now = confirm.tick() => {
                    if !is_reading {
                        last_message = now;
                    } else if now.duration_since(last_message) > SERVER_TIMEOUT {
                        return Err(Error::connection(format!("PostgreSQL: no message of the server within {SERVER_TIMEOUT:?}")));
                    }
                    // Its answer shows that the connection lives, also while nothing changes.
                    let is_due = now.duration_since(last_status) > STATUS_PERIOD;
                    if self.is_dirty || is_due {
                        last_status = now;
                        self.send_status(is_due).await?;
                    }
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        self.send_status(false).await?;
        self.stream.close().await;
        Ok(())
    }

    /// True: the server asks for the status.
    fn take(&mut self, message: ReplicationMessage, intake: &mut Intake<u64>) -> Result<bool, Error> {
        match message {
            ReplicationMessage::KeepAlive { position, wants_reply } => {
                // Everything before this position was sent, and if it is settled too, the server may forget it.
                if self.transaction.is_none() && self.settled == self.events && position > self.confirmed {
                    self.confirmed = position;
                }
                Ok(wants_reply)
            }
            ReplicationMessage::Data(data) => {
                let change = parse(&data);
                let change = change.map_err(|error| Error::connection(format!("PostgreSQL: pgoutput: {error}")))?;
                self.apply(change, intake)?;
                Ok(false)
            }
        }
    }

    fn apply(&mut self, change: RowChange, intake: &mut Intake<u64>) -> Result<(), Error> {
        match change {
            RowChange::Begin { position, time } => {
                self.transaction = Some(CommitPosition { commit: position, time, row: 0 })
            }
            RowChange::Commit { end } => {
                self.transaction = None;
                // Transactions without events share an entry, so that many of them take no memory behind an unsettled event.
                match self.commits.back_mut() {
                    Some((last, known_end)) if *last == self.events => *known_end = end,
                    _ => self.commits.push_back((self.events, end)),
                }
                self.confirm();
            }
            RowChange::Relation(relation) => {
                self.relations.insert(relation.id, relation);
            }
            RowChange::Row(row) => {
                let Some(relation) = self.relations.get(&row.relation) else {
                    // To skip the row would confirm a change that no sink has seen.
                    return Err(Error::connection(format!(
                        "PostgreSQL: pgoutput: a row of relation {}, which the server has not described",
                        row.relation
                    )));
                };
                let key = match self.ordering {
                    Ordering::Ordered => "slot".to_owned(),
                    Ordering::Unordered => row_key(relation, &row),
                };
                let position = self.transaction.get_or_insert_default();
                position.row += 1;
                let event = event_of(&self.source, relation, &row, position);
                self.events += 1;
                self.progress.begin(self.events);
                intake.push(event, Some(&key), self.events);
            }
            RowChange::Truncate { relations } => {
                for relation in relations {
                    let row = pgoutput::Row::truncate(relation);
                    self.apply(RowChange::Row(row), intake)?;
                }
            }
            RowChange::Other => {}
        }
        Ok(())
    }

    fn settle(&mut self, event: u64, outcome: &DeliveryResult) {
        if *outcome == DeliveryResult::Accepted
            && let Some(moved) = self.progress.settle(event)
        {
            self.settled = moved;
            self.confirm();
        }
    }

    fn confirm(&mut self) {
        while let Some((last, end)) = self.commits.front().copied()
            && last <= self.settled
        {
            self.confirmed = self.confirmed.max(end);
            self.is_dirty = true;
            self.commits.pop_front();
        }
    }

    async fn send_status(&mut self, wants_reply: bool) -> Result<(), Error> {
        self.is_dirty = false;
        self.stream.send_status(self.confirmed, wants_reply).await
    }
}
