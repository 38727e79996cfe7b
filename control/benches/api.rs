//! The cost of the API with 10,000 Services and 10,000 Triggers stored: a table with the target of each row.
//!
//! `cargo bench -p sluicegate-control --bench api`. Clients speak HTTP/1.1 over loopback with a socket and a
//! thread each; controllers do not run, so that a row is about the API and its store alone.

#![allow(clippy::unwrap_used)] // a bench that cannot write has nothing to measure

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use http::Request;
use serde_json::{Value, json};
use sluicegate_control::kind_registry::KindRegistry;
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tokio::net::TcpListener;
use tower::ServiceExt as _;

const OBJECTS: usize = 10_000;
const WRITERS: usize = 16;
const WATCHERS: usize = 100;
const GETS: usize = 5_000;
const LISTS: usize = 7;
const SEEN_WRITES: usize = 30;
const SERVICES: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const TRIGGERS: &str = "/apis/eventing.knative.dev/v1/namespaces/default/triggers";

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Arc::new(kinds::registry());
    let before_kib = rss_kib();
    let store = open(folder.path(), &registry);
    let address = serve(Arc::clone(&store), Arc::clone(&registry));

    let started = Instant::now();
    create_all(address, SERVICES, service);
    create_all(address, TRIGGERS, trigger);
    let created = (2 * OBJECTS) as f64 / started.elapsed().as_secs_f64();
    row("create, 16 clients, durable", created, "/s", created >= 2000.0, ">= 2,000");
    let bytes = (rss_kib() - before_kib) / (2.0 * OBJECTS as f64);
    row("memory an object, all in", bytes, "KiB", bytes <= 15.0, "<= 15");

    let mut client = BenchClient::open(address);
    for (name, path) in [("list 10,000 Services", SERVICES), ("list 10,000 Triggers", TRIGGERS)] {
        let took = median(LISTS, || assert!(client.call("GET", path, "").len() > OBJECTS * 100));
        row(name, millis(took), "ms", millis(took) <= 150.0, "<= 150");
    }
    let mut nth = 0;
    let mut next = || {
        nth = (nth + 7919) % OBJECTS;
        format!("{SERVICES}/object-{nth}")
    };
    let took = median(GETS, || drop(client.call("GET", &next(), "")));
    row("get over TCP", micros(took), "us", micros(took) <= 1000.0, "<= 1,000");
    let took = get_in_process(&store, &registry, &mut next);
    row("get in process", micros(took), "us", micros(took) <= 100.0, "<= 100");
    let took = seen_by_all(address);
    row("one write, seen by 100 watchers", millis(took), "ms", millis(took) <= 5.0, "<= 5");

    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    let started = Instant::now();
    drop(open(copy.path(), &registry));
    let took = started.elapsed();
    row("open what is stored", millis(took), "ms", millis(took) <= 2000.0, "<= 2,000");
}

fn row(what: &str, figure: f64, unit: &str, met: bool, target: &str) {
    println!("{what:34} {figure:10.1} {unit:4} {target:>10}  {}", if met { "met" } else { "MISSED" });
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

fn rss_kib() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<f64> = statm.split(' ').map(|pages| pages.trim().parse().unwrap()).collect();
    (pages[1] - pages[2]) * 4.0 // without mapped files
}

fn median(times: usize, mut act: impl FnMut()) -> Duration {
    let mut took: Vec<Duration> = (0..times)
        .map(|_| {
            let started = Instant::now();
            act();
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[times / 2]
}

/// The store with what the API makes at its first start.
fn open(folder: &Path, registry: &Arc<KindRegistry>) -> Arc<ObjectStore> {
    let store = Arc::new(ObjectStore::open(folder).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(api::seed(&store, registry)).unwrap();
    store
}

/// One thread, as in the appliance.
fn serve(store: Arc<ObjectStore>, registry: Arc<KindRegistry>) -> SocketAddr {
    let (tell, address) = channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, api::router(store, registry)).await.unwrap();
        });
    });
    address.recv().unwrap()
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "template": { "spec": { "containers": [{
            "image": "example/hello", "env": [{ "name": "TARGET", "value": name }],
        }] } } },
    })
}

fn trigger(name: &str) -> Value {
    json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": { "name": name },
        "spec": {
            "broker": "default", "filter": { "attributes": { "type": name } },
            "subscriber": { "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": name } },
        },
    })
}

fn create_all(address: SocketAddr, path: &str, make: fn(&str) -> Value) {
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let mut client = BenchClient::open(address);
                for nth in (writer..OBJECTS).step_by(WRITERS) {
                    client.call("POST", path, &make(&format!("object-{nth}")).to_string());
                }
            });
        }
    });
}

fn get_in_process(
    store: &Arc<ObjectStore>,
    registry: &Arc<KindRegistry>,
    next: &mut impl FnMut() -> String,
) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let router = api::router(Arc::clone(store), Arc::clone(registry));
    median(GETS, || {
        let request = Request::get(next()).body(Body::empty()).unwrap();
        let bytes = runtime.block_on(async {
            let answer = router.clone().oneshot(request).await.unwrap();
            to_bytes(answer.into_body(), usize::MAX).await.unwrap()
        });
        assert!(bytes.len() > 100);
    })
}

/// From the request of a write until the last watcher has read of it.
fn seen_by_all(address: SocketAddr) -> Duration {
    let (tell, seen) = channel();
    let (listening, ready) = channel();
    for _ in 0..WATCHERS {
        let (tell, listening) = (tell.clone(), listening.clone());
        thread::spawn(move || {
            let path = "/api/v1/namespaces/default/configmaps?watch=1";
            let mut watch = BufReader::new(TcpStream::connect(address).unwrap());
            write!(watch.get_mut(), "GET {path} HTTP/1.1\r\nHost: api\r\n\r\n").unwrap();
            let mut line = String::new();
            while watch.read_line(&mut line).is_ok_and(|read| read > 0) {
                if line.starts_with("HTTP/1.1 200") {
                    let _ = listening.send(());
                }
                if line.contains("seen-by-all-") && tell.send(()).is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
    (0..WATCHERS).for_each(|_| ready.recv().unwrap());
    let mut client = BenchClient::open(address);
    let mut nth = 0;
    median(SEEN_WRITES, || {
        nth += 1;
        let map = json!({ "metadata": { "name": format!("seen-by-all-{nth}") } });
        client.call("POST", "/api/v1/namespaces/default/configmaps", &map.to_string());
        (0..WATCHERS).for_each(|_| seen.recv().unwrap());
    })
}

struct BenchClient {
    stream: BufReader<TcpStream>,
}

impl BenchClient {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::with_capacity(64 << 10, stream) }
    }

    /// The answer's body.
    fn call(&mut self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
        let (mut line, mut status, mut length) = (String::new(), String::new(), 0);
        while self.stream.read_line(&mut line).unwrap() > 2 {
            if status.is_empty() {
                status.clone_from(&line);
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).unwrap();
        assert!(status.starts_with("HTTP/1.1 2"), "{status} {}", String::from_utf8_lossy(&answer));
        answer
    }
}
