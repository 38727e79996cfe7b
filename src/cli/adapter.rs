//! `sluicegate adapter KIND`: runs the program of the built-in transports, which is installed next to this one.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "sluicegate-adapters";

#[derive(Debug, clap::Args)]
pub(crate) struct AdapterArgs {
    /// The transport: amqp, amqp10, file, http, kafka, mqtt, nats, postgresql, redis, s3, sqs or timer
    #[arg(value_name = "KIND")]
    kind: String,
}

/// Replaces this process. The configuration is in the environment (docs/reference/adapters.md).
pub(crate) fn run(args: &AdapterArgs) -> ExitCode {
    let path = match std::env::current_exe() {
        Ok(own) => own.with_file_name(PROGRAM),
        Err(error) => {
            complain!("find the directory of this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    let error = Command::new(&path).arg(&args.kind).exec();
    complain!("run {}: {error}; install {PROGRAM} next to sluicegate", path.display());
    ExitCode::FAILURE
}
