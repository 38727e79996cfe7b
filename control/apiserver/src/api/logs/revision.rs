//! GET of `/sluicegate/logs/UID`: the retained logs of all instances of a Revision, including those that have ended.
//! `status.logUrl` can point here (`logging.revision-url-template`, SRV-REV-17).

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::vec;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::Method;
use http::request::Parts;

use super::log_files::{InstanceLogFiles, LogLineFilter};
use super::{PodLogOptions, text_response};
use crate::access::RequestAttributes;
use crate::api::errors::StatusError;
use crate::api::{ApiServer, authorization, prepare};
use support::instance_logs;
use types::kind_registry::ResourceStrategy as _;
use types::serving::revision::Revision;

/// The prefix of a Revision's uid in the path.
const PATH: &str = "/sluicegate/logs/";

/// The uid that a path of this kind names.
pub(in crate::api) fn parse_path(path: &str) -> Option<&str> {
    path.strip_prefix(PATH).filter(|uid| !uid.is_empty() && !uid.contains('/'))
}

/// Like the logs of Pods: one instance after the other, each below a line that names it. The caller needs the right
/// to read Pods' logs in the Revision's namespace.
pub(in crate::api) fn handle(server: &ApiServer, head: &Parts, uid: &str) -> Result<Response, StatusError> {
    let who = &server.default_requester;
    let Some((namespace, name)) = revision_by_uid(server, uid) else {
        authorization::check_path(server, who, "get", head.uri.path())?;
        return Err(StatusError::not_found(&Revision::META, uid));
    };
    let (verb, resource, subresource) = ("get", "pods", "log");
    authorization::check(
        server,
        who,
        &RequestAttributes { verb, group: "", resource, subresource, namespace: &namespace, name: "" },
    )?;
    if head.method != Method::GET {
        return Err(StatusError::method_not_allowed());
    }
    let asked = PodLogOptions::of(&head.uri)?;
    if asked.follow {
        return Err(StatusError::bad_request("a Pod's log can be followed, a Revision's not".to_owned()));
    }
    let folder = server.log_dir.as_ref();
    let paths = folder.map(|folder| instance_logs::log_files(folder, &namespace, &name)).unwrap_or_default();
    let reading = RevisionLogReader {
        logs: paths.into_iter(),
        log: None,
        tail: None,
        tail_lines: asked.tail_lines,
        rules: asked.line_filter(),
    };
    Ok(text_response(Body::from_stream(reading.into_stream().map(Ok::<_, Infallible>))))
}

/// Namespace and name of the Revision with this uid.
fn revision_by_uid(server: &ApiServer, uid: &str) -> Option<(Arc<str>, Arc<str>)> {
    let memory = server.store.read();
    let found = memory.by_uid(uid)?;
    let key = &found.key;
    (*key.resource == *prepare::resource_of(&Revision::META)).then(|| (key.namespace.clone(), key.name.clone()))
}

struct RevisionLogReader {
    logs: vec::IntoIter<PathBuf>,
    /// The one that is being read.
    log: Option<InstanceLogFiles>,
    tail: Option<Vec<u8>>,
    /// Lines of each instance, if only its last lines are requested.
    tail_lines: Option<usize>,
    rules: LogLineFilter,
}

impl RevisionLogReader {
    fn into_stream(self) -> impl Stream<Item = Bytes> {
        stream::unfold(self, |mut reading| async {
            let piece = reading.next_chunk().await?;
            Some((piece, reading))
        })
    }

    async fn next_chunk(&mut self) -> Option<Bytes> {
        while self.rules.bytes_left > 0 {
            let Some(log) = &mut self.log else {
                return Some(self.open_next()?.into());
            };
            let piece = self.tail.take().unwrap_or_else(|| log.read());
            if piece.is_empty() {
                self.log = None;
                continue;
            }
            let shown = self.rules.filter(&piece);
            if !shown.is_empty() {
                return Some(shown.into());
            }
            tokio::task::yield_now().await; // all of a log may be older than the requested time
        }
        None
    }

    /// The next instance's log, and the line above it.
    fn open_next(&mut self) -> Option<String> {
        let path = self.logs.next()?;
        let log = self.log.insert(InstanceLogFiles::open(&path));
        self.tail = self.tail_lines.map(|lines| log.tail(lines));
        let instance = path.file_stem().unwrap_or_default().to_string_lossy();
        // One that was killed in the middle of a line has not ended it.
        let end = if std::mem::take(&mut self.rules.in_line) { "\n" } else { "" };
        Some(format!("{end}==> instance {instance} <==\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SRV-REV-17: each log follows a line that names it, and is streamed in parts if requested.
    #[tokio::test]
    async fn instances_are_logged_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        for (name, lines) in [
            ("7.log", "2026-01-31T12:00:00Z stdout F one\n2026-01-31T12:00:01Z stdout P cut sh\n"),
            ("7.helper.log", ""),
            ("8.log", "2026-01-31T12:00:02Z stdout F two\n2026-01-31T12:00:03Z stdout F three\n"),
        ] {
            std::fs::write(folder.path().join(name), lines).unwrap();
        }
        let heads = ["==> instance 7 <==\n", "==> instance 7.helper <==\n", "==> instance 8 <==\n"];
        let [seven, helper, eight] = heads;
        let shown = async |tail_lines, left| {
            let logs = ["7.log", "7.helper.log", "8.log"].map(|name| folder.path().join(name)).to_vec();
            let rules = LogLineFilter { timestamps: false, since: None, bytes_left: left, in_line: false };
            let reading = RevisionLogReader { logs: logs.into_iter(), log: None, tail: None, tail_lines, rules };
            let pieces: Vec<Bytes> = reading.into_stream().collect().await;
            String::from_utf8(pieces.concat()).unwrap()
        };
        let all = format!("{seven}one\ncut sh\n{helper}{eight}two\nthree\n");
        assert_eq!(shown(None, usize::MAX).await, all);
        // A line without its end is not counted.
        assert_eq!(shown(Some(1), usize::MAX).await, format!("{seven}one\ncut sh\n{helper}{eight}three\n"));
        assert_eq!(shown(None, 6).await, format!("{seven}one\ncu"));
    }
}
