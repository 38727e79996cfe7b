//! Several processes on one data folder at once: each finishes its own requests, whichever of the others is killed.

use std::net::SocketAddr;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::Duration;

use kit::manifest::{NAMESPACE, broker, service};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, TIMEOUT, wait};

use super::BIN;

const HOST: &str = "hello.default.localhost";
/// A request of this length is in flight while two more processes start, also on a busy machine.
const LONG: Duration = Duration::from_secs(20);

type LongRequest = JoinHandle<std::io::Result<HttpResponse>>;

fn with_service() -> Appliance {
    let first = ApplianceSetup::new(BIN).hello_image("example.com/hello").flag("workers", "1").start();
    first.api().create(&service("hello", "example.com/hello", "World"));
    first.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    first
}

/// A request that is in flight for [`LONG`], begun at the process that accepts now.
fn long_request(to: SocketAddr) -> LongRequest {
    let call = HttpCall::get(&format!("/slow?ms={}", LONG.as_millis())).host(HOST);
    std::thread::spawn(move || call.try_send(to))
}

/// The instances of a process: its children, which leave with it.
fn instances(of: &Appliance) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", of.pid())).unwrap();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok());
    children.flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Requests of which the last is in flight at `at`. Those before it were accepted by the process before, which accepts from
/// the same sockets until it hears that `at` serves.
fn in_flight(at: &Appliance) -> Vec<LongRequest> {
    let mut requests = Vec::new();
    let begun = || {
        let of = |name| at.metric(name, "hello");
        (of("sluicegate_backend_active_requests") + of("sluicegate_backend_queued_requests") > 0).then_some(())
    };
    loop {
        requests.push(long_request(at.http()));
        if wait::try_until(Duration::from_secs(2), begun).is_some() {
            wait::until(TIMEOUT, "an instance for it", || {
                (at.metric("sluicegate_backend_active_requests", "hello") > 0).then_some(())
            });
            return requests;
        }
    }
}

fn completes(request: LongRequest) {
    let answer = request.join().unwrap().unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.text().starts_with("Hello World"), "{answer:?}");
}

fn serves(appliance: &Appliance) {
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    assert_eq!(HttpCall::get("/readyz").send(appliance.admin()).status, 200);
}

/// The second process ends first, and the third one leaves the first one's instances alone.
#[test]
fn request_on_first_process_outlives_two_restarts() {
    let mut first = with_service();
    let long = in_flight(&first).pop().unwrap();
    let its_own = instances(&first);
    let mut second = first.successor();
    serves(&second);
    let third = second.successor();
    assert_eq!(second.wait().code(), Some(0), "{}", second.stderr());
    third.wait_says("the process that was replaced has ended");
    serves(&third);
    assert!(first.is_running() && !long.is_finished(), "it should still have its request");
    let left = instances(&first);
    assert!(its_own.iter().all(|instance| left.contains(instance)), "{its_own:?} {left:?}");
    completes(long);
    assert_eq!(first.wait().code(), Some(0), "{}", first.stderr());
    serves(&third);
}

/// The killed process's own request is lost; those of the others end well, and each further process starts at once.
#[test]
fn kill_of_one_process_harms_no_request_of_others() {
    for victim in 0..3 {
        let mut all = vec![with_service()];
        let mut requests = vec![in_flight(&all[0])];
        for number in 1..3 {
            let next = all[number - 1].successor();
            let mut begun = in_flight(&next);
            requests.push(begun.split_off(begun.len() - 1));
            requests[number - 1].extend(begun);
            all.push(next);
        }
        all[victim].kill();
        for lost in std::mem::take(&mut requests[victim]) {
            let _ = lost.join().unwrap(); // with its process
        }
        // The newest one was killed: an ordinary start, while two others still drain.
        let newest =
            if victim == 2 { all[2].setup().clone().ports(all[2].ports()).start() } else { all[2].successor() };
        serves(&newest);
        newest.api().create(&broker("main"));
        newest.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
        requests.into_iter().flatten().for_each(completes);
        for (number, one) in all.iter_mut().enumerate().filter(|(number, _)| *number != victim) {
            assert_eq!(one.wait().code(), Some(0), "{number} after {victim}: {}", one.stderr());
        }
        serves(&newest);
    }
}

/// A process that dies somewhere in the middle of the handover, on either side, leaves an appliance that the next one takes
/// over, and the request in flight is answered.
#[test]
fn kill_during_handover_leaves_next_start_working() {
    let mut current = with_service();
    for (after, kills_new) in [(0, true), (150, true), (400, true), (0, false), (150, false), (400, false)] {
        let like_it = current.setup().clone().ports(current.ports()).switch("hot-restart");
        let after = Duration::from_millis(after);
        let next = if kills_new {
            let mut command = like_it.command();
            let mut new = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            wait::rest(after);
            new.kill().unwrap();
            new.wait().unwrap();
            like_it.start()
        } else {
            let starts = like_it.clone();
            let new = std::thread::spawn(move || starts.start());
            wait::rest(after);
            current.kill();
            new.join().unwrap()
        };
        current = next;
        current.api().create(&broker(&format!("b{}-{kills_new}", after.as_millis())));
        serves(&current);
    }
}
