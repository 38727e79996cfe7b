//! Health probes of an instance: one attempt, and the schedule of attempts.
//!
//! Until the first readiness they follow each other closely from the moment of the start, so that a fast
//! starter is seen within a fraction of a millisecond of listening. Later they keep the period of the probe.

mod exec;
mod grpc;
pub(crate) mod http2;
mod tls;

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use support::blocking;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::launch::launcher::Launcher;
use crate::limits::{
    PROBE_DETAILS_TIMEOUT, PROBE_HEAD_BYTES_MAX, PROBE_OUTPUT_BYTES_MAX, PROBE_STEP_MAX, PROBE_STEP_MIN,
};
use crate::process::precise_sleep::precise_sleep;
use crate::{InstancePorts, ProbeCheck, ProbeSpec};

/// The target and the method of a probe.
#[derive(Clone, Copy)]
pub(crate) struct ProbeTarget<'a> {
    pub(crate) address: SocketAddr,
    /// Where other ports of the instance are.
    pub(crate) ports: &'a InstancePorts,
    pub(crate) launcher: &'a Launcher,
    pub(crate) environment: &'a [(String, String)],
    /// The reason of a failure.
    pub(crate) last_error: &'a LastProbeError,
}

/// The last answer of one that is not ready yet; empty: there was none.
pub(crate) type LastProbeError = RefCell<String>;

/// How attempts follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbePace {
    /// As fast as can be without burning a core.
    Fast,
    /// Attempts at the probe's own period.
    Period,
}

impl ProbeTarget<'_> {
    /// Returns when the probe passed as often in a row as it asks for. Never gives up; the caller has the
    /// deadline.
    pub(crate) async fn until_success(self, probe: &ProbeSpec, pace: ProbePace) {
        let mut step = PROBE_STEP_MIN;
        let mut in_a_row = 0;
        loop {
            in_a_row = match self.attempt(probe).await {
                Ok(()) => in_a_row + 1,
                Err(why) => {
                    self.last_error.replace(why);
                    0
                }
            };
            if in_a_row >= probe.successes_min {
                return;
            }
            let wait = if pace == ProbePace::Period { probe.period } else { step };
            precise_sleep(wait).await;
            step = next_step(step);
        }
    }

    /// Returns what was wrong when the probe failed as often in a row as it may not.
    pub(crate) async fn until_failure(self, probe: &ProbeSpec) -> String {
        let mut in_a_row = 0;
        loop {
            match self.attempt(probe).await {
                Ok(()) => in_a_row = 0,
                Err(why) => {
                    in_a_row += 1;
                    if in_a_row >= probe.failures_max {
                        return why;
                    }
                }
            }
            tokio::time::sleep(probe.period.max(PROBE_STEP_MIN)).await;
        }
    }

    /// For a program that starts slowly: passes once, or fails once too often.
    pub(crate) async fn until_started(self, probe: &ProbeSpec) -> Result<(), String> {
        precise_sleep(probe.initial_delay).await;
        tokio::select! {
            () = self.until_success(probe, ProbePace::Fast) => Ok(()),
            why = self.until_failure(probe) => Err(why),
        }
    }

    /// Everything beyond a connect is boxed: a running instance has this in it five times, which was 11 KB of each.
    async fn attempt(mut self, probe: &ProbeSpec) -> Result<(), String> {
        if let Some(port) = probe.port {
            self.address.set_port(self.ports.host_port(port));
        }
        let attempt = async {
            match &probe.check {
                ProbeCheck::Tcp => self.connect().await.map(drop).map_err(|why| why.to_string()),
                ProbeCheck::TcpAt { host } => self.connect_to(host).await.map_err(|why| why.to_string()),
                ProbeCheck::Http { path, headers, tls } => {
                    let response = Box::pin(self.http_response(path, headers, *tls)).await;
                    response.map_err(|why| why.to_string()).and_then(ProbeResponse::judge)
                }
                ProbeCheck::Grpc { service } => {
                    let stream = self.connect().await.map_err(|why| why.to_string())?;
                    Box::pin(grpc::check_serving(stream, self.address, service)).await
                }
                ProbeCheck::Running => Ok(()),
                ProbeCheck::Exec { command } => {
                    Box::pin(exec::run_probe(self.launcher, command, self.environment)).await
                }
            }
        };
        let late = || Err(format!("no answer within {} s", probe.timeout.as_secs_f64()));
        tokio::time::timeout(probe.timeout, attempt).await.unwrap_or_else(|_| late())
    }

    async fn connect(self) -> io::Result<TcpStream> {
        self.launcher.targets.admit_connect(self.address)?;
        connect(self.address).await
    }

    /// The same port of another host. Its addresses are tried in turn, those that the target policy refuses are not.
    async fn connect_to(self, host: &str) -> io::Result<()> {
        let (asked, port) = (host.to_owned(), self.address.port());
        let addresses = blocking::run("look-up", move || (asked, port).to_socket_addrs()).await??;
        let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
        for address in addresses {
            outcome = match self.launcher.targets.admit_connect(address) {
                Ok(()) => TcpStream::connect(address).await.map(drop),
                Err(why) => Err(why),
            };
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    async fn http_response(self, path: &str, headers: &[(String, String)], tls: bool) -> io::Result<ProbeResponse> {
        let (stream, address) = (self.connect().await?, self.address);
        let request = request(address, path, headers);
        if tls {
            http_request(tls::connect(stream, address).await?, &request).await
        } else {
            http_request(stream, &request).await
        }
    }
}

/// A sixteenth longer than the last, so that some 76 attempts pass before the cap is reached.
fn next_step(step: Duration) -> Duration {
    (step + step / 16).min(PROBE_STEP_MAX)
}

pub(crate) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // Loopback lets a socket connect to itself when the kernel happens to pick the dialled port.
    if stream.local_addr()? == address {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// What an instance answers to an HTTP probe.
struct ProbeResponse {
    status: u16,
    /// A JSON object with which it says more about a failure.
    details: Option<String>,
}

impl ProbeResponse {
    fn judge(self) -> Result<(), String> {
        match (self.status, self.details) {
            (200..400, _) => Ok(()),
            (status, None) => Err(format!("HTTP probe failed with statuscode: {status}")),
            (status, Some(details)) => Err(format!("HTTP probe failed with statuscode: {status}: {details}")),
        }
    }
}

/// Sends a request and reads no more than the status of its answer, or of a failure the begin.
async fn http_request(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> io::Result<ProbeResponse> {
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = Vec::with_capacity(PROBE_HEAD_BYTES_MAX);
    while head.len() < PROBE_HEAD_BYTES_MAX && !head.contains(&b'\n') {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let status = status_of(&head).ok_or(io::ErrorKind::InvalidData)?;
    if (200..400).contains(&status) {
        return Ok(ProbeResponse { status, details: None });
    }
    let rest = async {
        while head.len() < PROBE_HEAD_BYTES_MAX && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
    };
    let _ = tokio::time::timeout(PROBE_DETAILS_TIMEOUT, rest).await; // what has arrived until then
    Ok(ProbeResponse { status, details: details_of(&head) })
}

fn details_of(response: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(response);
    let (_, body) = text.split_once("\r\n\r\n")?;
    body.starts_with('{').then(|| body.chars().take(PROBE_OUTPUT_BYTES_MAX).collect())
}

fn request(address: SocketAddr, path: &str, headers: &[(String, String)]) -> String {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut text = format!("GET {slash}{path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text + "User-Agent: kube-probe/sluicegate\r\nAccept: */*\r\nConnection: close\r\n\r\n"
}

fn status_of(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_back_off_and_stay_below_25_ms() {
        let mut step = PROBE_STEP_MIN;
        for _ in 0..100 {
            let next = next_step(step);
            assert!(next >= step && next < Duration::from_millis(25));
            step = next;
        }
        assert_eq!(step, PROBE_STEP_MAX);
    }

    /// A running instance has it in its task several times.
    #[test]
    fn probe_attempt_is_small() {
        fn capacity<F>(_: impl FnOnce(ProbeTarget<'static>, &'static ProbeSpec) -> F) -> usize {
            size_of::<F>()
        }
        assert!(capacity(ProbeTarget::attempt) <= 1024, "{} bytes", capacity(ProbeTarget::attempt));
    }

    #[test]
    fn a_status_is_read_from_any_bytes_or_refused() {
        assert_eq!(status_of(b"HTTP/1.1 204 No Content\r\n"), Some(204));
        assert_eq!(status_of(b"HTTP/1.0 500\n"), Some(500));
        let details = details_of(b"HTTP/1.1 503 \r\ncontent-length: 2\r\n\r\n{\"reason\":\"r\"}");
        assert_eq!(details.as_deref(), Some("{\"reason\":\"r\"}"));
        assert_eq!(details_of(b"HTTP/1.1 503 \r\n\r\nbusy"), None);
        for bad in [&b""[..], b"HTTP/1.1", b"HTTP/1.1 2", b"HTTP/1.1 abc", b"\xff\xfe\n", b"HTTP/2 200"] {
            assert_eq!(status_of(bad), None);
        }
    }

    #[test]
    fn a_probe_may_name_its_own_host() {
        let address = "127.0.0.1:80".parse().unwrap();
        assert!(request(address, "healthz", &[]).starts_with("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:80\r\n"));
        let own = request(address, "/", &[("HOST".into(), "a.b".into())]);
        assert_eq!(own.to_ascii_lowercase().matches("host:").count(), 1);
    }
}
