//! Load that runs until it is stopped: at a rate, or each connection's next request as soon as the
//! last is answered.
//!
//! A request may carry the moment at which it left ([`STAMP`]), for a fixture of the same process to read: so
//! the latency through the system is measured by one clock.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::HttpCall;
use crate::message::HttpResponse;
use crate::runtime::runtime;

/// Where a call holds this text, each request has the moment at which it left: [`clock`] in hexadecimal.
pub const STAMP: &str = "-----moment-----";
/// Read from a connection at a time; answers to events are small.
const READ_BYTES: usize = 4 * 1024;
/// Before a connection that broke is opened again.
const REOPEN: Duration = Duration::from_millis(10);

/// Nanoseconds of this process.
#[must_use]
pub fn clock() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGIN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// How long ago a request left, by what stands where its call had [`STAMP`].
#[must_use]
pub fn since(stamp: &str) -> Option<Duration> {
    let left = u64::from_str_radix(stamp, 16).ok()?;
    Some(Duration::from_nanos(clock().saturating_sub(left)))
}

/// Between two looks at whether more may be sent.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// When a connection sends its next request, if its last is answered.
#[derive(Clone)]
enum ArrivalSchedule {
    AtOnce,
    Every(Duration),
    InTurn(Arc<RequestGate>),
}

/// Lets one request pass after the other. One task looks for all connections: were each to look for itself, 64 of them would take
/// a tenth of the processor that they share with what they measure.
struct RequestGate {
    /// Whether one more may be in flight with so many others.
    may_send: Box<dyn Fn(u64) -> bool + Send + Sync>,
    turns: Semaphore,
}

impl RequestGate {
    /// Until the load is stopped. At most `connections` turns are outstanding.
    async fn keep(&self, shared: &LoadState, connections: u32) {
        let mut given = 0;
        while !shared.stop.load(SeqCst) {
            while self.turns.available_permits() < connections as usize && (self.may_send)(given) {
                self.turns.add_permits(1);
                given += 1;
            }
            monoio::time::sleep(LOOK_AGAIN).await;
        }
        self.turns.close();
    }

    /// Waits for a turn; `false`: there are no more.
    async fn pass(&self) -> bool {
        self.turns.acquire().await.map(tokio::sync::SemaphorePermit::forget).is_ok()
    }
}

/// Load in progress.
#[derive(Debug)]
pub struct OpenLoopLoad {
    shared: Arc<LoadState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct LoadState {
    stop: AtomicBool,
    accepted: AtomicU64,
    refused: AtomicU64,
    broken: AtomicU64,
    latencies: Mutex<Vec<Duration>>,
}

impl OpenLoopLoad {
    /// Each connection sends when its last request is answered.
    pub fn flat_out(target: SocketAddr, call: &HttpCall, connections: u32) -> Self {
        Self::start(target, call, connections, ArrivalSchedule::AtOnce)
    }

    /// So many requests a second over all connections, as long as answers come in time.
    pub fn at_rate(target: SocketAddr, call: &HttpCall, connections: u32, per_second: u32) -> Self {
        let every = Duration::from_secs(1) * connections / per_second.max(1);
        Self::start(target, call, connections, ArrivalSchedule::Every(every))
    }

    /// Each connection sends when its last request is answered and `may_send` says so of the number of requests before it.
    pub fn while_so(
        target: SocketAddr,
        call: &HttpCall,
        connections: u32,
        may_send: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Self {
        let gate = RequestGate { may_send: Box::new(may_send), turns: Semaphore::new(0) };
        Self::start(target, call, connections, ArrivalSchedule::InTurn(Arc::new(gate)))
    }

    fn start(target: SocketAddr, call: &HttpCall, connections: u32, pace: ArrivalSchedule) -> Self {
        let shared = Arc::new(LoadState::default());
        let (state, request) = (Arc::clone(&shared), call.to_bytes(target));
        let thread = std::thread::spawn(move || {
            let mut runtime = runtime();
            runtime.block_on(async {
                let one = |nth| {
                    // Spread over the time between two requests of one connection.
                    let first = match &pace {
                        ArrivalSchedule::Every(every) => *every * nth / connections,
                        ArrivalSchedule::AtOnce | ArrivalSchedule::InTurn(_) => Duration::ZERO,
                    };
                    monoio::spawn(client(target, request.clone(), first, pace.clone(), Arc::clone(&state)))
                };
                let clients: Vec<_> = (0..connections).map(one).collect();
                if let ArrivalSchedule::InTurn(gate) = &pace {
                    gate.keep(&state, connections).await;
                }
                for client in clients {
                    client.await;
                }
            });
        });
        Self { shared, thread: Some(thread) }
    }

    /// Requests answered with a 2xx so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(SeqCst)
    }

    /// Requests answered otherwise so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(SeqCst)
    }

    /// Requests that got no answer so far.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.shared.broken.load(SeqCst)
    }

    /// Waits for the answers in progress. What each answer took, in ascending order.
    #[must_use]
    pub fn latencies(mut self) -> Vec<Duration> {
        self.end();
        let mut all = std::mem::take(&mut *self.shared.latencies.lock().unwrap());
        all.sort_unstable();
        all
    }

    /// Waits for the answers in progress. How many were accepted.
    pub fn stop(mut self) -> u64 {
        self.end();
        self.accepted()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for OpenLoopLoad {
    fn drop(&mut self) {
        self.end();
    }
}

async fn client(
    target: SocketAddr,
    mut request: Vec<u8>,
    first: Duration,
    pace: ArrivalSchedule,
    shared: Arc<LoadState>,
) {
    let stamp = request.windows(STAMP.len()).position(|window| window == STAMP.as_bytes());
    let mut next = Instant::now() + first;
    let mut open = None;
    while !shared.stop.load(SeqCst) {
        match &pace {
            ArrivalSchedule::AtOnce => {}
            ArrivalSchedule::Every(every) => {
                let now = Instant::now();
                if next > now {
                    monoio::time::sleep(next - now).await;
                }
                next += *every;
            }
            ArrivalSchedule::InTurn(gate) if gate.pass().await => {}
            ArrivalSchedule::InTurn(_) => return,
        }
        let Some(mut stream) = connected(open.take(), target).await else {
            shared.broken.fetch_add(1, SeqCst);
            monoio::time::sleep(REOPEN).await;
            continue;
        };
        if let Some(at) = stamp {
            request[at..at + STAMP.len()].copy_from_slice(format!("{:016x}", clock()).as_bytes());
        }
        let left = Instant::now();
        let (sent, back) = stream.write_all(request).await;
        request = back;
        let status = if sent.is_ok() { answer(&mut stream).await } else { None };
        if status.is_some() {
            shared.latencies.lock().unwrap().push(left.elapsed());
        }
        match status {
            Some(200..=299) => shared.accepted.fetch_add(1, SeqCst),
            Some(_) => shared.refused.fetch_add(1, SeqCst),
            None => shared.broken.fetch_add(1, SeqCst),
        };
        open = status.map(|_| stream);
    }
}

async fn connected(open: Option<TcpStream>, target: SocketAddr) -> Option<TcpStream> {
    if open.is_some() {
        return open;
    }
    let stream = TcpStream::connect_addr(target).await.ok()?;
    let _ = stream.set_nodelay(true);
    Some(stream)
}

/// The answer's status; `None` when the connection ends before it.
async fn answer(stream: &mut TcpStream) -> Option<u16> {
    let mut received = Vec::new();
    loop {
        let (read, piece) = stream.read(Vec::with_capacity(READ_BYTES)).await;
        if read.ok()? == 0 {
            return None;
        }
        received.extend_from_slice(&piece);
        match HttpResponse::parse(&received, false, false) {
            Ok(Some((response, _))) => return Some(response.status),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::closed_address;
    use crate::{EventSink, SinkResponse, TIMEOUT, wait};

    #[test]
    fn it_goes_on_until_it_is_stopped_and_every_answer_is_counted() {
        let sink = EventSink::answering(|event| SinkResponse::status(if event.attempt % 4 == 0 { 503 } else { 202 }));
        let pulse = OpenLoopLoad::flat_out(sink.address(), &HttpCall::post("/").header("left", STAMP).body("x"), 4);
        wait::until(TIMEOUT, "answers", || (pulse.accepted() > 100 && pulse.refused() > 20).then_some(()));
        let refused = pulse.shared.clone();
        let accepted = pulse.stop();
        let received = sink.received();
        assert_eq!(received.len() as u64, accepted + refused.refused.load(SeqCst));
        assert!(received.iter().all(|request| since(request.header("left").unwrap_or("")).is_some()));
    }

    #[test]
    fn a_rate_is_kept_to_from_above() {
        let sink = EventSink::start();
        let began = Instant::now();
        let pulse = OpenLoopLoad::at_rate(sink.address(), &HttpCall::post("/"), 2, 100);
        wait::until(TIMEOUT, "20 answers", || (pulse.accepted() >= 20).then_some(()));
        assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    }

    #[test]
    fn nobody_sends_more_than_is_wanted() {
        let sink = EventSink::start();
        let pulse = OpenLoopLoad::while_so(sink.address(), &HttpCall::post("/"), 4, |sent| sent < 20);
        wait::until(TIMEOUT, "20 answers", || (pulse.accepted() == 20).then_some(()));
        wait::rest(LOOK_AGAIN * 20);
        assert_eq!(pulse.stop(), 20);
    }

    #[test]
    fn missing_listener_is_no_answer() {
        let pulse = OpenLoopLoad::flat_out(closed_address(), &HttpCall::post("/"), 1);
        wait::until(TIMEOUT, "an attempt", || (pulse.broken() > 1).then_some(()));
        assert_eq!(pulse.stop(), 0);
    }
}
