//! The part of an event adapter that does not depend on its protocol.
//!
//! The author of a transport writes a configuration type, one constructor and one loop; this crate does the rest: the
//! environment, CloudEvents over HTTP, retries, order, dead letters, health, metrics, signals and logs. `main` is one call:
//!
//! ```no_run
//! # use adapter::{Context, Error, Event, Intake, NoSender, Receiver};
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config { greeting: String }
//! struct Greeter(Config);
//!
//! impl Receiver for Greeter {
//!     type Config = Config;
//!     type Token = ();
//!     fn new(config: Config, _: &Context) -> Result<Self, Error> { Ok(Greeter(config)) }
//!     async fn receive(&mut self, intake: &mut Intake<()>) -> Result<(), Error> {
//!         intake.ready();
//!         let event = Event::new("dev.example.greeting", "/greeter", "1").with_data("text/plain", self.0.greeting.clone());
//!         intake.push(event, None, ());
//!         intake.settle_all().await;
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode { adapter::main::<Greeter, NoSender>() }
//! ```
//!
//! docs/reference/adapters.md specifies the contract for adapters in any language.

mod binding;
mod config;
mod delivery;
mod error;
mod event;
mod intake;
mod json;
pub mod limits;
mod log;
mod parked;
mod program;
mod responder;
mod response;
mod run;
mod secret;
pub mod server;
mod session;
mod sink;
mod sink_config;
mod sink_reply;
mod status;
pub mod tls;
mod trace;
mod traits;

pub use binding::{Headers, MessageMode, decode_value, encode_value, from_headers, from_http};
pub use config::Context;
pub use error::{Error, SendError};
pub use event::{Event, Value};
pub use intake::{DeliveryResult, Intake, Stop};
pub use json::{from_batch, from_json, to_batch, to_json};
pub use parked::append_line;
pub use program::{Kind, kind, main, main_of, responder};
pub use responder::{Responder, SinkClient};
pub use secret::{SecretFile, directory_file};
pub use sink_reply::SinkReply;
pub use trace::child_of;
pub use traits::{NoReceiver, NoSender, Receiver, Sender};
