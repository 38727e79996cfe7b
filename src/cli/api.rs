//! `sluicegate api`: backup and restore of the objects of a running appliance.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use axum::body::Bytes;
use control::api::BACKUP_PATH;
use futures_util::{TryStreamExt as _, stream};
use kube::client::Body;
use ureq::http::header::CONTENT_TYPE;
use ureq::http::{Request, Response};

use super::api_access::{self, ApiAccessArgs, ApiClient};

/// Bytes of a file that are sent at a time.
const PIECE_BYTES: usize = 64 * 1024;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ApiCommand {
    /// Write all objects as of this moment to a file; Secrets are included in plain text
    Backup(ApiArgs),
    /// Replace all objects by those of a file; objects missing in it are deleted
    Restore(ApiArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ApiArgs {
    /// The backup
    file: PathBuf,

    #[command(flatten)]
    reach: ApiAccessArgs,
}

pub(crate) fn run(verb: &ApiCommand) -> ExitCode {
    let outcome = match verb {
        ApiCommand::Backup(args) => backup(args),
        ApiCommand::Restore(args) => restore(args),
    };
    super::exit_code(outcome.and_then(|reported| super::tell(&format!("{reported}\n"))).map(|()| true))
}

fn backup(args: &ApiArgs) -> Result<String> {
    let api = args.reach.open()?;
    api.runtime.block_on(async {
        let answer = api.send(Request::get(BACKUP_PATH).body(Body::empty())?).await?;
        if answer.status() != 200 {
            bail!("no backup was made: {}", refusal(&api, answer).await);
        }
        // Written next to the file and then renamed, so that a failed backup keeps the previous one.
        let temporary = args.file.with_added_extension("part");
        let named = || temporary.display().to_string();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .with_context(named)?;
        let mut pieces = axum::body::Body::new(answer.into_body()).into_data_stream();
        let broke = || format!("the connection broke: {} is truncated", temporary.display());
        while let Some(piece) = pieces.try_next().await.with_context(broke)? {
            file.write_all(&piece).with_context(named)?;
        }
        file.sync_all().with_context(named)?;
        file.rewind().with_context(named)?;
        let last = BufReader::new(&file).lines().map_while(Result::ok).last();
        let Some(objects) = last.and_then(|line| count(&line)) else { bail!(broke()) };
        rename_into_place(&temporary, &args.file).with_context(|| args.file.display().to_string())?;
        Ok(format!("{objects} objects in {}", args.file.display()))
    })
}

/// The name is on disk too when this returns: after a power cut the reported backup exists.
fn rename_into_place(temporary: &Path, file: &Path) -> std::io::Result<()> {
    std::fs::rename(temporary, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn restore(args: &ApiArgs) -> Result<String> {
    let named = || args.file.display().to_string();
    let mut file = BufReader::with_capacity(PIECE_BYTES, File::open(&args.file).with_context(named)?);
    file.fill_buf().with_context(named)?; // otherwise the connection would seem to break
    let api = args.reach.open()?;
    api.runtime.block_on(async {
        // A client that is rejected while it sends does not receive the reason. So an empty body is sent
        // first; an authorized user gets an error that it is no backup.
        let mut answer = api.send(Request::put(BACKUP_PATH).body(Body::empty())?).await?;
        if answer.status() == 400 {
            let body = api_access::streamed(pieces(file)).await?;
            answer = api.send(Request::put(BACKUP_PATH).header(CONTENT_TYPE, "application/jsonl").body(body)?).await?;
        }
        if answer.status() != 200 {
            bail!("{} is not restored: {}", named(), refusal(&api, answer).await);
        }
        let reported = answer.into_body().collect_bytes().await.context("the response was truncated")?;
        Ok(format!("{} objects restored", count(&String::from_utf8_lossy(&reported)).unwrap_or(0)))
    })
}

/// Streams a file in pieces. Reading blocks, and nothing else runs here meanwhile.
fn pieces(mut file: BufReader<File>) -> axum::body::Body {
    let next = move || {
        let piece = match file.fill_buf() {
            Ok([]) => return None,
            Ok(piece) => Bytes::copy_from_slice(piece),
            Err(why) => return Some(Err(why)),
        };
        file.consume(piece.len());
        Some(Ok(piece))
    };
    axum::body::Body::from_stream(stream::iter(std::iter::from_fn(next)))
}

/// The number in a backup's last line.
fn count(line: &str) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(line).ok()?["objects"].as_u64()
}

/// The API's error, and what to do about it.
async fn refusal(api: &ApiClient, answer: Response<Body>) -> String {
    let status = answer.status().as_u16();
    let said = answer.into_body().collect_bytes().await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let parsed: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
    let said = parsed["message"].as_str().unwrap_or(said.trim());
    match status {
        401 => format!("{said}: the API requires authentication, give --kubeconfig or --token"),
        403 => {
            format!("{said}: a ClusterRole with the verbs get and put for nonResourceURLs {BACKUP_PATH} allows it")
        }
        404 => format!("{}: the server there is not the API of an appliance", api.at.trim_end_matches('/')),
        _ => said.to_owned(),
    }
}
