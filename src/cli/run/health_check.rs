//! Active health checks of a static route: a GET to each address. An address that fails some times in a row gets no requests
//! until it answers again. If all fail, all get requests: the check may be what is wrong.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use dataplane::table::EndpointAddress;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

/// How long an address has to answer, each step: shorter than the time between two checks.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Failures in a row until an address is unhealthy: one slow answer is none. Kubernetes' `failureThreshold`.
const FAILURES_MAX: u32 = 3;

/// Bytes of the status line that are read.
const STATUS_LINE_BYTES_MAX: usize = 64;

/// The state of the addresses of one route.
#[derive(Debug, Clone, Default)]
pub(super) struct HealthChecks {
    /// Failures in a row, of addresses that failed last.
    failures: BTreeMap<String, u32>,
}

impl HealthChecks {
    /// Checks all addresses at the same time. Returns whether others are healthy now.
    pub(super) fn check(&mut self, host: &str, path: &str, addresses: &[EndpointAddress]) -> bool {
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let checks: Vec<_> = addresses.iter().map(|address| scope.spawn(|| probe(address, host, path))).collect();
            let failed = || Err(io::Error::other("the check panicked"));
            checks.into_iter().map(|check| check.join().unwrap_or_else(|_| failed())).collect()
        });
        let before = self.healthy(addresses);
        for (address, outcome) in addresses.iter().zip(outcomes) {
            self.record(host, address, outcome);
        }
        self.failures.retain(|name, _| addresses.iter().any(|address| address.to_string() == *name));
        self.healthy(addresses) != before
    }

    fn record(&mut self, host: &str, address: &EndpointAddress, outcome: io::Result<()>) {
        let name = address.to_string();
        match outcome {
            Ok(()) => {
                if self.failures.remove(&name).is_some_and(|failures| failures >= FAILURES_MAX) {
                    tracing::info!(host, %address, "an address passes its health check again");
                }
            }
            Err(why) => {
                let failures = self.failures.entry(name).or_default();
                *failures = failures.saturating_add(1);
                if *failures == FAILURES_MAX {
                    tracing::warn!(host, %address, %why, "an address fails its health check and gets no requests");
                }
            }
        }
    }

    /// The addresses that get requests.
    pub(super) fn healthy(&self, addresses: &[EndpointAddress]) -> Vec<EndpointAddress> {
        let is_healthy = |address: &&EndpointAddress| {
            self.failures.get(&address.to_string()).is_none_or(|failures| *failures < FAILURES_MAX)
        };
        let healthy: Vec<_> = addresses.iter().filter(is_healthy).copied().collect();
        if healthy.is_empty() { addresses.to_vec() } else { healthy }
    }
}

/// Passes with a status below 400.
fn probe(address: &EndpointAddress, host: &str, path: &str) -> io::Result<()> {
    match address {
        EndpointAddress::Ip(address) => {
            let stream = TcpStream::connect_timeout(address, CHECK_TIMEOUT)?;
            stream.set_read_timeout(Some(CHECK_TIMEOUT))?;
            stream.set_write_timeout(Some(CHECK_TIMEOUT))?;
            exchange(stream, host, path)
        }
        EndpointAddress::Unix(socket) => {
            let stream = connect_unix(socket.as_str(), CHECK_TIMEOUT)?;
            stream.set_read_timeout(Some(CHECK_TIMEOUT))?;
            stream.set_write_timeout(Some(CHECK_TIMEOUT))?;
            exchange(stream, host, path)
        }
    }
}

/// Fails after `timeout` if the server accepts no connections: the queue of its listener is full.
fn connect_unix(path: &str, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    connect(&socket, &SocketAddrUnix::new(path)?).map_err(|why| match why {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "the queue of its listener is full"),
        why => why.into(),
    })?;
    Ok(socket.into())
}

fn exchange(mut stream: impl Read + Write, host: &str, path: &str) -> io::Result<()> {
    let host = if host.starts_with('*') { "localhost" } else { host };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sluicegate-health-check\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut line = Vec::new();
    let mut buffer = [0; STATUS_LINE_BYTES_MAX];
    // `HTTP/1.1 200` decides it.
    while line.len() < 12 {
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::other("it closed the connection without a response")),
            bytes => line.extend_from_slice(&buffer[..bytes]),
        }
    }
    let status =
        line.strip_prefix(b"HTTP/1.").and_then(|rest| std::str::from_utf8(rest.get(2..5)?).ok()?.parse::<u16>().ok());
    match status {
        Some(100..400) => Ok(()),
        Some(status) => Err(io::Error::other(format!("it answers {path} with {status}"))),
        None => Err(io::Error::other("its response is not HTTP/1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_unhealthy_after_failures_in_a_row() {
        let addresses = [1, 2].map(|port| EndpointAddress::Ip(([127, 0, 0, 1], port).into()));
        let mut checks = HealthChecks::default();
        let failed = || Err(io::Error::other("x"));
        for _ in 1..FAILURES_MAX {
            checks.record("a", &addresses[0], failed());
        }
        assert_eq!(checks.healthy(&addresses).len(), 2);
        checks.record("a", &addresses[0], failed());
        assert_eq!(checks.healthy(&addresses), [addresses[1]]);
        (0..FAILURES_MAX).for_each(|_| checks.record("a", &addresses[1], failed()));
        assert_eq!(checks.healthy(&addresses).len(), 2, "if all fail, all get requests");
        checks.record("a", &addresses[1], Ok(()));
        assert_eq!(checks.healthy(&addresses), [addresses[1]]);
    }

    /// A server that hangs must not stop the checks of others.
    #[test]
    fn full_queue_of_a_unix_socket_fails_the_check() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let connect = || connect_unix(path.to_str().unwrap(), Duration::from_millis(10));
        let accepted: Vec<_> = std::iter::from_fn(|| connect().ok()).take(10).collect();
        assert!((1..10).contains(&accepted.len()), "{} connections without accept", accepted.len());
        drop(listener.accept().unwrap());
        connect().unwrap();
    }

    #[test]
    fn status_of_the_response_decides_the_check() {
        struct Canned(io::Cursor<&'static [u8]>);
        impl Read for Canned {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(buffer)
            }
        }
        impl Write for Canned {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (response, passes) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], true),
            (b"HTTP/1.0 302 Found\r\n\r\n", true),
            (b"HTTP/1.1 503 No\r\n\r\n", false),
            (b"HTTP/1.1 404 No\r\n\r\n", false),
            (b"SSH-2.0-OpenSSH\r\n", false),
            (b"", false),
        ] {
            assert_eq!(exchange(Canned(io::Cursor::new(response)), "*", "/").is_ok(), passes, "{response:?}");
        }
    }
}
