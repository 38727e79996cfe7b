//! `sluicegate event trace|list|replay|redrive`: queries the admin listener of a running appliance for the
//! outcomes of events, and sends them again.

mod patch;
mod replay;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::admin_client::AdminClient;
use super::tell;
pub(crate) use replay::{RedriveArgs, ReplayArgs};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum EventCommand {
    /// Show the path of an event: arrival, filters, attempts, replies, dead letters
    Trace(TraceArgs),
    /// Show the newest events, or those that were given up
    List(EventListArgs),
    /// Send events of the log again: to a Trigger's subscriber, or to a Revision that is to replace it
    Replay(Box<ReplayArgs>),
    /// Send a Trigger's dead letters to its subscriber again
    Redrive(RedriveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    admin: AdminClient,
    /// The event's id
    #[arg(required_unless_present = "source")]
    id: Option<String>,
    /// Only events of this source
    #[arg(long)]
    source: Option<String>,
    /// Only events since then: a time (RFC 3339), or an age (10m)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EventListArgs {
    #[command(flatten)]
    admin: AdminClient,
    /// Only events that were dead-lettered, or dropped because there is no dead letter sink
    #[arg(long)]
    dead_letters: bool,
    /// Only dead letters of this Trigger or Subscription; trigger/NAMESPACE/NAME or subscription/NAMESPACE/NAME where there are
    /// both
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = replay::label, requires = "dead_letters")]
    trigger: Option<String>,
    /// Only those since then
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(verb: &EventCommand) -> ExitCode {
    let outcome = match verb {
        EventCommand::Trace(trace) => show_trace(trace),
        EventCommand::List(list) if list.dead_letters => print_dead_letters(list),
        EventCommand::List(list) => show_newest(list),
        EventCommand::Replay(args) => replay::replay(args),
        EventCommand::Redrive(args) => replay::redrive(args),
    };
    super::exit_code(outcome)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn show_trace(trace: &TraceArgs) -> Result<bool> {
    let TraceArgs { admin, id, source, since, json } = trace;
    let query = [("id", id.as_deref()), ("source", source.as_deref()), ("since", since.as_deref())];
    let found = admin.get("/debug/events/trace", &query)?;
    if *json {
        return tell(&format!("{found:#}\n")).map(|()| true);
    }
    let mut out = String::new();
    let events = list(&found, "events");
    for event in events {
        let attribute = |name: &str| text(&event["attributes"], name);
        let again = if event["replay"] == true { ", a replay" } else { "" };
        writeln!(
            out,
            "{}  accepted at {} as {}:{}{again}\n  id {}  source {}  type {}",
            text(event, "accepted"),
            text(event, "stream"),
            event["core"],
            event["position"],
            attribute("id"),
            attribute("source"),
            attribute("type"),
        )?;
        for subscriber in list(event, "subscribers") {
            writeln!(out, "  {}: {}", text(subscriber, "subscriber"), text(subscriber, "outcome"))?;
            for note in list(subscriber, "notes") {
                write!(out, "    {}  {}", text(note, "time"), text(note, "event"))?;
                if let (Some(attempt), Some(status)) = (note["attempt"].as_u64(), note["status"].as_u64()) {
                    let said = note["error"].as_str().map_or_else(|| status.to_string(), str::to_owned);
                    write!(out, " {attempt}: {said} after {:.1} ms", note["latency_ms"].as_f64().unwrap_or(0.0))?;
                }
                writeln!(out)?;
            }
        }
    }
    tell(&out)?;
    if events.is_empty() {
        complain!("no such event in the log: it never arrived, or its segment was deleted");
    }
    Ok(!events.is_empty())
}

/// One line for each event, the newest last.
fn show_newest(order: &EventListArgs) -> Result<bool> {
    let found = order.admin.get("/debug/events/trace", &[("since", order.since.as_deref())])?;
    if order.json {
        return tell(&format!("{found:#}\n")).map(|()| true);
    }
    let mut events: Vec<_> = list(&found, "events").iter().collect();
    if events.is_empty() {
        complain!(
            "no event is in the log: post one to http://EVENTS/brokers/NAMESPACE/NAME, as docs/eventing.md shows"
        );
    }
    events.sort_by_key(|event| text(event, "accepted"));
    let mut out = String::new();
    for event in events {
        let attribute = |name: &str| text(&event["attributes"], name);
        write!(
            out,
            "{}  {}  id {}  source {}  type {}",
            text(event, "accepted"),
            text(event, "stream"),
            attribute("id"),
            attribute("source"),
            attribute("type"),
        )?;
        for subscriber in list(event, "subscribers") {
            write!(out, "  {}: {}", text(subscriber, "subscriber"), text(subscriber, "outcome"))?;
        }
        writeln!(out)?;
    }
    tell(&out).map(|()| true)
}

fn print_dead_letters(order: &EventListArgs) -> Result<bool> {
    let query = [("trigger", order.trigger.as_deref()), ("since", order.since.as_deref())];
    let found = order.admin.get("/debug/events/dead-letters", &query)?;
    if order.json {
        return tell(&format!("{found:#}\n")).map(|()| true);
    }
    let mut out = String::new();
    let dead_letters = list(&found, "deadLetters");
    if dead_letters.is_empty() {
        complain!("there are no open dead letters in the log");
    }
    if let Some(older @ 1..) = found["omitted"].as_u64() {
        complain!("{older} older ones are not listed; a redrive includes them");
    }
    for dead_letter in dead_letters {
        writeln!(
            out,
            "{}  {} {}  {}  id {}  source {}  type {}",
            text(dead_letter, "time"),
            text(dead_letter, "kind"),
            text(dead_letter, "subscriber"),
            text(dead_letter, "event"),
            text(dead_letter, "id"),
            text(dead_letter, "source"),
            text(dead_letter, "type"),
        )?;
    }
    tell(&out).map(|()| true)
}
