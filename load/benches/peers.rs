//! Processor time a request of this generator, wrk and h2load, in alternating rounds against a running server:
//! `cargo bench -p sluicegate-load --bench peers -- http://127.0.0.1:8080/ [HTTP2-URL]`. Without a URL it does nothing.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use sluicegate_load::{Arrivals, LatencyHistogram, LoadProtocol, LoadSpec, OpenLoopRate, RatioInterval, run};

const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(3);
/// Ticks of `/proc/PID/stat` a second.
const TICKS: f64 = 100.0;
const STREAMS: usize = 16;
/// Of the comparison of latencies: far below what the server sustains.
const RATE: usize = 3_200;

/// A generator: its name, and microseconds of processor time a request in one round.
type Generator<'a> = (&'a str, Box<dyn Fn() -> f64 + 'a>);

fn main() {
    let urls: Vec<_> = std::env::args().skip(1).filter(|word| word.starts_with("http")).collect();
    let Some(url) = urls.first() else { return };
    for connections in [64, 256] {
        println!("HTTP/1.1, {connections} connections");
        let flags = format!("-t1 -c{connections} -d{}", ROUND.as_secs());
        let h1_flags = format!("--h1 -t1 -c{connections} -D{}", ROUND.as_secs());
        compare(&[
            ("this", Box::new(|| this(&LoadSpec { connections, ..LoadSpec::new(url) }))),
            ("wrk", Box::new(|| other("wrk", &flags, url, " requests in"))),
            ("h2load", Box::new(|| other("h2load", &h1_flags, url, " succeeded"))),
        ]);
    }
    latency(url);
    if let Some(url) = urls.get(1) {
        println!("HTTP/2, 16 connections with {STREAMS} streams");
        let flags = format!("-t1 -c16 -m{STREAMS} -D{}", ROUND.as_secs());
        let spec =
            || LoadSpec { connections: 16, streams: STREAMS, protocol: LoadProtocol::Http2, ..LoadSpec::new(url) };
        compare(&[
            ("this", Box::new(|| this(&spec()))),
            ("h2load", Box::new(|| other("h2load", &flags, url, " succeeded"))),
        ]);
    }
}

/// Prints each generator's mean, and the ratio of the first to each other one.
fn compare(generators: &[Generator<'_>]) {
    let mut rounds = vec![Vec::new(); generators.len()];
    for round in 0..ROUNDS {
        let mut order: Vec<_> = (0..generators.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        order.into_iter().for_each(|at| rounds[at].push(generators[at].1()));
    }
    for ((name, _), figures) in generators.iter().zip(&rounds) {
        let mean = figures.iter().sum::<f64>() / figures.len() as f64;
        let pairs: Vec<_> = figures.iter().copied().zip(rounds[0].iter().copied()).collect();
        let ratio = RatioInterval::of(&pairs).map_or_else(String::new, |found| {
            format!("this / {name} {:.3} ({:.3} to {:.3})", found.ratio, found.low, found.high)
        });
        println!("  {name:8} {mean:6.2} us/request  {ratio}");
    }
}

fn this(spec: &LoadSpec) -> f64 {
    run(&LoadSpec { duration: Some(ROUND), ..spec.clone() }).unwrap().generator_cpu_us()
}

/// Runs another generator; the number of requests is the word before `marker` in its output.
fn other(program: &str, flags: &str, url: &str, marker: &str) -> f64 {
    let before = children_seconds();
    let output = Command::new(program).args(flags.split(' ')).arg(url).output();
    let text = String::from_utf8(output.unwrap_or_else(|why| panic!("install {program}: {why}")).stdout).unwrap();
    let used = children_seconds() - before;
    let count = text.split(marker).next().and_then(|head| head.split([' ', '\n']).next_back());
    used * 1e6 / count.and_then(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("no count in {text}"))
}

/// Processor time of the children that have ended.
fn children_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[13..15].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / TICKS
}

/// The mean latency at a rate that leaves the server idle for most of the time. wrk has no rate.
fn latency(url: &str) {
    let rate = OpenLoopRate { from: RATE as f64, to: RATE as f64, arrivals: Arrivals::Constant };
    let spec = LoadSpec { connections: 64, rate: Some(rate), duration: Some(ROUND), ..LoadSpec::new(url) };
    let mut pairs = Vec::new();
    let mut all = LatencyHistogram::new();
    for _ in 0..ROUNDS {
        let own = run(&spec).unwrap().latency;
        all.merge(&own);
        let flags = format!("--h1 -t1 -c64 -D{} --rps={}", ROUND.as_secs(), RATE / 64);
        let output = Command::new("h2load").args(flags.split(' ')).arg(url).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("time for request:")).unwrap();
        pairs.push((micros(line.split_whitespace().nth(5).unwrap()), own.mean().as_secs_f64() * 1e6));
    }
    let found = RatioInterval::of(&pairs).unwrap();
    println!("open loop, {RATE} requests/s: mean {:?}, p99 {:?}", all.mean(), all.quantile(0.99));
    println!("  mean, this / h2load {:.3} ({:.3} to {:.3})", found.ratio, found.low, found.high);
}

/// h2load's times: 123us, 1.23ms or 1.23s.
fn micros(text: &str) -> f64 {
    let digits = text.trim_end_matches(|letter: char| letter.is_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        _ => 1e6,
    };
    digits.parse::<f64>().unwrap() * factor
}
