//! A small load test by hand: `quick URL CONNECTIONS SECONDS [RATE [STREAMS]]`. With streams it speaks HTTP/2.

use std::time::Duration;

use sluicegate_load::{Arrivals, LoadProtocol, LoadSpec, LoadTestError, OpenLoopRate, Report, report, run};

fn main() -> Result<(), LoadTestError> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(default);
    let rate = number(3, 0.0);
    let streams = number(4, 0.0) as usize;
    let spec = LoadSpec {
        connections: number(1, 1.0) as usize,
        duration: Some(Duration::from_secs_f64(number(2, 5.0))),
        rate: (rate > 0.0).then_some(OpenLoopRate { from: rate, to: rate, arrivals: Arrivals::Constant }),
        streams: streams.max(1),
        protocol: if streams > 0 { LoadProtocol::Http2 } else { LoadProtocol::Http1 },
        warm_up: Duration::from_millis(500),
        ..LoadSpec::new(words.first().cloned().unwrap_or_else(|| "http://127.0.0.1:8080/".to_owned()))
    };
    print!("{}", report::to_text(&Report::Tests(vec![run(&spec)?])));
    Ok(())
}
