//! The overhead of a cold start: the first request of Services that never had an instance, alternating with the
//! same program started directly.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kit::manifest::NAMESPACE;
use kit::{HttpCall, HttpConnection, wait};
use serde_json::json;

use super::PAUSE;
use super::stage::{Stage, annotated, hello, program};
use super::table::Table;

const STARTS: usize = 100;
/// The first starts bring in what all others find.
const BEFORE: usize = 3;

pub(super) fn cold(table: &mut Table) {
    let stage = Stage::start();
    let api = stage.appliance.api();
    let any = json!({ "data": { "allow-zero-initial-scale": "true" } });
    api.patch("ConfigMap", "knative-serving", "config-autoscaler", &any);
    let name = |n: usize| format!("cold-{n}");
    for n in 0..STARTS + BEFORE {
        let one = annotated(hello(&name(n)), "autoscaling.knative.dev/initial-scale", "0");
        stage.create(&one, &name(n));
    }
    let (mut whole, mut bare) = (Vec::new(), Vec::new());
    for n in 0..STARTS + BEFORE {
        let call = HttpCall::get("/").host(&format!("{}.{NAMESPACE}.localhost", name(n)));
        wait::rest(PAUSE);
        let mut connection = HttpConnection::open(stage.appliance.http());
        let left = Instant::now();
        assert_eq!(connection.call(&call).status, 200);
        let took = left.elapsed();
        wait::rest(PAUSE);
        let alone = by_hand();
        if n >= BEFORE {
            whole.push(took);
            bare.push(alone);
        }
    }
    let [p50, p99] = [50, 99].map(|share| at(&mut whole, share) - at(&mut bare, share));
    table.note("a start by hand until it listens, p50", "ms", at(&mut bare, 50));
    table.at_most("… what a cold request adds to it, p50", "ms", p50, 2.0);
    table.at_most("… p99", "ms", p99, 5.0);
}

fn at(took: &mut [Duration], percent: usize) -> f64 {
    took.sort_unstable();
    took[(took.len() - 1) * percent / 100].as_secs_f64() * 1e3
}

/// From its start until it takes a connection.
fn by_hand() -> Duration {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    let words = program();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("PORT", address.port().to_string()).stdout(Stdio::null());
    let began = Instant::now();
    let child = Ended(command.spawn().unwrap());
    while TcpStream::connect(address).is_err() {
        wait::rest(Duration::from_micros(50));
    }
    let took = began.elapsed();
    drop(child);
    took
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may be over already
        let _ = self.0.wait();
    }
}
