//! What the errors of JetStream mean for those who publish and for those who configure.

use std::error::Error;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use contract::event_store::{EventStoreError, ExternalStream};

use crate::limits::REQUEST_MAX;

/// An error that a server answered.
pub(crate) fn answered(stream: &ExternalStream, error: &ApiError) -> EventStoreError {
    let why = error.to_string();
    match error.error_code() {
        ErrorCode::CLUSTER_NO_PEERS | ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED => {
            EventStoreError::ReplicasMissing { wanted: stream.options.replicas, why }
        }
        ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::MAXIMUM_STREAMS_LIMIT
        | ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED => EventStoreError::Full { why },
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
            EventStoreError::NotEnabled { servers: stream.connection.address(), why }
        }
        ErrorCode::CLUSTER_NOT_AVAILABLE | ErrorCode::CLUSTER_NOT_LEADER | ErrorCode::STREAM_OFFLINE => {
            EventStoreError::NoLeader { stream: stream.name.to_string() }
        }
        _ => EventStoreError::Other(format!("stream {}: {why}", stream.name)),
    }
}

/// A request without an answer.
pub(crate) fn unanswered(stream: &ExternalStream, error: &dyn Error) -> EventStoreError {
    EventStoreError::Other(format!("stream {}: {error}", stream.name))
}

pub(crate) fn timed_out(stream: &ExternalStream) -> EventStoreError {
    EventStoreError::TimedOut { servers: stream.connection.address(), waited: REQUEST_MAX }
}

pub(crate) fn not_published(stream: &ExternalStream, error: &PublishError) -> EventStoreError {
    match error.kind() {
        // Nothing answers for the subject: only the leader of a stream does.
        PublishErrorKind::StreamNotFound => EventStoreError::NoLeader { stream: stream.name.to_string() },
        PublishErrorKind::TimedOut => timed_out(stream),
        _ => match error.source().and_then(|source| source.downcast_ref::<ApiError>()) {
            Some(error) => answered(stream, error),
            None => unanswered(stream, error),
        },
    }
}
