//! The flags of `sluicegate load`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use load::limits::{REQUEST_BODY_BYTES_MAX, RESPONSE_TIMEOUT, STEPS_MAX};
use load::{Arrivals, LoadProtocol, LoadSpec, OpenLoopRate, RequestOptions, TlsTrust};

use super::output::ReportOutput;
use crate::config::{Wait, whole};

/// The type of events, unless the user says otherwise.
const EVENT_TYPE: &str = "dev.sluicegate.load";
/// How long one round of a comparison lasts, unless the user says otherwise.
const ROUND_DURATION: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// Target: `http://HOST[:PORT]/PATH`, or `https://`
    url: String,

    /// Connections, over all threads
    #[arg(short, long, value_name = "N", value_parser = whole::<usize>, default_value_t = 16)]
    connections: usize,

    /// Concurrent requests of each connection; more than 1 needs --http2
    #[arg(long, value_name = "N", value_parser = whole::<usize>, default_value_t = 1)]
    streams: usize,

    /// Threads of the generator
    #[arg(short, long, value_name = "N", value_parser = whole::<usize>, default_value_t = 1)]
    threads: usize,

    /// Open loop: requests a second, whether the target keeps up or not; latency counts from when a request was due.
    /// Without --rate, --step and --ramp each connection sends its next request when the last one is answered
    #[arg(short, long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,

    /// Open loop: each of these rates in turn, as a test of its own
    #[arg(long, value_name = "RATE,...", value_parser = rate, value_delimiter = ',', conflicts_with_all = ["rate", "compare"])]
    step: Vec<f64>,

    /// Open loop: a rate that changes evenly over --duration
    #[arg(long, value_name = "FROM:TO", value_parser = ramp, conflicts_with_all = ["rate", "step"])]
    ramp: Option<(f64, f64)>,

    /// Times between the requests of an open loop: constant, or those of independent clients
    #[arg(long, value_name = "ARRIVALS", value_enum, default_value_t = ArrivalsRule::Constant)]
    arrivals: ArrivalsRule,

    /// Length of the test, of each step, or of each round [default: 10s; 3s with --compare]
    #[arg(short, long, value_name = "WAIT")]
    duration: Option<Wait>,

    /// End after this many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<u64>)]
    requests: Option<u64>,

    /// Send requests for this long before those that count
    #[arg(long, value_name = "WAIT", default_value = "0s")]
    warm_up: Wait,

    /// How long a response may take; a request that takes longer has failed [default: 30s]
    #[arg(long, value_name = "WAIT")]
    timeout: Option<Wait>,

    /// HTTP/2: by ALPN with https://, and by prior knowledge with http://
    #[arg(long)]
    http2: bool,

    /// gRPC unary calls over HTTP/2; the body is one message as it is encoded
    #[arg(long, conflicts_with = "cloudevent")]
    grpc: bool,

    /// POST CloudEvents in binary mode, each with its own id; TYPE is their type
    #[arg(long, value_name = "TYPE", num_args = 0..=1, require_equals = true, default_missing_value = EVENT_TYPE)]
    cloudevent: Option<String>,

    /// A header of each request; may be given more than once
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,

    /// The body of each request, or @FILE
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,

    /// [default: GET, or POST with a body]
    #[arg(short, long, value_name = "METHOD")]
    method: Option<String>,

    /// Accept any certificate
    #[arg(short = 'k', long, conflicts_with = "ca")]
    insecure: bool,

    /// Accept certificates of these authorities (PEM) [default: those of this host]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Compare with this target, in alternating rounds, and print ratios with their 95 % confidence intervals
    #[arg(long, value_name = "URL")]
    pub(super) compare: Option<String>,

    /// Rounds of each target with --compare
    #[arg(long, value_name = "N", value_parser = whole::<usize>, default_value_t = 8)]
    pub(super) rounds: usize,

    /// Print the processor time that this process takes for a request; with --compare it may be given twice, once for each target
    #[arg(long, value_name = "PID", value_parser = whole::<u32>)]
    pub(super) cpu_of: Vec<u32>,

    /// Write the report as text, json, csv (the time series) or html (with plots), to FILE or stdout; may be given more
    /// than once [default: text]
    #[arg(short, long, value_name = "FORMAT[:FILE]")]
    pub(super) output: Vec<ReportOutput>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ArrivalsRule {
    Constant,
    Poisson,
}

impl LoadArgs {
    /// The tests: one, or one for each step.
    pub(super) fn specs(&self) -> anyhow::Result<Vec<LoadSpec>> {
        let targets = 1 + usize::from(self.compare.is_some());
        if self.cpu_of.len() > targets {
            bail!("--cpu-of {}: there is one for each target; leave it out", self.cpu_of[targets]);
        }
        if self.step.len() > STEPS_MAX {
            bail!("--step has {} rates: use at most {STEPS_MAX}", self.step.len());
        }
        let spec = self.spec()?;
        if self.step.is_empty() {
            return Ok(vec![spec]);
        }
        let with = |rate: &f64| LoadSpec { rate: Some(self.open_loop(*rate, *rate)), ..spec.clone() };
        Ok(self.step.iter().map(with).collect())
    }

    fn spec(&self) -> anyhow::Result<LoadSpec> {
        let rate = match (self.rate, self.ramp) {
            (Some(rate), _) => Some(self.open_loop(rate, rate)),
            (None, Some((from, to))) => Some(self.open_loop(from, to)),
            (None, None) => None,
        };
        let default_duration = (self.compare.is_some() && self.requests.is_none()).then_some(ROUND_DURATION);
        Ok(LoadSpec {
            request: RequestOptions {
                method: self.method.clone(),
                headers: self.header.clone(),
                body: self.body.as_deref().map(body).transpose()?.unwrap_or_default().into(),
                event_type: self.cloudevent.clone(),
                is_grpc: self.grpc,
            },
            protocol: if self.http2 || self.grpc { LoadProtocol::Http2 } else { LoadProtocol::Http1 },
            trust: self.trust()?,
            connections: self.connections,
            streams: self.streams,
            threads: self.threads,
            rate,
            duration: self.duration.map(|wait| wait.0).or(default_duration),
            requests: self.requests,
            warm_up: self.warm_up.0,
            timeout: self.timeout.map_or(RESPONSE_TIMEOUT, |wait| wait.0),
            cpu_of: self.cpu_of.first().copied(),
            ..LoadSpec::new(self.url.clone())
        })
    }

    fn open_loop(&self, from: f64, to: f64) -> OpenLoopRate {
        let arrivals = match self.arrivals {
            ArrivalsRule::Constant => Arrivals::Constant,
            ArrivalsRule::Poisson => Arrivals::Poisson,
        };
        OpenLoopRate { from, to, arrivals }
    }

    fn trust(&self) -> anyhow::Result<TlsTrust> {
        Ok(match &self.ca {
            _ if self.insecure => TlsTrust::Insecure,
            None => TlsTrust::System,
            Some(path) => TlsTrust::Authorities(fs::read(path).with_context(|| format!("--ca {}", path.display()))?),
        })
    }
}

/// The text, or what is in the file that it names.
fn body(text: &str) -> anyhow::Result<Vec<u8>> {
    let Some(path) = text.strip_prefix('@').map(Path::new) else { return Ok(text.as_bytes().to_vec()) };
    let named = || format!("--body @{}", path.display());
    let bytes = fs::metadata(path).with_context(named)?.len();
    if bytes > REQUEST_BODY_BYTES_MAX as u64 {
        bail!("{}: it has {bytes} bytes, and the limit is {REQUEST_BODY_BYTES_MAX}; use a smaller file", named());
    }
    fs::read(path).with_context(named)
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("it is not a number of requests a second, like 5000 or 0.5".to_owned()),
    }
}

fn ramp(text: &str) -> Result<(f64, f64), String> {
    let ends = text.split_once(':').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    match ends {
        Some((from, to)) if from >= 0.0 && to >= 0.0 && from + to > 0.0 && f64::is_finite(from + to) => Ok((from, to)),
        _ => Err("write FROM:TO in requests a second, like 100:5000".to_owned()),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    fn specs(words: &[&str]) -> anyhow::Result<Vec<LoadSpec>> {
        let words = ["load", "http://127.0.0.1:81/"].iter().chain(words);
        Line::try_parse_from(words)?.args.specs()
    }

    fn spec(words: &[&str]) -> LoadSpec {
        specs(words).unwrap().remove(0)
    }

    #[test]
    fn flags_become_the_fields_of_a_test() {
        let plain = spec(&[]);
        assert_eq!((plain.connections, plain.threads, plain.rate, plain.duration), (16, 1, None, None));
        let rated = spec(&["--rate", "500", "--arrivals", "poisson", "-d", "2s", "--warm-up", "1s"]);
        assert_eq!(rated.rate, Some(OpenLoopRate { from: 500.0, to: 500.0, arrivals: Arrivals::Poisson }));
        assert_eq!((rated.duration, rated.warm_up), (Some(Duration::from_secs(2)), Duration::from_secs(1)));
        assert_eq!(spec(&["--ramp", "0:90"]).rate.map(|rate| (rate.from, rate.to)), Some((0.0, 90.0)));
        let steps: Vec<_> = specs(&["--step", "1,2,3"]).unwrap();
        assert_eq!(steps.iter().map(|step| step.rate.unwrap().to).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
        assert_eq!(spec(&["--grpc"]).protocol, LoadProtocol::Http2);
        assert_eq!(spec(&["--cloudevent"]).request.event_type.as_deref(), Some(EVENT_TYPE));
        assert_eq!(spec(&["--cloudevent=a.b"]).request.event_type.as_deref(), Some("a.b"));
        let headers = spec(&["-H", "A: b:c", "-H", "D:e"]).request.headers;
        assert_eq!(headers, [("A".to_owned(), "b:c".to_owned()), ("D".to_owned(), "e".to_owned())]);
        assert_eq!(spec(&["--compare", "http://127.0.0.1:82/"]).duration, Some(ROUND_DURATION));
    }

    #[test]
    fn flags_that_contradict_are_refused() {
        for words in [
            &["--rate", "0"][..],
            &["--rate", "x"],
            &["--ramp", "5"],
            &["--ramp", "0:0"],
            &["--rate", "1", "--step", "1,2"],
            &["--step", "1,2", "--compare", "http://127.0.0.1:82/"],
            &["--insecure", "--ca", "/x"],
            &["--ca", "/no/such/file"],
            &["--body", "@/no/such/file"],
            &["--header", "a"],
            &["--cpu-of", "1", "--cpu-of", "2"],
            &["--output", "pdf"],
            &["--grpc", "--cloudevent"],
        ] {
            assert!(specs(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn body_is_text_or_the_content_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x00\x01").unwrap();
        assert_eq!(body("text").unwrap(), b"text");
        assert_eq!(body(&format!("@{}", file.path().display())).unwrap(), b"\x00\x01");
    }
}
