//! `sluicegate event replay|redrive`: sends events of the log again.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::patch::SubscriberPatch;
use super::{list, text};
use crate::cli::admin_client::{AdminClient, agent};
use crate::cli::tell;
use crate::config::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    order: RedriveArgs,
    /// earliest, dead-letters, a time (RFC 3339), an age (10m), or CORE:POSITION, as trace shows it; earliest if --to is
    /// given
    #[arg(long, value_name = "FROM", required_unless_present = "to")]
    from: Option<String>,
    /// Only events that were accepted before this time (RFC 3339) or age (5m)
    #[arg(long, value_name = "TIME")]
    to_time: Option<String>,
    /// Send the events that the Trigger's filter selects to this Revision of its namespace, or to this URL, and not to its
    /// subscriber: each once, and no cursor moves. Exit status 1 if a response is not 2xx
    #[arg(long, num_args = 1..=2, value_name = "revision NAME|URL", conflicts_with = "patch")]
    to: Option<Vec<String>>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RedriveArgs {
    #[command(flatten)]
    admin: AdminClient,
    /// Trigger or Subscription whose subscriber gets them; trigger/NAMESPACE/NAME or
    /// subscription/NAMESPACE/NAME where there are both
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = label)]
    trigger: String,
    /// Only count and list the events
    #[arg(long)]
    dry_run: bool,
    /// Maximum events per second; 0 for no limit
    #[arg(long, value_name = "N", value_parser = whole::<u32>, default_value_t = 0)]
    rate: u32,
    #[command(flatten)]
    patch: SubscriberPatch,
}

/// `NAMESPACE/NAME`, optionally prefixed by the kind.
pub(super) fn label(text: &str) -> Result<String, String> {
    let parts: Vec<_> = text.split('/').collect();
    let kinds = ["trigger", "subscription", "service"];
    match parts[..] {
        _ if parts.contains(&"") => Err("write NAMESPACE/NAME, like default/orders".to_owned()),
        [name] => Err(format!("the namespace is missing: write NAMESPACE/{name}, like default/{name}")),
        [_, _] => Ok(text.to_owned()),
        [kind, ..] if parts.len() == 3 && kinds.contains(&kind) => Ok(text.to_owned()),
        _ => Err("write NAMESPACE/NAME, trigger/NAMESPACE/NAME or subscription/NAMESPACE/NAME".to_owned()),
    }
}

/// Which events, and where to.
struct ReplayOrder<'a> {
    args: &'a RedriveArgs,
    from: &'a str,
    to_time: Option<&'a str>,
    /// `revision/NAME` or a URL; `None`: the subscriber.
    to: Option<String>,
}

impl ReplayOrder<'_> {
    /// The destination as people read it.
    fn destination(&self) -> String {
        self.to.as_ref().map_or_else(|| self.args.trigger.clone(), |to| to.replacen("revision/", "revision ", 1))
    }
}

pub(super) fn redrive(args: &RedriveArgs) -> Result<bool> {
    run(&ReplayOrder { args, from: "dead-letters", to_time: None, to: None })
}

pub(super) fn replay(args: &ReplayArgs) -> Result<bool> {
    let to = args.to.as_deref().map(destination).transpose()?;
    let (from, to_time) = (args.from.as_deref().unwrap_or("earliest"), args.to_time.as_deref());
    run(&ReplayOrder { args: &args.order, from, to_time, to })
}

/// The words of `--to` as the admin listener takes them.
fn destination(words: &[String]) -> Result<String> {
    match words {
        [kind, name] if kind == "revision" && !name.contains("://") => Ok(format!("revision/{name}")),
        [one] if one.contains("://") || one.starts_with("revision/") => Ok(one.clone()),
        _ => bail!("--to takes `revision NAME` or a URL, not {:?}", words.join(" ")),
    }
}

fn run(order: &ReplayOrder<'_>) -> Result<bool> {
    let RedriveArgs { admin, trigger, dry_run, rate, patch } = order.args;
    if let Some(reported) = patch.lay(trigger, *dry_run)? {
        complain!("{reported}");
    }
    let url = admin.url("/debug/events/replay");
    let optional = [("to_time", order.to_time), ("to", order.to.as_deref())];
    let mut answer = agent()
        .post(&url)
        .query("trigger", trigger)
        .query("from", order.from)
        .query("dry_run", dry_run.to_string())
        .query("list", dry_run.to_string())
        .query("rate", rate.to_string())
        .query_pairs(optional.into_iter().filter_map(|(name, value)| Some((name, value?))))
        .send_empty()
        .with_context(|| admin.unreachable())?;
    if answer.status() != 200 {
        return Err(admin.refusal(&mut answer));
    }
    let (mut listed, mut reported_sent) = (Vec::new(), 0);
    for line in BufReader::new(answer.body_mut().as_reader()).lines() {
        let reported: Value = serde_json::from_str(&line?)?;
        if let Some(why) = reported["error"].as_str() {
            bail!("{why}");
        }
        if reported["event"].is_object() {
            listed.push(event_line(&reported["event"]));
            continue;
        }
        let sent = reported["sent"].as_u64().unwrap_or_default();
        if reported["done"] == true {
            tell(&summary(order, sent, &reported, &listed)?)?;
            return Ok(is_successful(&reported));
        }
        if sent != reported_sent {
            reported_sent = sent;
            complain!("{sent} so far");
        }
    }
    bail!("the appliance ended before it was done")
}

fn event_line(event: &Value) -> String {
    let part = |name: &str| text(event, name);
    format!("{}  id {}  source {}  type {}", part("accepted"), part("id"), part("source"), part("type"))
}

/// The result: how many events, which of them a dry run has listed, and how the destination responded to them.
fn summary(order: &ReplayOrder<'_>, sent: u64, report: &Value, listed: &[String]) -> Result<String> {
    let verb = if order.args.dry_run { "would be sent" } else { "sent" };
    let mut out = format!("{sent} events {verb} to {}\n", order.destination());
    for line in listed {
        writeln!(out, "  {line}")?;
    }
    if let Some(more @ 1..) = sent.checked_sub(listed.len() as u64).filter(|_| order.args.dry_run) {
        writeln!(out, "  and {more} more")?;
    }
    for response in list(report, "responses") {
        writeln!(out, "  {}: {}", response["status"], response["count"])?;
    }
    for (reason, count) in report["unanswered"].as_object().into_iter().flatten() {
        writeln!(out, "  {reason}: {count}")?;
    }
    if let Some(count @ 1..) = report["replies"].as_u64() {
        writeln!(out, "  events in responses, which were dropped: {count}")?;
    }
    if report["firstFailure"].is_object() {
        let failure = &report["firstFailure"];
        writeln!(out, "  first failure: {}: {}", event_line(&failure["event"]), text(failure, "why"))?;
    }
    Ok(out)
}

/// Whether each event that was sent to another destination got a response of the class 2xx.
fn is_successful(report: &Value) -> bool {
    !report["firstFailure"].is_object()
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

    #[test]
    fn destination_is_revision_or_url() {
        let words = |words: &[&str]| destination(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["revision", "app-2"]).unwrap(), "revision/app-2");
        assert_eq!(words(&["revision/app-2"]).unwrap(), "revision/app-2");
        assert_eq!(words(&["http://h/x"]).unwrap(), "http://h/x");
        for bad in [&["app-2"][..], &["revision"], &["service", "app"], &["revision", "http://h/"]] {
            assert!(words(bad).unwrap_err().to_string().contains("revision NAME"), "{bad:?}");
        }
    }
}
