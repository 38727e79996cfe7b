//! `sluicegate api`: the objects of a running appliance as a file, and back.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use control::api::BACKUP_PATH;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Write all objects as of this moment to a file; Secrets are in it as they are
    Backup(Args),
    /// Make the objects what a file says; what is not in it goes
    Restore(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The backup
    file: PathBuf,

    /// Address of the API, as the ready line of `sluicegate run` names it
    #[arg(long, value_name = "ADDR", env = "SLUICEGATE_API", default_value = "127.0.0.1:8001")]
    api: SocketAddr,
}

pub(crate) fn run(verb: &Verb) -> ExitCode {
    let outcome = match verb {
        Verb::Backup(args) => backup(args),
        Verb::Restore(args) => restore(args),
    };
    super::exit_code(outcome.map(|told| {
        println!("{told}");
        true
    }))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

fn backup(args: &Args) -> Result<String> {
    let url = format!("http://{}{BACKUP_PATH}", args.api);
    let mut answer = agent().get(&url).call().with_context(|| url.clone())?;
    if answer.status() != 200 {
        bail!("{url}: {}", refusal(&mut answer));
    }
    // Beside the file and then in its place, so that a backup that fails leaves the last one as it is.
    let beside = args.file.with_added_extension("part");
    let named = || beside.display().to_string();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .with_context(named)?;
    std::io::copy(&mut answer.body_mut().as_reader(), &mut file).with_context(named)?;
    file.flush().and_then(|()| file.sync_all()).with_context(named)?;
    file.rewind().with_context(named)?;
    let objects = BufReader::new(&file).lines().map_while(Result::ok).last().and_then(|line| count(&line));
    let Some(objects) = objects else { bail!("the connection broke: {} is cut short", beside.display()) };
    std::fs::rename(&beside, &args.file).with_context(|| args.file.display().to_string())?;
    Ok(format!("{objects} objects in {}", args.file.display()))
}

fn restore(args: &Args) -> Result<String> {
    let file = open(&args.file)?;
    let url = format!("http://{}{BACKUP_PATH}", args.api);
    let mut answer = agent().put(&url).send(&file).with_context(|| url.clone())?;
    if answer.status() != 200 {
        bail!("{}: {}", args.file.display(), refusal(&mut answer));
    }
    let told = answer.body_mut().read_to_string().with_context(|| url.clone())?;
    Ok(format!("{} objects restored", count(&told).unwrap_or(0)))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

/// The number in a backup's last line.
fn count(line: &str) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(line).ok()?["objects"].as_u64()
}

/// What the API says about why not.
fn refusal(answer: &mut ureq::http::Response<ureq::Body>) -> String {
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    status["message"].as_str().map_or(text.clone(), str::to_owned)
}
