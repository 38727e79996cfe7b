//! `cargo bench -p bench-example`: requests a second, and processor time a request, of the service in `src/main.rs`.

use std::process::Command;

use criterion::measurement::Measurement;
use criterion::{Criterion, Throughput};
use sluicegate_load::LoadTestError;
use sluicegate_load::bench::{CpuPerRequest, HttpBench, RequestRate, ServerProcess};

fn main() -> Result<(), LoadTestError> {
    let server = ServerProcess::start(|port| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench-example"));
        command.env("PORT", port.to_string());
        command
    })?;
    let bench = HttpBench::new(server.url("/")).cpu_of(server.pid());
    bench.warm_up(1_000)?;

    let mut criterion = criterion(RequestRate);
    let mut group = criterion.benchmark_group("rate");
    group.throughput(Throughput::Elements(1));
    for connections in [1, 16] {
        let bench = bench.clone().connections(connections);
        group.bench_function(format!("{connections} connections"), |b| {
            b.iter_custom(|requests| bench.elapsed(requests).expect("the service responds"));
        });
    }
    group.finish();

    let mut criterion = self::criterion(CpuPerRequest::of(server.pid())?);
    let mut group = criterion.benchmark_group("cpu");
    let bench = bench.connections(16);
    group.bench_function("16 connections", |b| {
        b.iter_custom(|requests| bench.cpu(requests).expect("the service responds"));
    });
    group.finish();
    Ok(())
}

/// Few samples with many requests each: each sample opens its connections again.
fn criterion<M: Measurement + 'static>(measurement: M) -> Criterion<M> {
    Criterion::default().with_measurement(measurement).sample_size(10).configure_from_args()
}
