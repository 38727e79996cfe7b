//! `sluicegate selftest --power-cut`: kills, torn writes and flipped bits on the user's own disk, and their
//! cost.
//!
//! A round: a child of this binary appends through the real log until it is killed at a random moment; the
//! log is opened and compared with what was acknowledged to the child; then copies of the folder are
//! damaged like by a power cut (only what no flush had confirmed: all promises must still hold), and like
//! by a bad disk (bits anywhere: each must be found and named).
//!
//! A killed process loses nothing that the kernel has, so this does not detect a disk that reports flushes
//! it did not make: that takes a real power cut. The report says so.

mod acknowledged;
mod check;
mod content;
mod damage;
mod report;
mod supervisor;
mod writer;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use wal::{LogOptions, WriteAheadLog};

use super::run::data_folder;
use acknowledged::AcknowledgedState;
use check::Violation;
use report::SelftestReport;

/// Torn copies, and copies with flipped bits, after each kill.
const COPIES_PER_ROUND: usize = 2;
/// Longest lifetime of a child after it has opened the log, in milliseconds; the shortest is zero.
const LIFE_MS_MAX: u64 = 300;
/// One in this many children is killed while it still opens the log: recovery is interrupted too.
const KILLED_EARLY_ONE_IN: u32 = 6;
/// Small, so that segments roll over, are dropped and reused many times in a second. In bytes.
const SEGMENT_BYTES: u32 = 1 << 20;
/// Space for live records and for those being compacted, in bytes.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// Interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Longest campaign, in seconds: a day.
const SECONDS_MAX: u64 = 24 * 60 * 60;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status 0: no acknowledged event was lost and every flipped bit was found. 1: something was \
    lost or not detected, and the report says where the evidence is stored.\n\
    A killed process loses nothing that the kernel has, so a disk that reports flushes it did not make is found \
    only by a real power cut; implausibly fast flushes are pointed out."
)]
pub(crate) struct SelftestArgs {
    /// Kill, tear and flip: is what was acknowledged still there?
    #[arg(long, required = true)]
    power_cut: bool,
    /// Folder on the disk to test; a subfolder is created in it, and removed if all is well
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Duration of the campaign, in seconds; the current round is finished
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Repeat the contents and the damage of an earlier campaign (the moments of the kills differ)
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Marks a child process: append from this batch on, until it is killed
    #[arg(long, hide = true)]
    append_from: Option<u64>,
}

pub(crate) fn run(args: &SelftestArgs) -> ExitCode {
    let seed = args.seed.unwrap_or_else(|| Rng::new().u64(..));
    let outcome = match args.append_from {
        Some(batch) => writer::append(&args.data, seed, batch).map(|()| true),
        None => campaign(args, seed),
    };
    super::exit_code(outcome)
}

fn campaign(args: &SelftestArgs, seed: u64) -> Result<bool> {
    fs::create_dir_all(&args.data).with_context(|| format!("{}: the folder cannot be made", args.data.display()))?;
    // A running appliance needs its disk for itself, and none may start meanwhile.
    let _data_folder = args.data.join("lock").exists().then(|| data_folder::take(&args.data)).transpose()?;
    let work_folder = args.data.join(format!("selftest-{}", std::process::id()));
    fs::create_dir(&work_folder).with_context(|| format!("{} cannot be made", work_folder.display()))?;
    complain!("testing {} for {} s, seed {seed}", work_folder.display(), args.seconds);

    let mut rounds = CampaignState {
        seed,
        rng: Rng::with_seed(seed),
        promise: AcknowledgedState::default(),
        report: SelftestReport::default(),
    };
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut last_report = Instant::now();
    let tidy_line = if io::stderr().is_terminal() { "\r" } else { "\n" };
    while Instant::now() < end && rounds.report.is_clean() {
        rounds
            .round(&work_folder)
            .with_context(|| format!("the campaign stopped; its files are in {}", work_folder.display()))?;
        if last_report.elapsed() >= PROGRESS_EVERY {
            last_report = Instant::now();
            complain!(part "{}{tidy_line}", rounds.report.progress());
        }
    }
    super::tell(&rounds.report.table(seed, &args.data))?;
    if rounds.report.is_clean() {
        fs::remove_dir_all(&work_folder).with_context(|| format!("{} cannot be removed", work_folder.display()))?;
        return Ok(true);
    }
    let kept = work_folder.display();
    super::tell(&format!("FAILED: the evidence is in {kept}; replay with --seed {seed}\n"))?;
    Ok(false)
}

/// State of the campaign from one round to the next: all rounds continue with the same log.
struct CampaignState {
    seed: u64,
    rng: Rng,
    promise: AcknowledgedState,
    report: SelftestReport,
}

impl CampaignState {
    /// One kill and its checks. The findings are in the report.
    fn round(&mut self, work_folder: &Path) -> Result<()> {
        let (home, copy) = (work_folder.join("log"), work_folder.join("copy"));
        let early = self.rng.u32(0..KILLED_EARLY_ONE_IN) == 0;
        let life = Duration::from_millis(self.rng.u64(0..=LIFE_MS_MAX));
        let work = supervisor::kill_a_writer(&home, self.seed, &mut self.promise, life, early)?;
        self.report.killed(&work, self.seed);

        // The copies first: opening the log repairs what the kill left.
        for _ in 0..COPIES_PER_ROUND {
            damage::copy(&home, &copy)?;
            self.report.torn += 1;
            self.report.torn_bytes += damage::tear(&copy, self.promise.durable, &mut self.rng)?;
            if !self.hold(&copy, "a torn write")? {
                return Ok(());
            }
        }
        for _ in 0..COPIES_PER_ROUND {
            damage::copy(&home, &copy)?;
            if !self.flip(&copy)? {
                return Ok(());
            }
        }
        fs::remove_dir_all(&copy).with_context(|| format!("{} cannot be removed", copy.display()))?;
        if let (log, true) = self.open(&home, "a kill")? {
            self.promise.settle(&log, check::end(&log));
        }
        Ok(())
    }

    /// Opens a folder and compares it with the promises; true when they hold.
    fn hold(&mut self, folder: &Path, after: &'static str) -> Result<bool> {
        self.open(folder, after).map(|(_, holds)| holds)
    }

    fn open(&mut self, folder: &Path, after: &'static str) -> Result<(WriteAheadLog, bool)> {
        let (log, recovery) = WriteAheadLog::open(folder, options(self.seed))
            .with_context(|| format!("{} after {after} (stored as evidence)", folder.display()))?;
        let mut violations: Vec<Violation> = recovery.gaps.iter().map(Violation::gap).collect();
        violations.extend(check::against(&log, self.seed, &self.promise));
        let holds = violations.is_empty();
        self.report.violated(after, folder, violations);
        Ok((log, holds))
    }

    /// Flips bits in acknowledged records; false when one was not detected.
    fn flip(&mut self, copy: &Path) -> Result<bool> {
        let Some(flips) = damage::flip(copy, self.promise.proven, &mut self.rng)? else { return Ok(true) };
        self.report.flips += 1;
        let mut violations = Vec::new();
        match wal::inspect(copy, &mut |_, _| {}) {
            Ok(found) if found.gaps.is_empty() => violations.push(Violation::passed_over(&flips, "verify")),
            Ok(_) | Err(_) => {}
        }
        // A rejection names the file: that counts as detected, too.
        if let Ok((log, recovery)) = WriteAheadLog::open(copy, options(self.seed)) {
            if recovery.gaps.is_empty() {
                violations.push(Violation::passed_over(&flips, "recovery"));
            }
            violations.extend(check::invented(&log, self.seed));
        }
        let found = violations.is_empty();
        self.report.flips_detected += u64::from(found);
        self.report.violated("flipped bits", copy, violations);
        Ok(found)
    }
}

fn options(seed: u64) -> LogOptions {
    LogOptions { segment_bytes: SEGMENT_BYTES, log_bytes_max: LOG_BYTES_MAX, seed, ..LogOptions::default() }
}
