//! `sluicegate event trace|list|replay|redrive`: queries the admin listener of a running appliance for the
//! outcomes of events, and sends them again.

mod patch;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use ureq::Body;
use ureq::http::Response;

use super::tell;
use crate::config::{address, whole};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum EventCommand {
    /// Show the path of an event: arrival, filters, attempts, replies, dead letters
    Trace(TraceArgs),
    /// Show the newest events, or those that were given up
    List(EventListArgs),
    /// Send events to a Trigger's subscriber again
    Replay(ReplayArgs),
    /// Send a Trigger's dead letters to its subscriber again
    Redrive(RedriveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AdminClient {
    /// The appliance's admin listener
    #[arg(long, value_name = "ADDR", value_parser = address, env = "SLUICEGATE_ADMIN", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
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
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = label, requires = "dead_letters")]
    trigger: Option<String>,
    /// Only those since then
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    order: RedriveArgs,
    /// earliest, dead-letters, a time (RFC 3339), an age (10m), or CORE:POSITION, as trace shows it
    #[arg(long, value_name = "FROM")]
    from: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RedriveArgs {
    #[command(flatten)]
    admin: AdminClient,
    /// Trigger or Subscription whose subscriber gets them; trigger/NAMESPACE/NAME or
    /// subscription/NAMESPACE/NAME where there are both
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = label)]
    trigger: String,
    /// Only count the events
    #[arg(long)]
    dry_run: bool,
    /// Maximum events per second; 0 for no limit
    #[arg(long, value_name = "N", value_parser = whole::<u32>, default_value_t = 0)]
    rate: u32,
    #[command(flatten)]
    patch: patch::SubscriberPatch,
}

pub(crate) fn run(verb: &EventCommand) -> ExitCode {
    let outcome = match verb {
        EventCommand::Trace(trace) => show_trace(trace),
        EventCommand::List(list) if list.dead_letters => print_dead_letters(list),
        EventCommand::List(list) => show_newest(list),
        EventCommand::Replay(ReplayArgs { order, from }) => redrive(order, from),
        EventCommand::Redrive(order) => redrive(order, "dead-letters"),
    };
    super::exit_code(outcome)
}

/// `NAMESPACE/NAME`, optionally prefixed by the kind.
fn label(text: &str) -> Result<String, String> {
    let parts: Vec<_> = text.split('/').collect();
    let kinds = ["trigger", "subscription"];
    match parts[..] {
        _ if parts.contains(&"") => Err("write NAMESPACE/NAME, like default/orders".to_owned()),
        [name] => Err(format!("the namespace is missing: write NAMESPACE/{name}, like default/{name}")),
        [_, _] => Ok(text.to_owned()),
        [kind, ..] if parts.len() == 3 && kinds.contains(&kind) => Ok(text.to_owned()),
        _ => Err("write NAMESPACE/NAME, trigger/NAMESPACE/NAME or subscription/NAMESPACE/NAME".to_owned()),
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

fn ask(admin: &AdminClient, path: &str, query: &[(&str, Option<&str>)]) -> Result<Value> {
    let url = format!("http://{}/debug/events/{path}", admin.admin);
    let given = query.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
    let mut answer = agent().get(&url).query_pairs(given).call().with_context(|| unreachable(admin))?;
    if answer.status() != 200 {
        return Err(refusal(admin, &mut answer));
    }
    let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string()?;
    Ok(serde_json::from_str(&text)?)
}

/// The error of the admin listener. Another listener also returns an error, and does not know these paths.
fn refusal(admin: &AdminClient, answer: &mut Response<Body>) -> anyhow::Error {
    let said = answer.body_mut().read_to_string().unwrap_or_default();
    let said = said.trim();
    match answer.status().as_u16() {
        404 if !said.starts_with("there is no Trigger") => {
            anyhow!(
                "{} is not an admin listener: give --admin the address of the ready line; it answers 404: {said}",
                admin.admin
            )
        }
        _ => anyhow!("{said}"),
    }
}

fn unreachable(admin: &AdminClient) -> String {
    format!("no appliance responds at {}: give --admin the address of its ready line", admin.admin)
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
    let found = ask(admin, "trace", &query)?;
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
    let found = ask(&order.admin, "trace", &[("since", order.since.as_deref())])?;
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
    let found = ask(&order.admin, "dead-letters", &query)?;
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

fn redrive(order: &RedriveArgs, from: &str) -> Result<bool> {
    let RedriveArgs { admin, trigger, dry_run, rate, patch } = order;
    if let Some(reported) = patch.lay(trigger, *dry_run)? {
        complain!("{reported}");
    }
    let url = format!("http://{}/debug/events/replay", admin.admin);
    let mut answer = agent()
        .post(&url)
        .query("trigger", trigger)
        .query("from", from)
        .query("dry_run", dry_run.to_string())
        .query("rate", rate.to_string())
        .send_empty()
        .with_context(|| unreachable(admin))?;
    if answer.status() != 200 {
        return Err(refusal(admin, &mut answer));
    }
    for line in BufReader::new(answer.body_mut().as_reader()).lines() {
        let reported: Value = serde_json::from_str(&line?)?;
        if let Some(why) = reported["error"].as_str() {
            bail!("{why}");
        }
        if reported["done"] == true {
            let verb = if *dry_run { "would be sent" } else { "sent" };
            return tell(&format!("{} events {verb} to {trigger}\n", reported["sent"])).map(|()| true);
        }
        complain!("{} so far", reported["sent"]);
    }
    bail!("the appliance ended before it was done")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_without_namespace_is_rejected_with_format() {
        assert!(label("orders").unwrap_err().contains("NAMESPACE/orders"));
        for good in ["default/orders", "trigger/default/orders", "subscription/default/orders"] {
            assert_eq!(label(good), Ok(good.to_owned()));
        }
        for bad in ["", "/", "default/", "/orders", "a/b/c", "trigger/a/b/c"] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }
}
