//! Clients that send requests until they are stopped, none of which may fail: background load for tests that change
//! something meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{HttpCall, HttpConnection, TIMEOUT, http2, wait};

/// A client that runs until it is stopped: the number of its answers, and the first failure.
pub struct BackgroundClients {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Result<(), String>>>,
}

impl Default for BackgroundClients {
    fn default() -> Self {
        Self::new()
    }
}

impl BackgroundClients {
    pub fn new() -> Self {
        Self { stop: Arc::default(), answers: Arc::default(), clients: Vec::new() }
    }

    pub fn add(&mut self, client: impl FnOnce(&AtomicBool, &AtomicU64) -> Result<(), String> + Send + 'static) {
        let (stop, answers) = (Arc::clone(&self.stop), Arc::clone(&self.answers));
        self.clients.push(thread::spawn(move || client(&stop, &answers)));
    }

    /// Waits until `more` further answers have come.
    pub fn goes_on(&self, more: u64) {
        let wanted = self.answers.load(SeqCst) + more;
        wait::until(2 * TIMEOUT, "more answers", || {
            let failed = self.clients.iter().any(JoinHandle::is_finished);
            (failed || self.answers.load(SeqCst) >= wanted).then_some(())
        });
    }

    pub fn end(self) -> u64 {
        self.stop.store(true, SeqCst);
        for client in self.clients {
            assert_eq!(client.join().unwrap(), Ok(()));
        }
        self.answers.load(SeqCst)
    }
}

/// Keeps its connection until a response ends it, as in HTTP/1.1; pauses between requests.
pub fn keep_alive(
    to: SocketAddr,
    call: impl Fn(u64) -> HttpCall + Send + 'static,
    status: u16,
    rest: Duration,
) -> BackgroundClient {
    Box::new(move |stop, answers| {
        let mut connection = None;
        for number in 0.. {
            if stop.load(SeqCst) {
                break;
            }
            let mut open = match connection.take() {
                Some(open) => open,
                None => HttpConnection::try_open(to).map_err(|why| format!("refused: {why}"))?,
            };
            let answer = open.try_call(&call(number)).map_err(|why| format!("request {number}: {why}"))?;
            if answer.status != status {
                return Err(format!("request {number}: {answer:?}"));
            }
            answers.fetch_add(1, SeqCst);
            let ends = answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
            connection = (!ends).then_some(open);
            wait::rest(rest);
        }
        Ok(())
    })
}

/// One of many clients: runs until it is stopped, counts its answers, and reports errors.
pub type BackgroundClient = Box<dyn FnOnce(&AtomicBool, &AtomicU64) -> Result<(), String> + Send>;

/// A connection for every request.
pub fn one_by_one(to: SocketAddr, host: &'static str) -> BackgroundClient {
    Box::new(move |stop, answers| {
        while !stop.load(SeqCst) {
            let answer = HttpCall::get("/").host(host).try_send(to).map_err(|why| format!("one by one: {why}"))?;
            if answer.status != 200 {
                return Err(format!("one by one: {answer:?}"));
            }
            answers.fetch_add(1, SeqCst);
        }
        Ok(())
    })
}

/// Streams of one connection until it says goodbye, then of another.
pub fn streams(to: SocketAddr, host: &'static str) -> BackgroundClient {
    Box::new(move |stop, answers| {
        http2::run(async {
            while !stop.load(SeqCst) {
                let (client, _ended) = http2::H2Client::open(to).await;
                while !stop.load(SeqCst) {
                    let request = http::Request::get(format!("http://{host}/")).body(()).unwrap();
                    // A stream that could not begin is no request: the connection has said goodbye.
                    let Ok((response, _)) = client.begin(request, true).await else { break };
                    let response = match response.await {
                        Ok(response) => response,
                        // Begun while the goodbye was in progress and never looked at (RFC 9113, section 6.8).
                        Err(why) if http2::is_unprocessed(&why) => break,
                        Err(why) => return Err(format!("a stream: {why}")),
                    };
                    if response.status() != 200 {
                        return Err(format!("a stream: {response:?}"));
                    }
                    answers.fetch_add(1, SeqCst);
                }
            }
            Ok(())
        })
    })
}
