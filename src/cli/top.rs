//! `sluicegate top`: what a running appliance does now, as tables that are drawn again and again.
//!
//! The admin listener has totals (`/debug/figures`); rates and percentiles are the difference of two readings.

mod sample;
mod screen;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::admin_client::AdminClient;
use super::tell;
use crate::config::whole;
use sample::Sample;
use screen::Screen;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    admin: AdminClient,
    /// Print the tables once, without control characters, and end
    #[arg(long)]
    once: bool,
    /// Seconds between two readings, over which rates and percentiles are computed
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u16>, default_value_t = 1)]
    interval: u16,
    /// The order of the rows
    #[arg(long, value_enum, default_value_t = SortKey::Rate)]
    sort: SortKey,
}

/// What the first row has most of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortKey {
    Rate,
    P99,
    Errors,
    Queued,
    /// Alphabetically
    Name,
}

pub(crate) fn run(args: &TopArgs) -> ExitCode {
    super::exit_code(show(args).map(|()| true))
}

fn show(args: &TopArgs) -> Result<()> {
    let interval = Duration::from_secs(args.interval.max(1).into());
    let mut last = read(&args.admin)?;
    let mut screen = (!args.once).then(Screen::open).transpose()?;
    loop {
        if let Some(screen) = &mut screen
            && !screen.wait(interval)
        {
            return Ok(()); // interrupted
        }
        if screen.is_none() {
            pause(interval);
        }
        let (next, problem) = match read(&args.admin) {
            Ok(next) => (next, None),
            // It restarts, perhaps: the last tables stay.
            Err(why) if screen.is_some() => (last.clone(), Some(format!("{why:#}"))),
            Err(why) => return Err(why),
        };
        let lines = screen.as_ref().and_then(Screen::lines);
        let mut text = table::render(&args.admin.address().to_string(), &last, &next, args.sort, lines);
        if let Some(problem) = problem {
            text.push_str(&format!("\n{problem}\n"));
        } else {
            last = next;
        }
        match &mut screen {
            None => return tell(&text),
            Some(screen) => screen.draw(&text)?,
        }
    }
}

fn read(admin: &AdminClient) -> Result<Sample> {
    Ok(Sample::of(&admin.get("/debug/figures", &[])?))
}

#[expect(clippy::disallowed_methods, reason = "a command line tool has nothing else to do")]
fn pause(interval: Duration) {
    std::thread::sleep(interval);
}
