//! `sluicegate wal verify|stat|dump`: inspects a log's folder, read only, in use or not.
//!
//! Findings go to stdout, progress to stderr. Exit status 0: all well; 1: damage was found, or the folder
//! cannot be read.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::run::log_names;
use crate::config::whole;
use anyhow::{Context, bail};
use clap::ValueEnum;
use wal::{CursorInspection, InspectedRecord, LogInspection, LogPosition};

/// Interval of progress lines: small logs are read within it.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Depth of the search for logs below the given folder: a data folder contains one for each core.
const DEPTH_MAX: usize = 2;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum WalCommand {
    /// Read every record and check every checksum
    Verify(WalFolderArgs),
    /// Show streams, subscribers, and how far behind each is
    Stat(WalFolderArgs),
    /// Print one line for each record
    Dump(DumpArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WalFolderArgs {
    /// A log's folder, or a data folder with the logs of all cores
    dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    folder: WalFolderArgs,
    /// Only records of this stream, by either of the names that `stat` shows
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Only records from this position on
    #[arg(long, value_name = "POSITION", value_parser = whole::<u64>, default_value_t = 0)]
    from: u64,
    /// The payload as well
    #[arg(long, value_name = "FORM")]
    payload: Option<DumpFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DumpFormat {
    Hex,
    /// With escapes for non-text bytes
    Utf8,
}

pub(crate) fn run(verb: &WalCommand) -> ExitCode {
    let outcome = match verb {
        WalCommand::Verify(folder) => each(folder, &mut |log| verify(log)),
        WalCommand::Stat(folder) => each(folder, &mut |log| stat(log)),
        WalCommand::Dump(order) => each(&order.folder, &mut |log| dump(log, order)),
    };
    match outcome {
        // `dump | head` is no failure.
        Err(why) if is_closed_pipe(&why) => ExitCode::SUCCESS,
        other => super::exit_code(other),
    }
}

fn is_closed_pipe(why: &anyhow::Error) -> bool {
    let mut causes = why.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Calls `look` for every log there; true when all are sound.
fn each(folder: &WalFolderArgs, look: &mut dyn FnMut(&Path) -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    let mut logs = Vec::new();
    find_logs(&folder.dir, DEPTH_MAX, &mut logs)?;
    if logs.is_empty() {
        bail!(
            "{}: no log here: give the folder that `sluicegate run` has as --data, or one of the folders in its log/",
            folder.dir.display()
        );
    }
    let mut sound = true;
    for log in logs {
        sound &= match look(&log) {
            Err(why) if !is_closed_pipe(&why) => {
                complain!("error: {why:#}"); // the logs of other cores are still checked
                false
            }
            looked => looked?,
        };
    }
    Ok(sound)
}

fn find_logs(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("{} cannot be read as a folder", folder.display()))?;
    if wal::is_log(folder) {
        found.push(folder.into());
        return Ok(());
    }
    let mut below: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect();
    below.sort();
    if depth > 0 {
        below.iter().filter_map(|path| find_logs(path, depth - 1, found).err()).for_each(|why| {
            complain!("passed over: {why:#}"); // usually an instance's folder without permission
        });
    }
    Ok(())
}

fn verify(log: &Path) -> anyhow::Result<bool> {
    let found = wal::inspect(log, &mut progress(log))?;
    let mut out = io::stdout().lock();
    let LogInspection { segments, bytes, records, torn_bytes, first, end, .. } = &found;
    writeln!(out, "{}", log.display())?;
    writeln!(out, "  {records} event records in {segments} segments, {bytes} bytes, positions {first} to {end}")?;
    if *torn_bytes > 0 {
        writeln!(
            out,
            "  {torn_bytes} bytes of an unfinished flush at the end: no damage, they were never acknowledged"
        )?;
    }
    let sound = print_damage(&found, &mut out)?;
    if sound {
        writeln!(out, "  sound: every checksum holds, no position is missing")?;
    }
    Ok(sound)
}

fn print_damage(found: &LogInspection, out: &mut impl Write) -> io::Result<bool> {
    for gap in &found.gaps {
        let bytes = gap.to.get() - gap.from.get();
        writeln!(out, "  DAMAGE: {bytes} acknowledged bytes, positions {} to {}: {gap}", gap.from, gap.to)?;
    }
    for cut in &found.cut {
        writeln!(out, "  TRUNCATED: {cut}; records behind its end are lost, if there were any")?;
    }
    for file in &found.set_aside {
        writeln!(out, "  set aside by an earlier start: {}", file.display())?;
    }
    Ok(found.gaps.is_empty() && found.cut.is_empty())
}

fn stat(log: &Path) -> anyhow::Result<bool> {
    let found = wal::inspect(log, &mut progress(log))?;
    let mut out = io::stdout().lock();
    let LogInspection { segments, spares, bytes, records, first, end, streams, .. } = &found;
    writeln!(out, "{}", log.display())?;
    writeln!(out, "  segments {segments}, spares {spares}, bytes {bytes}, event records {records}")?;
    writeln!(out, "  positions {first} to {end}")?;
    let names = log_names::read(log);
    for (name, stream) in streams {
        writeln!(out, "  stream {}: {} events", named(&names, name), stream.events)?;
        for CursorInspection { subscriber, mark, ahead } in &stream.cursors {
            let subscriber = named(&names, subscriber);
            writeln!(out, "    subscriber {subscriber}: at {}, {ahead} pending", mark.low())?;
        }
    }
    Ok(print_damage(&found, &mut out)?)
}

/// The log's internal name for the displayed `name`.
fn in_log<'n>(names: &'n log_names::Names, name: &'n str) -> &'n str {
    names.iter().find(|(_, shown)| *shown == name).map_or(name, |(logged, _)| logged)
}

/// The displayed name, with the internal name: `dump --stream` accepts that.
fn named(names: &log_names::Names, name: &str) -> String {
    names.get(name).map_or_else(|| name.to_owned(), |shown| format!("{shown} ({name})"))
}

fn dump(log: &Path, order: &DumpArgs) -> anyhow::Result<bool> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "# {}", log.display())?;
    writeln!(out, "# position stream time_ms bytes kind{}", if order.payload.is_some() { " payload" } else { "" })?;
    let from = LogPosition::new(order.from);
    let names = log_names::read(log);
    let wanted = order.stream.as_deref().map(|stream| in_log(&names, stream));
    let mut show = |entry: &InspectedRecord<'_>| {
        let wanted = wanted.is_none_or(|stream| entry.stream == Some(stream));
        if wanted && entry.position >= from { line(entry, order.payload, &mut out) } else { Ok(()) }
    };
    let found = wal::dump(log, &mut progress(log), &mut show)?;
    let sound = print_damage(&found, &mut io::stderr().lock())?;
    out.flush()?;
    if let Some(stream) = wanted.filter(|stream| !found.streams.contains_key(*stream)) {
        complain!("{}: no stream {stream:?}; `sluicegate wal stat` lists them", log.display());
    }
    Ok(sound)
}

fn line(entry: &InspectedRecord<'_>, payload: Option<DumpFormat>, out: &mut impl Write) -> io::Result<()> {
    let InspectedRecord { position, at_ms, kind, .. } = entry;
    let (stream, bytes) = (entry.stream.unwrap_or("-"), entry.payload.len());
    write!(out, "{position} {stream} {at_ms} {bytes} {kind}")?;
    match payload {
        None => {}
        Some(DumpFormat::Hex) => {
            out.write_all(b" ")?;
            entry.payload.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
        }
        Some(DumpFormat::Utf8) => write!(out, " {}", String::from_utf8_lossy(entry.payload).escape_debug())?,
    }
    writeln!(out)
}

/// Prints progress to stderr: a line that overwrites itself on a terminal.
fn progress(log: &Path) -> impl FnMut(u64, u64) + use<> {
    let (log, mut last_report) = (log.display().to_string(), Instant::now());
    let end = if io::stderr().is_terminal() { "\r" } else { "\n" };
    move |done, all| {
        if last_report.elapsed() >= PROGRESS_EVERY {
            last_report = Instant::now();
            complain!(part "{log}: {} of {} MiB read{end}", done >> 20, all >> 20);
        }
    }
}
