//! The autoscaler over the process runtime: the lifecycle of a revision with real processes.

#![expect(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{TIMEOUT, init, listener, spec};
use dataplane::load::BackendLoad;
use dataplane::table::Endpoint;
use sluicegate_control::autoscaler::{Autoscaler, EndpointSink, RevisionPlan, RevisionState, ScalingMetric};
use sluicegate_control::runtime::{HostConfig, InstanceSpec, ProcessRuntime};

const KEY: &str = "default/hello-00001";

#[derive(Default)]
struct RecordingEndpointSink {
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    load: Arc<BackendLoad>,
}

impl EndpointSink for RecordingEndpointSink {
    fn set_endpoints(&self, key: &str, endpoints: Vec<Arc<Endpoint>>) {
        assert_eq!(key, KEY);
        *self.endpoints.lock().unwrap() = endpoints;
    }

    fn load(&self, _key: &str) -> Arc<BackendLoad> {
        Arc::clone(&self.load)
    }
}

fn plan(instance: InstanceSpec) -> RevisionPlan {
    RevisionPlan {
        instance: Arc::new(instance),
        min_scale: 0,
        max_scale: 3,
        initial_scale: 0,
        inherited_scale: 0,
        metric: ScalingMetric::Concurrency,
        target: 1.0,
        total: 100.0,
        target_burst_capacity: None,
        concurrency_max: 1,
        idle_window: Duration::from_secs(2),
        stable_window: Duration::from_secs(6),
        weighted_average: false,
        panic_window: Duration::from_secs(1),
        panic_threshold: 2.0,
        activation_scale: 0,
        scale_down_delay: Duration::ZERO,
        scale_up_rate: 1000.0,
        scale_down_rate: 2.0,
        scale_to_zero_disabled: false,
        spare: sluicegate_control::autoscaler::SparePolicy::default(),
        reachable: true,
    }
}

fn open(data: &std::path::Path) -> (Autoscaler, Arc<RecordingEndpointSink>) {
    let runtime = Arc::new(ProcessRuntime::open(data, init(), HostConfig::minimal()).unwrap());
    let sink = Arc::new(RecordingEndpointSink::default());
    let (autoscaler, work) = Autoscaler::new(runtime, Arc::clone(&sink) as _, 1);
    tokio::spawn(work);
    (autoscaler, sink)
}

/// Returns when `wanted` holds; driven by the autoscaler's own change notifications.
async fn until(autoscaler: &Autoscaler, wanted: impl Fn() -> bool) {
    let mut changes = autoscaler.changes();
    let waiting = async {
        while !wanted() {
            changes.recv().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it comes to this");
}

async fn reach(autoscaler: &Autoscaler, wanted: &RevisionState) {
    until(autoscaler, || autoscaler.status(KEY).state == *wanted).await;
}

fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// SRV-REQ-09, SRV-REV-06: at zero, woken by demand, answering, and at zero again with nothing left.
#[tokio::test]
async fn a_revision_wakes_on_demand_and_goes_back_to_sleep() {
    let dir = tempfile::tempdir().unwrap();
    let (autoscaler, sink) = open(dir.path());
    autoscaler.declare(KEY, plan(listener()));
    reach(&autoscaler, &RevisionState::Idle).await;
    assert!(sink.endpoints.lock().unwrap().is_empty());

    autoscaler.record_demand(KEY);
    reach(&autoscaler, &RevisionState::Ready).await;
    let address = sink.endpoints.lock().unwrap()[0].address.socket_addr().unwrap();
    assert!(get(address).starts_with("HTTP/1.1 200"));

    reach(&autoscaler, &RevisionState::Idle).await;
    autoscaler.shutdown().await;
    assert!(TcpStream::connect(address).is_err());
}

/// RT-LIFE-07: a program that fails says so in the revision's state.
#[tokio::test]
async fn a_failing_program_shows_in_the_state_with_its_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let (autoscaler, _sink) = open(dir.path());
    let failing = spec(&["/bin/sh", "-c", "echo cannot reach the database >&2; exit 4"]);
    autoscaler.declare(KEY, RevisionPlan { initial_scale: 1, ..plan(failing) });
    until(&autoscaler, || matches!(autoscaler.status(KEY).state, RevisionState::Failed { .. })).await;
    let RevisionState::Failed { reason, message } = autoscaler.status(KEY).state else { panic!("not failed any more") };
    assert_eq!(reason, "ExitCode4");
    assert!(message.contains("cannot reach the database"), "{message}");
    autoscaler.shutdown().await;
}

/// A killed instance is replaced, under an id that no connection pool has seen.
#[tokio::test]
async fn a_killed_instance_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (autoscaler, sink) = open(dir.path());
    autoscaler.declare(KEY, RevisionPlan { min_scale: 1, ..plan(listener()) });
    reach(&autoscaler, &RevisionState::Ready).await;
    let first = sink.endpoints.lock().unwrap()[0].id;

    let record = dir.path().join(format!("instances/{KEY}/{first}.run"));
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let pid = record["process"]["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();

    until(&autoscaler, || sink.endpoints.lock().unwrap().first().is_some_and(|next| next.id != first)).await;
    autoscaler.shutdown().await;
    assert!(sink.endpoints.lock().unwrap().is_empty());
}
