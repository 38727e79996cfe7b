//! Redis streams: a consumer group as receiver, XADD as sender.
//!
//! An entry is acknowledged (XACK) after the sink accepted it. Delivered entries without an acknowledgement are read first after a
//! start, so order holds through a kill.

use std::pin::Pin;
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Event, Intake, SecretFile};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd};
use serde::Deserialize;

mod connection;
mod entry;
mod sender;

use connection::RedisStreamConnection;
use entry::{RedisEntry, entries, event_of};
pub(crate) use sender::RedisStreamSender;

/// XREADGROUP returns after this time without entries, so that a stop is seen.
const BLOCK_MS: usize = 1000;
/// Entries of other consumers of the group that were idle for so long are taken over at a start.
const CLAIM_IDLE: Duration = Duration::from_secs(60);
/// Entries of one read.
const READ_MAX: usize = 512;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// `redis://HOST:PORT[/DB]`, `rediss://…` for TLS, or `HOST:PORT`.
    address: String,
    user: Option<String>,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    stream: String,
    group: String,
    /// The name of this consumer in the group. Default: the name of the object.
    consumer: Option<String>,
    /// Where a new group begins: `$` at the end, `0` at the start.
    #[serde(default = "end")]
    start_id: String,
}

impl Config {
    fn connection(&self) -> RedisStreamConnection {
        RedisStreamConnection {
            address: self.address.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls.clone(),
        }
    }
}

fn end() -> String {
    "$".to_owned()
}

pub(crate) struct RedisStreamReceiver {
    config: Config,
    consumer: String,
    source: String,
}

/// A read that must not be dropped half-way: its entries are assigned to this consumer once the server sends them.
type Read = Pin<Box<dyn Future<Output = Result<Value, RedisError>>>>;

impl adapter::Receiver for RedisStreamReceiver {
    type Config = Config;
    /// The id of the entry.
    type Token = String;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        let consumer = config.consumer.clone().unwrap_or_else(|| context.name.clone());
        let source = format!("redis://{}/{}", config.connection().authority()?, config.stream);
        Ok(RedisStreamReceiver { config, consumer, source })
    }

    /// Ids of entries stay.
    fn qos_max(&self) -> u8 {
        2
    }

    async fn receive(&mut self, intake: &mut Intake<String>) -> Result<(), Error> {
        let mut acks = self.config.connection().open().await?;
        let reader = self.config.connection().open().await?;
        self.create_group(&mut acks).await?;
        self.claim(&mut acks).await?;
        intake.ready();
        let mut stop = intake.stop();
        // First what this consumer has not acknowledged, then new entries.
        let mut after = Some("0".to_owned());
        let mut read: Option<Read> = None;
        while !intake.finished() {
            if read.is_none() && intake.has_room() {
                read = Some(self.read(reader.clone(), after.as_deref(), intake.free_slots().min(READ_MAX)));
            }
            let stopping = intake.stopping();
            let is_reading = read.is_some() && !stopping;
            tokio::select! {
                (id, outcome) = intake.settled() => self.acknowledge(&mut acks, id, outcome, intake).await?,
                reply = poll(&mut read), if is_reading => {
                    read = None;
                    let read = entries(reply.map_err(connection::failed)?);
                    if let Some(id) = &mut after {
                        match read.last() {
                            Some(last) => id.clone_from(&last.id),
                            None => after = None,
                        }
                    }
                    self.push(read, intake, &mut acks).await?;
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }
}

async fn poll(read: &mut Option<Read>) -> Result<Value, RedisError> {
    match read {
        Some(read) => read.await,
        None => std::future::pending().await,
    }
}

impl RedisStreamReceiver {
    async fn create_group(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        let mut command = cmd("XGROUP");
        command
            .arg("CREATE")
            .arg(&self.config.stream)
            .arg(&self.config.group)
            .arg(&self.config.start_id)
            .arg("MKSTREAM");
        match command.query_async::<()>(connection).await {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(connection::failed(error)),
            _ => Ok(()),
        }
    }

    /// Takes over what dead consumers of the group left.
    async fn claim(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        let mut cursor = "0-0".to_owned();
        loop {
            let mut command = cmd("XAUTOCLAIM");
            command.arg(&self.config.stream).arg(&self.config.group).arg(&self.consumer);
            command.arg(CLAIM_IDLE.as_millis() as u64).arg(&cursor).arg("COUNT").arg(READ_MAX).arg("JUSTID");
            let reply: Value = match command.query_async(connection).await {
                Ok(reply) => reply,
                // Redis before 6.2 does not have the command.
                Err(error) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::ResponseError) => {
                    return Ok(());
                }
                Err(error) => return Err(connection::failed(error)),
            };
            let next = match &reply {
                Value::Array(parts) => parts.first().map(entry::text).unwrap_or_default(),
                _ => String::new(),
            };
            if next.is_empty() || next == "0-0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn read(&self, mut connection: MultiplexedConnection, after: Option<&str>, count: usize) -> Read {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.config.group).arg(&self.consumer).arg("COUNT").arg(count.max(1));
        if after.is_none() {
            command.arg("BLOCK").arg(BLOCK_MS);
        }
        command.arg("STREAMS").arg(&self.config.stream).arg(after.unwrap_or(">"));
        Box::pin(async move { command.query_async(&mut connection).await })
    }

    async fn push(
        &self,
        read: Vec<RedisEntry>,
        intake: &mut Intake<String>,
        acks: &mut MultiplexedConnection,
    ) -> Result<(), Error> {
        for entry in read {
            if entry.fields.is_none() {
                // The entry was deleted from the stream before it was acknowledged: nothing is left to deliver.
                self.xack(acks, &[entry.id]).await?;
                continue;
            }
            let event: Event = event_of(&entry, &self.source);
            intake.push(event, Some(&self.config.stream), entry.id);
        }
        Ok(())
    }

    /// Acknowledges this entry and what is settled with it in one command.
    async fn acknowledge(
        &self,
        acks: &mut MultiplexedConnection,
        id: String,
        outcome: DeliveryResult,
        intake: &mut Intake<String>,
    ) -> Result<(), Error> {
        let mut accepted = Vec::new();
        let mut next = Some((id, outcome));
        while let Some((id, outcome)) = next {
            // Other outcomes stay in the list of pending entries.
            if outcome == DeliveryResult::Accepted {
                accepted.push(id);
            }
            next = intake.try_settled();
        }
        self.xack(acks, &accepted).await
    }

    async fn xack(&self, acks: &mut MultiplexedConnection, ids: &[String]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut command = cmd("XACK");
        command.arg(&self.config.stream).arg(&self.config.group).arg(ids);
        command.query_async::<()>(acks).await.map_err(connection::failed)
    }
}
