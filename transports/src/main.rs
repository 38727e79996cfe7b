//! `sluicegate-adapters KIND`: the built-in transports, one program, each behind a cargo feature.
//!
//! The configuration comes from the environment as docs/reference/adapters.md says; KIND only says which transport runs.

use std::process::ExitCode;

use adapter::{Kind, NoSender, kind, responder};

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "amqp10")]
mod amqp10;
#[cfg(any(feature = "s3", feature = "sqs"))]
mod aws;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "github")]
mod github;
#[cfg(any(feature = "github", feature = "http"))]
mod hmac;
#[cfg(feature = "http")]
mod http_listener;
#[cfg(feature = "jsonata")]
mod jsonata;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "file", feature = "kafka", feature = "postgresql"))]
mod offset_tracker;
#[cfg(any(feature = "kafka", feature = "nats", feature = "postgresql"))]
mod ordering;
#[cfg(feature = "postgresql")]
mod postgresql;
#[cfg(feature = "redis")]
mod redis_stream;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "sqs")]
mod sqs;
mod timer;

const KINDS: &[Kind] = &[
    kind::<timer::TimerReceiver, NoSender>("timer"),
    #[cfg(feature = "http")]
    kind::<http_listener::HttpReceiver, NoSender>("http"),
    #[cfg(feature = "jsonata")]
    responder::<jsonata::Transformer>("jsonata"),
    #[cfg(feature = "github")]
    responder::<github::Webhook>("github"),
    #[cfg(feature = "file")]
    kind::<file::FileReceiver, file::FileSender>("file"),
    #[cfg(feature = "nats")]
    kind::<nats::NatsReceiver, nats::NatsSender>("nats"),
    #[cfg(feature = "redis")]
    kind::<redis_stream::RedisStreamReceiver, redis_stream::RedisStreamSender>("redis"),
    #[cfg(feature = "mqtt")]
    kind::<mqtt::MqttReceiver, mqtt::MqttSender>("mqtt"),
    #[cfg(feature = "amqp")]
    kind::<amqp::AmqpReceiver, amqp::AmqpSender>("amqp"),
    #[cfg(feature = "amqp10")]
    kind::<amqp10::Amqp10Receiver, amqp10::Amqp10Sender>("amqp10"),
    #[cfg(feature = "kafka")]
    kind::<kafka::KafkaReceiver, kafka::KafkaSender>("kafka"),
    #[cfg(feature = "postgresql")]
    kind::<postgresql::PostgresqlReceiver, postgresql::PostgresqlSender>("postgresql"),
    #[cfg(feature = "s3")]
    kind::<s3::S3Receiver, s3::S3Sender>("s3"),
    #[cfg(feature = "sqs")]
    kind::<sqs::SqsReceiver, sqs::SqsSender>("sqs"),
];

fn main() -> ExitCode {
    adapter::main_of(KINDS)
}
