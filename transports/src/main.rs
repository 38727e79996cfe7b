//! `sluicegate-adapters KIND`: the built-in transports, one program, each behind a cargo feature.
//!
//! The configuration comes from the environment as docs/reference/adapters.md says; KIND only says which transport runs.

use std::process::ExitCode;

use adapter::{Kind, NoSender, kind};

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "http")]
mod http_listener;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgresql")]
mod postgresql;
#[cfg(any(feature = "file", feature = "kafka"))]
mod progress;
#[cfg(feature = "redis")]
mod redis_stream;
mod timer;

const KINDS: &[Kind] = &[
    kind::<timer::Receiver, NoSender>("timer"),
    #[cfg(feature = "http")]
    kind::<http_listener::Receiver, NoSender>("http"),
    #[cfg(feature = "file")]
    kind::<file::Receiver, file::Sender>("file"),
    #[cfg(feature = "nats")]
    kind::<nats::Receiver, nats::Sender>("nats"),
    #[cfg(feature = "redis")]
    kind::<redis_stream::Receiver, redis_stream::Sender>("redis"),
    #[cfg(feature = "mqtt")]
    kind::<mqtt::Receiver, mqtt::Sender>("mqtt"),
    #[cfg(feature = "amqp")]
    kind::<amqp::Receiver, amqp::Sender>("amqp"),
    #[cfg(feature = "kafka")]
    kind::<kafka::Receiver, kafka::Sender>("kafka"),
    #[cfg(feature = "postgresql")]
    kind::<postgresql::Receiver, postgresql::Sender>("postgresql"),
];

fn main() -> ExitCode {
    adapter::main_of(KINDS)
}
