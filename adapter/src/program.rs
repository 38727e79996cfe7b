//! The program: which adapter runs, and how it ends.

use std::process::ExitCode;

use futures_util::future::LocalBoxFuture;

use crate::error::Error;
use crate::responder::{self, Responder};
use crate::traits::{Receiver, Sender};

/// A transport of a program with several.
pub struct Kind {
    name: &'static str,
    run: fn() -> LocalBoxFuture<'static, Result<(), Error>>,
}

/// Names a transport for [`main_of`].
pub const fn kind<R: Receiver, S: Sender>(name: &'static str) -> Kind {
    Kind { name, run: || Box::pin(crate::run::run::<R, S>()) }
}

/// Names an adapter that answers requests itself, for [`main_of`].
pub const fn responder<R: Responder>(name: &'static str) -> Kind {
    Kind { name, run: || Box::pin(responder::run::<R>()) }
}

/// The program of one transport.
pub fn main<R: Receiver, S: Sender>() -> ExitCode {
    start(&kind::<R, S>("adapter"))
}

/// The program of several transports: the first argument names the transport.
pub fn main_of(kinds: &[Kind]) -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    match kinds.iter().find(|kind| kind.name == name) {
        Some(kind) => start(kind),
        None => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
            eprintln!("transport {name:?} is unknown; give one of: {}", names.join(", "));
            ExitCode::from(2)
        }
    }
}

fn start(kind: &Kind) -> ExitCode {
    crate::log::init(std::env::var("ADAPTER_LOG").ok().as_deref());
    crate::tls::install_provider();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = tokio::task::LocalSet::new().block_on(&runtime, (kind.run)());
            // A blocked read of stdin must not hold the exit.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Error::config(format!("start the runtime: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(transport = kind.name, reason = error.reason, error = %error.message, "adapter ends");
            ExitCode::FAILURE
        }
    }
}
