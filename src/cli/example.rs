//! `sluicegate example`: the programs that the demo, the README and the tests run as instances.
//!
//! Plain threads and `std::net` on purpose: an instance is a user's program, so it must not depend on our
//! code to work.

mod caller;
mod hello;
mod server;
mod sink;

use std::process::ExitCode;

/// Listens on $PORT of loopback (8080 without one) until SIGTERM.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ExampleProgram {
    /// Answers `Hello $TARGET from $K_REVISION`; `/env` answers the environment, `/slow?ms=N` waits first,
    /// `/alone?ms=N` waits too and fails unless it is the only request
    Hello,
    /// Calls the URLs in $CALLS and returns their responses
    Caller,
    /// Takes CloudEvents and prints one line each
    Sink {
        /// Answer every event with this status
        #[arg(long, default_value_t = 202)]
        status: u16,
    },
}

pub(crate) fn run(program: &ExampleProgram) -> ExitCode {
    let served = match program {
        ExampleProgram::Hello => server::serve(hello::answer),
        ExampleProgram::Caller => server::serve(|_| caller::answer()),
        ExampleProgram::Sink { status } => {
            let status = *status;
            server::serve(move |request| sink::answer(request, status))
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("example: {why}");
            ExitCode::FAILURE
        }
    }
}
