//! `sluicegate example`: the programs that the demo, the README and the tests run as instances.
//!
//! Plain threads and `std::net` on purpose: an instance is somebody else's program, so nothing of
//! ours may be what makes it work.

mod caller;
mod hello;
mod server;
mod sink;

use std::process::ExitCode;

/// Listens on $PORT of loopback (8080 without one) until SIGTERM.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ExampleProgram {
    /// Answers `Hello $TARGET from $K_REVISION`; `/env` answers the environment, `/slow?ms=N` waits first, `/alone?ms=N` too and fails unless it is alone
    Hello,
    /// Calls the URLs in $CALLS and answers what they said
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
