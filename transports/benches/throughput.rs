//! What an adapter costs: events a second from a real server to an HTTP sink, processor time, memory at rest, and latency.
//!
//! `cargo bench -p sluicegate-transports --bench throughput [-- EVENTS]`. A transport whose server is not installed is left
//! out. With `SLUICEGATE=/path/to/sluicegate` events also go to one of its Brokers, in batches.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails has no result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark waits as a thread")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use support::adapter_process::Adapter;
use support::server::{Server, aws_credentials, create_jetstream, create_topic};
use support::wait;

const DATA_BYTES: usize = 512;
const EVENTS: u64 = 50_000;
/// Single events, each sent after the one before has arrived.
const LATENCY_EVENTS: usize = 500;
/// Clock ticks of /proc a second.
const TICKS: f64 = 100.0;

/// A sink that answers 202 and reports each arrival.
fn counting_sink() -> (String, mpsc::Receiver<Instant>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (arrived, arrivals) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let arrived = arrived.clone();
            std::thread::spawn(move || serve(stream, &arrived));
        }
    });
    (url, arrivals)
}

fn serve(mut stream: TcpStream, arrived: &mpsc::Sender<Instant>) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::with_capacity(1 << 16, stream.try_clone().unwrap());
    let (mut line, mut body) = (String::new(), Vec::new());
    let mut length = 0;
    while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            body.resize(length, 0);
            if reader.read_exact(&mut body).is_err()
                || stream.write_all(b"HTTP/1.1 202 \r\ncontent-length: 0\r\n\r\n").is_err()
            {
                return;
            }
            let _ = arrived.send(Instant::now());
            length = 0;
        }
        line.clear();
    }
}

/// User and system time of a process, in seconds.
fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Waits until the adapter has delivered all, and prints what it took.
fn measure(what: &str, kind: &str, receiver: &str, sender: &str, events: u64) {
    let adapter = Adapter::start(kind, &[("ADAPTER_RECEIVER", receiver), ("ADAPTER_SENDER", sender)]);
    let pid = adapter.child.id();
    let accepted = || adapter.metric("adapter_events_accepted_total");
    let first = wait("the first event", || Some(accepted()).filter(|accepted| *accepted > 0));
    let (started, before) = (Instant::now(), processor_time(pid));
    let mut most = 0f64;
    while accepted() < events {
        most = most.max(resident_mib(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (elapsed, used) = (started.elapsed().as_secs_f64(), processor_time(pid) - before);
    let measured = (events - first) as f64;
    println!(
        "{what:<44} {:>8.0} events/s   {:>5.1} CPU s a million   {most:>5.1} MiB resident",
        measured / elapsed,
        used / measured * 1e6
    );
    let _ = adapter.stop();
}

/// The appliance with a Broker.
struct Appliance {
    child: Child,
    broker: String,
    _directory: tempfile::TempDir,
}

impl Appliance {
    fn start() -> Option<Appliance> {
        let program = std::env::var("SLUICEGATE").ok()?;
        let directory = tempfile::tempdir().unwrap();
        let manifest = directory.path().join("broker.yaml");
        std::fs::write(
            &manifest,
            "apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: b, namespace: default}\n",
        )
        .unwrap();
        let mut child = Command::new(program)
            .args([
                "run",
                "--http",
                "127.0.0.1:0",
                "--events",
                "127.0.0.1:0",
                "--api",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
            ])
            .arg("--data")
            .arg(directory.path().join("data"))
            .arg("--manifests")
            .arg(&manifest)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready = lines.find(|line| line.starts_with("ready ")).unwrap();
        let events = ready.split("events=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        let broker = format!("http://{events}/brokers/default/b");
        std::thread::sleep(Duration::from_secs(1));
        Some(Appliance { child, broker, _directory: directory })
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// To a plain sink, to a sink that takes batches, and to a Broker. `receiver` is of the name of the consumer.
fn throughput(kind: &str, receiver: impl Fn(&str) -> String, events: u64) {
    let (url, _arrivals) = counting_sink();
    measure(&format!("{kind} to an HTTP sink"), kind, &receiver("one"), &format!("\"{url}\""), events);
    let batched = |url: &str| format!(r#"{{"sinkUri":"{url}","batch":true}}"#);
    measure(&format!("{kind} to an HTTP sink, in batches"), kind, &receiver("two"), &batched(&url), events);
    if let Some(appliance) = Appliance::start() {
        measure(
            &format!("{kind} to a Broker, in batches"),
            kind,
            &receiver("three"),
            &batched(&appliance.broker),
            events,
        );
    }
}

fn data() -> String {
    "x".repeat(DATA_BYTES)
}

/// Sends commands in large writes and reads as many replies.
fn pipeline(port: u16, hello: &str, command: &str, count: u64, end: &str, replies: u64) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    let end_reply = if end.is_empty() { None } else { Some("PONG") };
    let reads = std::thread::spawn(move || {
        let mut lines = reader.lines().map_while(Result::ok);
        match end_reply {
            Some(reply) => drop(lines.find(|line| line.starts_with(reply))),
            None => drop(lines.nth(usize::try_from(replies - 1).unwrap())),
        }
    });
    stream.write_all(hello.as_bytes()).unwrap();
    let block = command.repeat(100);
    for _ in 0..count / 100 {
        stream.write_all(block.as_bytes()).unwrap();
    }
    stream.write_all(end.as_bytes()).unwrap();
    reads.join().unwrap();
}

fn redis(events: u64) {
    let Some(server) = Server::redis() else { return };
    let add = format!("*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$4\r\ndata\r\n${DATA_BYTES}\r\n{}\r\n", data());
    // A reply is the length of the id and the id.
    pipeline(server.port, "", &add, events, "", events * 2);
    let receiver = |stream: &str, group: &str| {
        format!(r#"{{"address":"127.0.0.1:{}","stream":"{stream}","group":"{group}","startId":"0"}}"#, server.port)
    };
    throughput("redis", |group| receiver("s", group), events);
    latency(server.port, &receiver("l", "g"));
}

/// From XADD to the arrival at the sink.
fn latency(port: u16, receiver: &str) {
    let (url, arrivals) = counting_sink();
    let adapter = Adapter::start("redis", &[("ADAPTER_RECEIVER", receiver), ("K_SINK", &url)]).wait_ready();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut times: Vec<Duration> = Vec::new();
    let mut line = String::new();
    for _ in 0..LATENCY_EVENTS {
        let sent = Instant::now();
        stream.write_all(b"XADD l * data x\r\n").unwrap();
        times.push(arrivals.recv().unwrap() - sent);
        replies.read_line(&mut line).unwrap();
        replies.read_line(&mut line).unwrap();
    }
    times.sort();
    let at = |part: usize| times[LATENCY_EVENTS * part / 100].as_secs_f64() * 1e3;
    println!("{:<44} p50 {:.2} ms, p99 {:.2} ms", "redis, from XADD to the sink, one at a time", at(50), at(99));
    drop(adapter);
}

fn jetstream(events: u64) {
    let Some(server) = Server::nats() else { return };
    create_jetstream(server.port, "s", "a");
    let publish = format!("PUB a {DATA_BYTES}\r\n{}\r\n", data());
    pipeline(server.port, "CONNECT {\"verbose\":false}\r\n", &publish, events, "PING\r\n", 0);
    let receiver = |consumer: &str| {
        format!(
            r#"{{"servers":["127.0.0.1:{}"],"stream":"s","consumer":"{consumer}","deliverPolicy":"all"}}"#,
            server.port
        )
    };
    throughput("nats", receiver, events);
}

fn kafka(events: u64) {
    let Some(server) = Server::tansu(None) else { return };
    create_topic(server.port, "t", 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kafka = krafka::Kafka::builder(format!("127.0.0.1:{}", server.port)).connect().await.unwrap();
        let producer = kafka.producer().build().await.unwrap();
        for _ in 0..events / 1000 {
            let sends = (0..1000).map(|_| producer.send(krafka::Record::new("t", data())));
            for sent in futures_util::future::join_all(sends).await {
                let _ = sent.unwrap();
            }
        }
    });
    let receiver = |group: &str| {
        format!(
            r#"{{"bootstrapServers":["127.0.0.1:{}"],"topics":["t"],"initialOffset":"earliest","consumerGroup":"{group}","sessionTimeoutMs":6000}}"#,
            server.port
        )
    };
    throughput("kafka", receiver, events);
}

/// Resident memory of a connected adapter without events.
fn at_rest() {
    let show = |kind: &str, server: Option<Server>, receiver: &dyn Fn(u16) -> String| {
        let Some(server) = server else { return };
        let variables = [("ADAPTER_RECEIVER", receiver(server.port)), ("K_SINK", "http://127.0.0.1:1/".to_owned())];
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let adapter = Adapter::start(kind, &variables).wait_ready();
        std::thread::sleep(Duration::from_secs(2));
        println!("{:<44} {:>5.1} MiB resident", format!("{kind} at rest"), resident_mib(adapter.child.id()));
    };
    show("redis", Server::redis(), &|port| format!(r#"{{"address":"127.0.0.1:{port}","stream":"s","group":"g"}}"#));
    let nats = Server::nats();
    if let Some(nats) = &nats {
        create_jetstream(nats.port, "s", "a");
    }
    show("nats", nats, &|port| format!(r#"{{"servers":["127.0.0.1:{port}"],"stream":"s"}}"#));
    show("mqtt", Server::mosquitto(), &|port| format!(r#"{{"host":"127.0.0.1","port":{port},"topics":["a"]}}"#));
    show("amqp", Server::rabbitmq(), &|port| format!(r#"{{"host":"127.0.0.1","port":{port},"queue":"q"}}"#));
    show("amqp10", Server::rabbitmq(), &|port| format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/q"}}"#));
    let tansu = Server::tansu(None);
    if let Some(tansu) = &tansu {
        create_topic(tansu.port, "t", 1);
    }
    show("kafka", tansu, &|port| {
        format!(r#"{{"bootstrapServers":["127.0.0.1:{port}"],"topics":["t"],"sessionTimeoutMs":6000}}"#)
    });
    let server = Server::postgresql();
    // It listens before it accepts queries.
    std::thread::sleep(Duration::from_secs(2));
    show("postgresql", server, &|port| {
        format!(
            r#"{{"host":"127.0.0.1","port":{port},"database":"postgres","user":"postgres","replication":{{"slot":"s","publication":"p"}}}}"#
        )
    });
    let secret = aws_credentials().display().to_string();
    let aws = |port: u16, rest: &str| {
        format!(
            r#"{{"uriEndpointOverride":"http://127.0.0.1:{port}","region":"us-east-1","secret":"{secret}",{rest}}}"#
        )
    };
    show("sqs", Server::moto(), &|port| aws(port, r#""arn":"q","autoCreateQueue":true"#));
    show("s3", Server::moto(), &|port| aws(port, r#""arn":"bucket","autoCreateBucket":true"#));
}

fn main() {
    let events = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(EVENTS);
    println!("{events} events of {DATA_BYTES} bytes");
    redis(events);
    jetstream(events);
    kafka(events);
    at_rest();
}
