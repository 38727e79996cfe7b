//! A thread of a test, from its connections to its last result.

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use ring::{Notify, Ring, RingOptions};

use crate::error::{LoadTestError, RequestFailure};
use crate::http1::Http1Client;
use crate::http2::{Http2StreamClient, SharedConnection};
use crate::limits::TIMEOUT_CHECK_INTERVAL;
use crate::process_cpu::ProcessCpu;
use crate::profile::ArrivalTimes;
use crate::recorder::{IntervalResult, Totals};
use crate::request::EventIds;
use crate::series::{first_interval, interval_end};
use crate::spec::{CheckedSpec, LoadProtocol};
use crate::worker::{Pacing, Worker};

/// What the threads of a test share.
pub(crate) struct SharedTest {
    pub(crate) checked: Arc<CheckedSpec>,
    /// Unique for this test among those of this host, nearly surely.
    pub(crate) test_id: u32,
    /// All threads have connected.
    pub(crate) barrier: Barrier,
    pub(crate) connected: AtomicUsize,
    pub(crate) first_failure: Mutex<Option<RequestFailure>>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) clocks: Vec<ProcessCpu>,
}

/// What a thread reports.
pub(crate) enum ThreadReport {
    /// The measured part begins; the processor times of the clocks.
    Started(Vec<Option<Duration>>),
    Interval(u64, Box<IntervalResult>),
    Done(Box<ThreadResult>),
}

/// The last report of a thread.
pub(crate) struct ThreadResult {
    pub(crate) totals: Totals,
    pub(crate) unsent: u64,
    /// The number of its intervals.
    pub(crate) intervals: u64,
    /// Of the measured part; shorter than planned if it was stopped or all requests were sent.
    pub(crate) measured: Duration,
}

pub(crate) fn run(shared: &SharedTest, thread: usize, reports: &Sender<ThreadReport>) -> Result<(), LoadTestError> {
    let ring = match open_ring() {
        Ok(ring) => ring,
        Err(why) => {
            shared.barrier.wait(); // the others shall not wait for this one
            return Err(why);
        }
    };
    let outcome = ring.block_on(run_on(&ring, shared, thread, reports));
    ring.shutdown();
    outcome.map_or(Ok(()), Err)
}

/// On io_uring, or on epoll where the host forbids it.
fn open_ring() -> Result<Ring, LoadTestError> {
    let opened = Ring::kernel(RingOptions::default()).or_else(|_| Ring::epoll(RingOptions::default()));
    opened.map_err(|why| LoadTestError::Ring(why.to_string()))
}

async fn run_on(
    ring: &Ring,
    shared: &SharedTest,
    thread: usize,
    reports: &Sender<ThreadReport>,
) -> Option<LoadTestError> {
    let worker = Rc::new(worker(ring, shared, thread));
    let connections = open_connections(&worker, thread).await;
    for connection in &connections {
        match connection {
            Ok(_) => drop(shared.connected.fetch_add(1, Ordering::SeqCst)),
            Err(failure) => {
                let mut first = shared.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert_with(|| failure.clone());
            }
        }
    }
    shared.barrier.wait();
    if shared.connected.load(Ordering::SeqCst) == 0 {
        return None; // the caller reports the first failure
    }
    ring.sleep(Duration::from_nanos(1)).await; // the clock of the loop stood still at the barrier
    worker.begin();
    spawn_clients(&worker, connections);
    if thread == 0 {
        report_start(&worker, shared, reports);
    }
    let intervals = supervise(&worker, shared, reports).await;
    let measured = ring.now().min(worker.end()) - worker.measured_from();
    let mut recorder = worker.recorder.borrow_mut();
    let result = ThreadResult { totals: recorder.take_totals(), unsent: worker.unsent(), intervals, measured };
    drop(reports.send(ThreadReport::Done(Box::new(result)))); // the receiver lives until all threads have ended
    None
}

fn worker(ring: &Ring, shared: &SharedTest, thread: usize) -> Worker {
    let checked = &shared.checked;
    let pacing = match (&checked.profile, checked.spec.rate) {
        (Some(profile), Some(rate)) => {
            let rng = fastrand::Rng::new();
            Pacing::Open(ArrivalTimes::new(profile.clone(), rate.arrivals, (thread, checked.spec.threads), rng))
        }
        _ => Pacing::Closed,
    };
    let left = checked.spec.requests.map_or(u64::MAX, |requests| checked.share(requests, thread));
    Worker::new(ring.clone(), Arc::clone(checked), EventIds::new(shared.test_id, thread), pacing, left)
}

/// An open connection, by protocol.
enum OpenConnection {
    Http1(crate::stream::LoadStream),
    Http2(Rc<SharedConnection>),
}

/// Opens all connections of a thread at the same time.
async fn open_connections(worker: &Rc<Worker>, thread: usize) -> Vec<Result<OpenConnection, RequestFailure>> {
    let count = worker.checked.connections(thread);
    match worker.checked.spec.protocol {
        LoadProtocol::Http1 => {
            let open = || {
                let worker = Rc::clone(worker);
                async move { Http1Client::connect(&worker).await.map(OpenConnection::Http1) }
            };
            all(&worker.ring, count, open).await
        }
        LoadProtocol::Http2 => {
            let open = || {
                let worker = Rc::clone(worker);
                async move { SharedConnection::open(&worker).await.map(OpenConnection::Http2) }
            };
            all(&worker.ring, count, open).await
        }
    }
}

/// The results of `count` concurrent tasks.
async fn all<T: 'static, F: Future<Output = T> + 'static>(ring: &Ring, count: usize, begin: impl Fn() -> F) -> Vec<T> {
    let results = Rc::new(std::cell::RefCell::new(Vec::with_capacity(count)));
    let added = Rc::<Notify>::default();
    for _ in 0..count {
        let (task, results, added) = (begin(), Rc::clone(&results), Rc::clone(&added));
        ring.spawn(async move {
            let result = task.await;
            results.borrow_mut().push(result);
            added.ring();
        });
    }
    loop {
        let seen = added.count();
        if results.borrow().len() == count {
            return results.take();
        }
        added.after(seen).await;
    }
}

fn spawn_clients(worker: &Rc<Worker>, connections: Vec<Result<OpenConnection, RequestFailure>>) {
    for connection in connections {
        match connection {
            Ok(OpenConnection::Http1(stream)) => worker.ring.spawn(Http1Client::new(worker, Some(stream)).run()),
            Ok(OpenConnection::Http2(shared)) => {
                for _ in 0..worker.checked.spec.streams {
                    worker.ring.spawn(Http2StreamClient::new(worker, &shared).run());
                }
            }
            // It connects for its first request, and that fails or not.
            Err(_) if worker.checked.spec.protocol == LoadProtocol::Http1 => {
                worker.ring.spawn(Http1Client::new(worker, None).run());
            }
            Err(_) => {
                let shared = SharedConnection::closed(worker);
                for _ in 0..worker.checked.spec.streams {
                    worker.ring.spawn(Http2StreamClient::new(worker, &shared).run());
                }
            }
        }
    }
}

/// Reads the clocks when the measured part begins.
fn report_start(worker: &Rc<Worker>, shared: &SharedTest, reports: &Sender<ThreadReport>) {
    let (worker, clocks, reports) = (Rc::clone(worker), shared.clocks.clone(), reports.clone());
    worker.ring.clone().spawn(async move {
        worker.ring.sleep_until(worker.measured_from()).await;
        let times = clocks.iter().map(|clock| clock.now().ok()).collect();
        drop(reports.send(ThreadReport::Started(times)));
    });
}

/// Checks timeouts and reports intervals, until all requests are answered. Returns the number of intervals.
async fn supervise(worker: &Rc<Worker>, shared: &SharedTest, reports: &Sender<ThreadReport>) -> u64 {
    let (ring, from) = (&worker.ring, worker.measured_from());
    let first = first_interval(worker.checked.duration);
    let mut index = 0;
    let mut check_at = ring.now() + TIMEOUT_CHECK_INTERVAL;
    loop {
        let seen = worker.changed.count();
        if worker.is_done() {
            break;
        }
        let interval_at = from + interval_end(first, index);
        let wake_at = if ring.now() < worker.end() { worker.end().min(check_at) } else { check_at };
        // Elapsed or notified: both lead to another look.
        let _ = ring.within(Some(wake_at.min(interval_at)), worker.changed.after(seen)).await;
        let now = ring.now();
        if now >= interval_at {
            let interval = Box::new(worker.recorder.borrow_mut().take_interval());
            drop(reports.send(ThreadReport::Interval(index, interval)));
            index += 1;
        }
        if now >= check_at {
            check_at = now + TIMEOUT_CHECK_INTERVAL;
            worker.check_deadlines();
            if shared.stop.load(Ordering::Relaxed) {
                worker.stop();
            }
        }
    }
    let interval = Box::new(worker.recorder.borrow_mut().take_interval());
    drop(reports.send(ThreadReport::Interval(index, interval)));
    index + 1
}
