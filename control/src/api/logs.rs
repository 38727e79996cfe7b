//! GET of `pods/NAME/log`: what an instance wrote, from the files that the runtime keeps.
//!
//! The files are bounded (two of a few MiB), read a piece at a time, and in the page cache as a rule; so they
//! are read on the control thread.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, Uri, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;

use crate::kind::Resource as _;
use crate::runtime;
use crate::store::{Key, Stored};

use super::errors::Refusal;
use super::{Server, object};

/// Bytes read of a log at a time.
const PIECE_BYTES: usize = 64 * 1024;
/// How often a followed log is looked at: short for a reader, long against the cost of a look.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const NAMED: &str = "serving.knative.dev/revision";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<usize>,
    limit_bytes: Option<usize>,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
}

/// The Pod that a path of this kind names.
pub(super) fn named(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, "log"] => Some((namespace, name)),
        _ => None,
    }
}

pub(super) fn answer(server: &Server, namespace: &str, name: &str, uri: &Uri) -> Result<Response, Refusal> {
    let Query(asked) =
        Query::<Asked>::try_from_uri(uri).map_err(|why| Refusal::bad_request(why.to_string()))?;
    let resource = object::resource_of(&Pod::META);
    let key = Key { resource, namespace: namespace.into(), name: name.into() };
    let pod = server.store.read().get(&key).cloned();
    let pod = pod.ok_or_else(|| Refusal::not_found(&Pod::META, name))?;
    let value = pod.value();
    let wanted = asked.container.as_deref().filter(|wanted| !wanted.is_empty());
    let container = container(&value, wanted).ok_or_else(|| {
        Refusal::bad_request(format!("container {} is not valid for pod {name}", wanted.unwrap_or("")))
    })?;
    let id = &if asked.previous { &container["lastState"]["terminated"] } else { container }["containerID"];
    let (Some((id, sidecar)), Some(folder)) = (number(id), &server.instances) else {
        let which = if asked.previous { "previous terminated container" } else { "container" };
        let called = container["name"].as_str().unwrap_or("");
        return Err(Refusal::bad_request(format!("{which} {called:?} in pod {name:?} not found")));
    };
    let revision = pod.head.label(NAMED).unwrap_or("");
    let log = Log::open(&runtime::log_file(folder, namespace, revision, id, sidecar));
    let since = asked.since_seconds.map(|seconds| Timestamp::now().as_second().saturating_sub(seconds));
    let since = since.and_then(|second| Timestamp::from_second(second).ok()).or(asked.since_time);
    let left = asked.limit_bytes.unwrap_or(usize::MAX);
    let mut reading = Reading {
        tail: None,
        log,
        rules: Rules { timestamps: asked.timestamps, since, left, within: false },
        follow: asked.follow.then(|| Followed { server: server.clone(), pod: key, id }),
    };
    reading.tail = asked.tail_lines.map(|lines| reading.log.tail(lines));
    let body = stream::unfold(reading, |mut reading| async {
        let piece = reading.next().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), reading))
    });
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "text/plain")], Body::from_stream(body)).into_response())
}

/// The named container; without a name the one that serves.
fn container<'a>(pod: &'a Value, name: Option<&str>) -> Option<&'a Value> {
    let mut all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    all.find(|one| match name {
        Some(name) => one["name"] == name,
        None => number(&one["containerID"]).is_some_and(|(_, sidecar)| sidecar.is_none()),
    })
}

/// The instance behind `RUNTIME://NUMBER`, or its sidecar behind `RUNTIME://NUMBER/NAME`.
fn number(container_id: &Value) -> Option<(u64, Option<&str>)> {
    let (_, id) = container_id.as_str()?.split_once("://")?;
    let (number, sidecar) = id.split_once('/').map_or((id, None), |(number, name)| (number, Some(name)));
    Some((number.parse().ok()?, sidecar))
}

struct Reading {
    log: Log,
    rules: Rules,
    /// The end of what was there, if only that was asked for.
    tail: Option<Vec<u8>>,
    follow: Option<Followed>,
}

/// What a followed log ends with.
struct Followed {
    server: Server,
    pod: Key,
    id: u64,
}

impl Followed {
    fn goes_on(&self) -> bool {
        let memory = self.server.store.read();
        let id = |pod: &Stored| number(&container(&pod.value(), None)?["containerID"]).map(|(id, _)| id);
        memory.get(&self.pod).and_then(|pod| id(pod)) == Some(self.id)
    }
}

impl Reading {
    async fn next(&mut self) -> Option<Bytes> {
        while self.rules.left > 0 {
            let piece = self.tail.take().unwrap_or_else(|| self.log.read());
            if !piece.is_empty() {
                let shown = self.rules.show(&piece);
                if !shown.is_empty() {
                    return Some(shown.into());
                }
            } else if self.follow.as_ref()?.goes_on() {
                tokio::time::sleep(LOOK_EVERY).await;
            } else {
                // Its last words may have come since.
                self.follow = None;
            }
        }
        None
    }
}

/// Which of the lines are shown, and how.
struct Rules {
    timestamps: bool,
    since: Option<Timestamp>,
    /// Bytes that may still be shown.
    left: usize,
    /// The last piece was not the end of its line.
    within: bool,
}

impl Rules {
    fn show(&mut self, entries: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(entries.len());
        for entry in entries.split_inclusive(|byte| *byte == b'\n') {
            let Some((time, tag, text)) = parts(entry) else { continue };
            let told = std::str::from_utf8(time).ok().and_then(|time| time.parse::<Timestamp>().ok());
            if self.since.is_some_and(|since| told.is_some_and(|told| told < since)) {
                continue;
            }
            if self.timestamps && !self.within {
                shown.extend_from_slice(time);
                shown.push(b' ');
            }
            shown.extend_from_slice(text);
            self.within = tag == b"P";
            if !self.within {
                shown.push(b'\n');
            }
        }
        shown.truncate(self.left);
        self.left -= shown.len();
        shown
    }
}

/// Time, tag and text of an entry; the output's name stands between the first two.
fn parts(entry: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let entry = entry.strip_suffix(b"\n").unwrap_or(entry);
    let mut parts = entry.splitn(4, |byte| *byte == b' ');
    let (time, _, tag) = (parts.next()?, parts.next()?, parts.next()?);
    Some((time, tag, parts.next()?))
}

/// An instance's log files, read as one: the older one, then the present one, and whatever replaces it.
struct Log {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of an entry whose end is not yet written.
    rest: Vec<u8>,
}

impl Log {
    fn open(path: &Path) -> Self {
        let file = File::open(path.with_extension("log.1")).or_else(|_| File::open(path)).ok();
        Self { path: path.to_owned(), file, rest: Vec::new() }
    }

    /// Some whole entries; nothing when there are none at the moment.
    fn read(&mut self) -> Vec<u8> {
        loop {
            // Looked up before the read: what is written to a file after it was replaced is nothing.
            let next =
                File::open(&self.path).ok().filter(|next| inode(Some(next)) != inode(self.file.as_ref()));
            let mut piece = vec![0; PIECE_BYTES];
            let bytes = self.file.as_mut().and_then(|file| file.read(&mut piece).ok()).unwrap_or(0);
            if bytes == 0 {
                if next.is_none() {
                    return Vec::new();
                }
                self.file = next;
                continue;
            }
            self.rest.extend_from_slice(&piece[..bytes]);
            if let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') {
                return self.rest.drain(..=end).collect();
            }
        }
    }

    /// The last lines of all that is there.
    fn tail(&mut self, lines: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let piece = self.read();
            if piece.is_empty() {
                break;
            }
            all.extend_from_slice(&piece);
        }
        let ends = |entry: &&[u8]| parts(entry).is_some_and(|(_, tag, _)| tag != b"P");
        let entries: Vec<&[u8]> = all.split_inclusive(|byte| *byte == b'\n').collect();
        let surplus = entries.iter().filter(|entry| ends(entry)).count().saturating_sub(lines);
        let mut passed = 0;
        let kept = entries.iter().skip_while(|entry| {
            let goes = passed < surplus;
            passed += usize::from(ends(entry));
            goes
        });
        kept.copied().collect::<Vec<_>>().concat()
    }
}

fn inode(file: Option<&File>) -> Option<u64> {
    file.and_then(|file| Some(file.metadata().ok()?.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(folder: &Path) -> Log {
        std::fs::write(folder.join("7.log.1"), "2026-01-31T12:00:00Z stdout F one\n").unwrap();
        let lines = "2026-01-31T12:00:01Z stdout P tw\n2026-01-31T12:00:01Z stdout F o\n\
                     2026-01-31T12:00:02Z stderr F three 3\n";
        std::fs::write(folder.join("7.log"), lines).unwrap();
        Log::open(&folder.join("7.log"))
    }

    fn rules() -> Rules {
        Rules { timestamps: false, since: None, left: usize::MAX, within: false }
    }

    fn all(log: &mut Log, rules: &mut Rules) -> String {
        let mut shown = Vec::new();
        loop {
            let piece = log.read();
            if piece.is_empty() {
                return String::from_utf8(shown).unwrap();
            }
            shown.extend(rules.show(&piece));
        }
    }

    #[test]
    fn both_files_are_read_and_pieces_of_lines_joined() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(all(&mut log(folder.path()), &mut rules()), "one\ntwo\nthree 3\n");
        let mut stamped = Rules { timestamps: true, ..rules() };
        let shown = all(&mut log(folder.path()), &mut stamped);
        assert_eq!(shown.lines().nth(1), Some("2026-01-31T12:00:01Z two"));
    }

    #[test]
    fn a_tail_counts_lines_and_not_their_pieces() {
        let folder = tempfile::tempdir().unwrap();
        for (lines, expected) in
            [(0, ""), (1, "three 3\n"), (2, "two\nthree 3\n"), (9, "one\ntwo\nthree 3\n")]
        {
            let tail = log(folder.path()).tail(lines);
            assert_eq!(String::from_utf8(rules().show(&tail)).unwrap(), expected, "{lines}");
        }
    }

    #[test]
    fn what_is_older_and_what_is_too_much_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut late = Rules { since: "2026-01-31T12:00:02Z".parse().ok(), ..rules() };
        assert_eq!(all(&mut log(folder.path()), &mut late), "three 3\n");
        let mut short = Rules { left: 5, ..rules() };
        assert_eq!(all(&mut log(folder.path()), &mut short), "one\nt");
    }

    #[test]
    fn a_log_that_is_replaced_while_it_is_read_goes_on_in_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path());
        all(&mut log, &mut rules());
        let path = folder.path().join("7.log");
        std::fs::rename(&path, folder.path().join("7.log.1")).unwrap();
        std::fs::write(&path, "2026-01-31T12:00:03Z stdout F four\n").unwrap();
        assert_eq!(all(&mut log, &mut rules()), "four\n");
    }
}
