//! Load: keep-alive connections that each send the next request when the last is answered.
//!
//! A closed loop measures what the system sustains, with as many requests in flight as there are
//! connections; its latencies say nothing about an overloaded system.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpStream;

use crate::HttpCall;
use crate::message::HttpResponse;
use crate::runtime::runtime;

/// Holds a small answer whole; larger ones take several reads.
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub struct LoadPlan {
    pub target: SocketAddr,
    pub call: HttpCall,
    pub connections: usize,
    /// Over all connections together.
    pub requests: u64,
}

#[derive(Debug, Clone, Default)]
pub struct LoadReport {
    /// One for each answer, in ascending order.
    pub latencies: Vec<Duration>,
    pub statuses: BTreeMap<u16, u64>,
    /// Connections that failed or were closed before their work was done.
    pub broken: u64,
    /// From the first request (all connections are open by then) to the last answer.
    pub elapsed: Duration,
}

impl LoadReport {
    /// The latency that the given share of the answers (0.5: the median) stayed at or below.
    pub fn quantile(&self, share: f64) -> Duration {
        assert!((0.0..=1.0).contains(&share), "a share is between 0 and 1, not {share}");
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let rank = (self.latencies.len() as f64 * share).ceil() as usize;
        self.latencies.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    pub fn answers(&self) -> u64 {
        self.statuses.values().sum()
    }
}

/// Carries the plan out on a thread of its own and waits for the end.
pub fn run(plan: LoadPlan) -> LoadReport {
    match std::thread::spawn(move || on_this_thread(&plan)).join() {
        Ok(report) => report,
        Err(_) => panic!("the load generator failed; its message stands above"),
    }
}

fn on_this_thread(plan: &LoadPlan) -> LoadReport {
    let mut runtime = runtime();
    let request: Rc<[u8]> = plan.call.to_bytes(plan.target).into();
    let left = Rc::new(Cell::new(plan.requests));
    runtime.block_on(async move {
        let mut report = LoadReport::default();
        let mut streams = Vec::new();
        for _ in 0..plan.connections {
            match TcpStream::connect_addr(plan.target).await {
                Ok(stream) => streams.push(stream),
                Err(_) => report.broken += 1,
            }
        }
        let start = Instant::now();
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|stream| monoio::spawn(client(stream, Rc::clone(&request), Rc::clone(&left))))
            .collect();
        for task in tasks {
            let share = task.await;
            report.latencies.extend(share.latencies);
            report.broken += share.broken;
            for (status, count) in share.statuses {
                *report.statuses.entry(status).or_default() += count;
            }
        }
        report.elapsed = start.elapsed();
        report.latencies.sort_unstable();
        report
    })
}

/// One connection's work: takes requests from `left` while there are any.
async fn client(mut stream: TcpStream, request: Rc<[u8]>, left: Rc<Cell<u64>>) -> LoadReport {
    let _ = stream.set_nodelay(true);
    let mut report = LoadReport::default();
    let mut outgoing = request.to_vec();
    let mut piece = Vec::with_capacity(READ_BYTES);
    let mut received = Vec::with_capacity(READ_BYTES);
    while left.get() > 0 {
        left.set(left.get() - 1);
        let start = Instant::now();
        let (sent, back) = stream.write_all(outgoing).await;
        outgoing = back;
        let mut failed = sent.is_err();
        let status = loop {
            match HttpResponse::parse(&received, false, false) {
                Ok(Some((response, length))) => {
                    received.drain(..length);
                    break response.status;
                }
                Ok(None) if !failed => {}
                _ => {
                    report.broken += 1;
                    return report;
                }
            }
            let (read, back) = stream.read(piece).await;
            piece = back;
            match read {
                Ok(length) if length > 0 => received.extend_from_slice(&piece[..length]),
                _ => failed = true,
            }
            piece.clear();
        };
        report.latencies.push(start.elapsed());
        *report.statuses.entry(status).or_default() += 1;
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestUpstream;
    use crate::server::closed_address;

    fn plan(target: SocketAddr, path: &str) -> LoadPlan {
        LoadPlan { target, call: HttpCall::get(path), connections: 8, requests: 500 }
    }

    #[test]
    fn every_request_of_the_plan_is_sent_once_over_its_connections() {
        let upstream = TestUpstream::start("one");
        let report = run(plan(upstream.address(), "/"));
        assert_eq!(report.statuses, BTreeMap::from([(200, 500)]));
        assert_eq!((report.answers(), report.latencies.len(), report.broken), (500, 500, 0));
        assert_eq!((upstream.requests(), upstream.connections()), (500, 8));
        assert!(report.quantile(0.5) <= report.quantile(0.99));
        assert!(report.quantile(1.0) <= report.elapsed);
    }

    #[test]
    fn answers_larger_than_one_read_are_taken_whole() {
        let upstream = TestUpstream::start("one");
        let report = run(LoadPlan { requests: 20, ..plan(upstream.address(), "/chunks?count=3&bytes=100000") });
        assert_eq!(report.statuses, BTreeMap::from([(200, 20)]));
    }

    #[test]
    fn connections_that_break_are_counted_and_end_the_run() {
        let upstream = TestUpstream::start("one");
        let report = run(plan(upstream.address(), "/hangup"));
        assert_eq!((report.answers(), report.broken), (0, 8));
        assert_eq!(run(plan(closed_address(), "/")).broken, 8);
    }

    #[test]
    fn a_quantile_is_the_smallest_latency_that_covers_its_share() {
        let latencies = (1..=100).map(Duration::from_millis).collect();
        let report = LoadReport { latencies, ..LoadReport::default() };
        for (share, ms) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(report.quantile(share), Duration::from_millis(ms), "{share}");
        }
    }
}
