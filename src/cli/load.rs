//! `sluicegate load`: sends requests to a URL, and reports rates, latencies, failures and processor time.

mod args;
mod output;
mod progress;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, bail};
use load::{LoadSpec, Report, StopHandle, compare, run_observed};
use signal_hook::consts::{SIGINT, SIGTERM};

pub(crate) use args::LoadArgs;
use output::ReportWriter;
use progress::LoadDisplay;

/// Exit status 0: at least one response came. 1: none, or the test could not begin.
pub(crate) fn run(args: &LoadArgs) -> ExitCode {
    super::exit_code(measure(args))
}

fn measure(args: &LoadArgs) -> anyhow::Result<bool> {
    let specs = args.specs()?;
    // A file that cannot be written is reported before the test and not after it.
    let mut writers = args.output.iter().map(ReportWriter::open).collect::<anyhow::Result<Vec<_>>>()?;
    if writers.is_empty() {
        writers.push(ReportWriter::text());
    }
    let stop = stop_at_signals()?;
    let report = match &args.compare {
        None => Report::Tests(run_steps(&specs, &stop)?),
        Some(other) => Report::Comparison(Box::new(run_rounds(args, &specs, other, &stop)?)),
    };
    for writer in writers {
        writer.write(&report)?;
    }
    if report.responses() == 0 {
        let why = report.first_failure();
        bail!("no response: {}", why.unwrap_or_else(|| "no request was sent; use a longer --duration".to_owned()));
    }
    Ok(true)
}

/// The first SIGINT or SIGTERM ends the test early, and the report is written; the second ends the program.
fn stop_at_signals() -> anyhow::Result<StopHandle> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag)).context("handle signals")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("handle signals")?;
    }
    Ok(StopHandle::new(flag))
}

fn run_steps(specs: &[LoadSpec], stop: &StopHandle) -> anyhow::Result<Vec<load::LoadResult>> {
    let mut results = Vec::new();
    for (step, spec) in (1..).zip(specs) {
        let label = if specs.len() > 1 { format!("step {step} of {}  ", specs.len()) } else { String::new() };
        let mut display = LoadDisplay::new(label);
        results.push(run_observed(spec, stop, &mut |progress| display.show(progress))?);
        if stop.is_stopped() {
            break;
        }
    }
    Ok(results)
}

fn run_rounds(args: &LoadArgs, specs: &[LoadSpec], other: &str, stop: &StopHandle) -> anyhow::Result<load::Comparison> {
    let [first] = specs else { bail!("--compare and --step: a comparison has one rate; use --rate") };
    let cpu_of = args.cpu_of.get(1).copied();
    let second = LoadSpec { url: other.to_owned(), cpu_of, ..first.clone() };
    let mut display = LoadDisplay::new(String::new());
    let compared = compare(first, &second, args.rounds, stop, &mut |round, progress| {
        display.label(format!("round {} of {}  ", round + 1, args.rounds));
        display.show(progress);
    });
    Ok(compared?)
}
