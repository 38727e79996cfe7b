//! Makes and deletes streams and consumers.

use std::error::Error;
use std::time::{Duration, SystemTime};

use async_nats::datetime::{DateTime, parse_rfc3339};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, ConsumerErrorKind, DiscardPolicy, Info, RetentionPolicy, StorageType, Stream,
};
use codec::record::time_text;
use contract::event_store::{ConsumerSpec, EventStoreError, ExternalStream, StreamReport};
use contract::initial_offset::InitialOffset;
use futures_util::StreamExt as _;

use crate::connections::{Connections, JetStreamConnection};
use crate::errors;
use crate::limits::{ACK_WAIT, UNKNOWN_CONSUMER_AGE};

/// Begins the name of each consumer of a Trigger: a stream may have consumers of other programs, too.
const CONSUMER_PREFIX: &str = "sluicegate-";

/// Creates the stream or changes its options, and deletes the consumers of Triggers that are not in `consumers`.
pub(crate) async fn ensure(
    connections: &Connections,
    stream: &ExternalStream,
    consumers: Option<&[Box<str>]>,
) -> Result<StreamReport, EventStoreError> {
    let connection = connections.open(&stream.connection).await?;
    let server = connection.client.server_info();
    if !server.jetstream {
        let why = format!("server {} runs without it", server.server_name);
        return Err(EventStoreError::NotEnabled { servers: stream.connection.address(), why });
    }
    let wanted = config(stream);
    let info = match get(&connection, stream).await? {
        None => {
            let created = connection.context.create_stream(wanted).await;
            created.map_err(|why| not_changed(stream, why.kind(), &why))?.cached_info().clone()
        }
        Some(found) if is_as(&found.cached_info().config, &wanted) => found.cached_info().clone(),
        Some(found) => {
            let config = changed(found.cached_info().config.clone(), &wanted);
            let updated = connection.context.update_stream(config).await;
            updated.map_err(|why| not_changed(stream, why.kind(), &why))?
        }
    };
    if let Some(kept) = consumers
        && let Some(found) = get(&connection, stream).await?
    {
        delete_unknown(stream, &found, kept).await?;
    }
    report(stream, &info, server.version)
}

/// Deletes the stream, if it exists.
pub(crate) async fn delete(connections: &Connections, stream: &ExternalStream) -> Result<(), EventStoreError> {
    let connection = connections.open(&stream.connection).await?;
    match connection.context.delete_stream(&stream.name).await {
        Ok(_) => Ok(()),
        Err(why) => match why.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(()),
            kind => Err(not_found(stream, &kind, &why)),
        },
    }
}

/// The consumer, which is created if it does not exist. A change of its limit is made.
pub(crate) async fn ensure_consumer(
    connections: &Connections,
    stream: &ExternalStream,
    spec: &ConsumerSpec,
) -> Result<(JetStreamConnection, PullConsumer), EventStoreError> {
    let connection = connections.open(&stream.connection).await?;
    let found = get(&connection, stream).await?;
    let found = found.ok_or_else(|| EventStoreError::StreamMissing { stream: stream.name.to_string() })?;
    let name = consumer_name(&spec.name);
    let unfinished_max = i64::try_from(spec.unfinished_max).unwrap_or(i64::MAX);
    let failed = |kind: ConsumerErrorKind, why: &dyn Error| match kind {
        ConsumerErrorKind::JetStream(error) => errors::answered(stream, &error),
        ConsumerErrorKind::TimedOut => errors::timed_out(stream),
        _ => errors::unanswered(stream, why),
    };
    let config = match found.get_consumer::<pull::Config>(&name).await {
        Ok(existing) if existing.cached_info().config.max_ack_pending == unfinished_max => {
            return Ok((connection, existing));
        }
        // Where it began cannot be changed, and need not.
        Ok(existing) => pull::Config {
            deliver_policy: existing.cached_info().config.deliver_policy,
            ..consumer_config(&name, spec, unfinished_max)?
        },
        Err(_) => consumer_config(&name, spec, unfinished_max)?, // another error occurs again below
    };
    let made = found.create_consumer(config).await;
    let made = made.map_err(|why| failed(why.kind(), &why))?;
    Ok((connection, made))
}

fn consumer_name(subscriber: &str) -> String {
    format!("{CONSUMER_PREFIX}{subscriber}")
}

fn consumer_config(name: &str, spec: &ConsumerSpec, unfinished_max: i64) -> Result<pull::Config, EventStoreError> {
    let deliver_policy = match spec.start {
        InitialOffset::Now => DeliverPolicy::New,
        InitialOffset::Earliest => DeliverPolicy::All,
        InitialOffset::At(ms) => {
            let text = time_text(ms).unwrap_or_default();
            let start_time =
                parse_rfc3339(&text).map_err(|why| EventStoreError::Other(format!("start time {ms}: {why}")))?;
            DeliverPolicy::ByStartTime { start_time }
        }
    };
    Ok(pull::Config {
        durable_name: Some(name.to_owned()),
        deliver_policy,
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: unfinished_max,
        ..pull::Config::default()
    })
}

async fn get(connection: &JetStreamConnection, stream: &ExternalStream) -> Result<Option<Stream>, EventStoreError> {
    match connection.context.get_stream(&stream.name).await {
        Ok(found) => Ok(Some(found)),
        Err(why) => match why.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            kind => Err(not_found(stream, &kind, &why)),
        },
    }
}

fn not_found(stream: &ExternalStream, kind: &GetStreamErrorKind, why: &dyn Error) -> EventStoreError {
    match kind {
        GetStreamErrorKind::JetStream(error) => errors::answered(stream, error),
        // Neither the leader of the stream nor that of the cluster answers.
        GetStreamErrorKind::Request => EventStoreError::NoLeader { stream: stream.name.to_string() },
        _ => errors::unanswered(stream, why),
    }
}

fn not_changed(stream: &ExternalStream, kind: CreateStreamErrorKind, why: &dyn Error) -> EventStoreError {
    match kind {
        CreateStreamErrorKind::JetStream(error) => errors::answered(stream, &error),
        CreateStreamErrorKind::TimedOut => errors::timed_out(stream),
        _ => errors::unanswered(stream, why),
    }
}

/// Events are kept until every consumer has acknowledged them, and new ones are rejected when there is no space; with a
/// retention of bytes, the oldest ones are dropped instead.
fn config(stream: &ExternalStream) -> Config {
    let options = &stream.options;
    let retention_time = options.retention_time;
    let duplicate_window = if retention_time.is_zero() {
        options.duplicate_window
    } else {
        options.duplicate_window.min(retention_time) // the servers demand that
    };
    Config {
        name: stream.name.to_string(),
        description: Some(stream.description.to_string()),
        subjects: vec![stream.name.to_string()],
        retention: RetentionPolicy::Interest,
        discard: if options.retention_bytes == 0 { DiscardPolicy::New } else { DiscardPolicy::Old },
        max_bytes: match options.retention_bytes {
            0 => -1,
            bytes => i64::try_from(bytes).unwrap_or(i64::MAX),
        },
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        max_age: retention_time,
        storage: StorageType::File,
        num_replicas: usize::from(options.replicas),
        duplicate_window,
        ..Config::default()
    }
}

fn is_as(found: &Config, wanted: &Config) -> bool {
    let key = |config: &Config| {
        (config.discard, config.max_bytes, config.max_age, config.num_replicas, config.duplicate_window)
    };
    key(found) == key(wanted) && found.description == wanted.description
}

/// The options that are ours; an operator may have changed others.
fn changed(found: Config, wanted: &Config) -> Config {
    Config {
        description: wanted.description.clone(),
        discard: wanted.discard,
        max_bytes: wanted.max_bytes,
        max_age: wanted.max_age,
        num_replicas: wanted.num_replicas,
        duplicate_window: wanted.duplicate_window,
        ..found
    }
}

async fn delete_unknown(stream: &ExternalStream, found: &Stream, kept: &[Box<str>]) -> Result<(), EventStoreError> {
    let mut consumers = found.consumers();
    while let Some(consumer) = consumers.next().await {
        let consumer = consumer.map_err(|why| errors::unanswered(stream, &why))?;
        let subscriber = consumer.name.strip_prefix(CONSUMER_PREFIX);
        let is_unknown = subscriber.is_some_and(|name| kept.iter().all(|one| **one != *name));
        if is_unknown && age(consumer.created) >= UNKNOWN_CONSUMER_AGE {
            let deleted = found.delete_consumer(&consumer.name).await;
            deleted.map_err(|why| errors::unanswered(stream, &why))?;
            let (stream, pending) = (&*stream.description, consumer.num_pending);
            tracing::info!(stream, consumer = consumer.name, pending, "consumer deleted: its Trigger is");
        }
    }
    Ok(())
}

fn age(created: DateTime) -> Duration {
    SystemTime::now().duration_since(SystemTime::from(created)).unwrap_or_default()
}

/// The state of a stream that takes events.
fn report(stream: &ExternalStream, info: &Info, server_version: String) -> Result<StreamReport, EventStoreError> {
    let current_replicas = match &info.cluster {
        Some(cluster) if cluster.leader.as_ref().is_none_or(String::is_empty) => {
            return Err(EventStoreError::NoLeader { stream: stream.name.to_string() });
        }
        Some(cluster) => 1 + cluster.replicas.iter().filter(|peer| peer.current && !peer.offline).count(),
        None => 1,
    };
    Ok(StreamReport { server_version, current_replicas, bytes: info.state.bytes })
}
