//! A server under test: a child process on a free port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::LoadTestError;
use crate::limits::SERVER_START_TIMEOUT;

/// Between two attempts to connect to a server that starts.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// A port of the loopback address on which no socket listens.
///
/// # Errors
/// All ports are in use.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl ServerProcess {
    /// Starts the command that `command` makes for a free port, and waits until that port accepts connections.
    ///
    /// # Errors
    /// The command cannot be started, ends early, or does not listen in time.
    #[allow(clippy::disallowed_methods, reason = "a fixture of benches: it blocks a thread of its own")]
    pub fn start(command: impl FnOnce(u16) -> Command) -> Result<Self, LoadTestError> {
        let failed = |what: &str, why: &dyn std::fmt::Display| LoadTestError::Invalid(format!("{what}: {why}"));
        let port = free_port().map_err(|why| failed("find a free port", &why))?;
        let mut command = command(port);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|why| failed(&format!("start {program}"), &why))?;
        let mut server = Self { child, address: (Ipv4Addr::LOCALHOST, port).into() };
        let begun = Instant::now();
        while TcpStream::connect(server.address).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(failed(&format!("start {program}"), &format!("it ended with {status}; run it by hand")));
            }
            if begun.elapsed() > SERVER_START_TIMEOUT {
                let why = format!("it does not listen on {} after {SERVER_START_TIMEOUT:?}", server.address);
                return Err(failed(&format!("start {program}"), &why));
            }
            thread::sleep(CONNECT_INTERVAL);
        }
        Ok(server)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of `path`, which begins with a slash.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.kill()); // it may have ended by itself
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_that_ends_or_is_missing_is_named() {
        for program in ["false", "/no/such/program"] {
            let why = ServerProcess::start(|_| Command::new(program)).unwrap_err().to_string();
            assert!(why.contains(program), "{why}");
        }
    }
}
