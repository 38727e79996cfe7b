//! A probe that runs a command: it passes if the exit status is 0; otherwise the output says why.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use tokio::net::unix::pipe;
use tokio::task::coop::consume_budget;

use crate::launch::launcher::Launcher;
use crate::limits::PROBE_OUTPUT_BYTES_MAX;
use crate::process::child::{ChildGuard, exited, pidfd};

/// Runs `command` as the instance's own are run. An error is what a person would look for.
pub(crate) async fn run_probe(
    launcher: &Launcher,
    command: &[String],
    environment: &[(String, String)],
) -> Result<(), String> {
    let (status, said) = run(launcher, command, environment).await.map_err(|why| why.to_string())?;
    match said.trim() {
        _ if status.success() => Ok(()),
        "" => Err(format!("the command failed with {status}")),
        said => Err(format!("the command failed with {status}: {said}")),
    }
}

async fn run(
    launcher: &Launcher,
    command: &[String],
    environment: &[(String, String)],
) -> io::Result<(ExitStatus, String)> {
    let (reader, writer) = io::pipe()?;
    // An attempt that times out leaves no process behind: each would leave one more.
    let mut probe = ChildGuard(launcher.start_in_container(command, environment, writer)?);
    let pidfd = pidfd(&probe.0)?;
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    let mut said = Vec::new();
    tokio::select! {
        () = exited(&pidfd) => {}
        () = read_output(&output, &mut said) => exited(&pidfd).await,
    }
    // The rest of the output, which may arrive together with the end of the process.
    while said.len() < PROBE_OUTPUT_BYTES_MAX && matches!(read_once(&output, &mut said), Ok(1..)) {}
    Ok((probe.0.wait()?, String::from_utf8_lossy(&said).into_owned()))
}

/// Reads until all writers have closed the pipe. Reads past the bound too: a full pipe would block the command.
async fn read_output(output: &pipe::Receiver, said: &mut Vec<u8>) {
    while output.readable().await.is_ok() {
        match read_once(output, said) {
            Ok(0) => return,
            Err(why) if why.kind() != io::ErrorKind::WouldBlock => return,
            _ => consume_budget().await, // a command that writes without end must not block the other tasks
        }
    }
}

/// Reads once.
fn read_once(output: &pipe::Receiver, said: &mut Vec<u8>) -> io::Result<usize> {
    let mut piece = [0; PROBE_OUTPUT_BYTES_MAX];
    let count = output.try_read(&mut piece)?;
    let capacity = PROBE_OUTPUT_BYTES_MAX - said.len();
    said.extend_from_slice(&piece[..count.min(capacity)]);
    Ok(count)
}
