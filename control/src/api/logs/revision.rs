//! GET of `/sluicegate/logs/UID`: what all instances of a Revision wrote whose logs are kept, those that are gone included.
//! `status.logUrl` can lead here (`logging.revision-url-template`, SRV-REV-17).

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

use super::kept::{Log, Rules};
use super::{Asked, plain};
use crate::access::Action;
use crate::api::errors::Refusal;
use crate::api::{Server, grant, object};
use crate::kind::Resource as _;
use crate::kinds::serving::revision::Revision;
use crate::runtime;

/// What a Revision's uid follows.
const PATH: &str = "/sluicegate/logs/";

/// The uid that a path of this kind names.
pub(in crate::api) fn named(path: &str) -> Option<&str> {
    path.strip_prefix(PATH).filter(|uid| !uid.is_empty() && !uid.contains('/'))
}

/// As Pods' logs, one instance after the other, each below a line that says which. For whoever may read Pods' logs in the
/// Revision's namespace.
pub(in crate::api) fn answer(server: &Server, head: &Parts, uid: &str) -> Result<Response, Refusal> {
    let who = &server.requester;
    let Some((namespace, name)) = of_uid(server, uid) else {
        grant::check_path(server, who, "get", head.uri.path())?;
        return Err(Refusal::not_found(&Revision::META, uid));
    };
    let (verb, resource, subresource) = ("get", "pods", "log");
    grant::check(
        server,
        who,
        &Action { verb, group: "", resource, subresource, namespace: &namespace, name: "" },
    )?;
    if head.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let asked = Asked::of(&head.uri)?;
    if asked.follow {
        return Err(Refusal::bad_request("a Pod's log can be followed, a Revision's not".to_owned()));
    }
    let folder = server.instances.as_ref();
    let paths = folder.map(|folder| runtime::log_files(folder, &namespace, &name)).unwrap_or_default();
    let reading = Reading {
        logs: paths.into_iter(),
        log: None,
        tail: None,
        tail_lines: asked.tail_lines,
        rules: asked.rules(),
    };
    Ok(plain(Body::from_stream(reading.pieces().map(Ok::<_, Infallible>))))
}

/// Namespace and name of the Revision with this uid.
fn of_uid(server: &Server, uid: &str) -> Option<(Arc<str>, Arc<str>)> {
    let memory = server.store.read();
    let found = memory.by_uid(uid)?;
    let key = &found.key;
    (*key.resource == *object::resource_of(&Revision::META))
        .then(|| (key.namespace.clone(), key.name.clone()))
}

struct Reading {
    logs: vec::IntoIter<PathBuf>,
    /// The one that is being read.
    log: Option<Log>,
    tail: Option<Vec<u8>>,
    /// Of each instance, if only its last lines are asked for.
    tail_lines: Option<usize>,
    rules: Rules,
}

impl Reading {
    fn pieces(self) -> impl Stream<Item = Bytes> {
        stream::unfold(self, |mut reading| async {
            let piece = reading.next().await?;
            Some((piece, reading))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        while self.rules.left > 0 {
            let Some(log) = &mut self.log else {
                return Some(self.begin()?.into());
            };
            let piece = self.tail.take().unwrap_or_else(|| log.read());
            if piece.is_empty() {
                self.log = None;
                continue;
            }
            let shown = self.rules.show(&piece);
            if !shown.is_empty() {
                return Some(shown.into());
            }
            tokio::task::yield_now().await; // all of a log may be older than what is asked for
        }
        None
    }

    /// The next instance's log, and the line above it.
    fn begin(&mut self) -> Option<String> {
        let path = self.logs.next()?;
        let log = self.log.insert(Log::open(&path));
        self.tail = self.tail_lines.map(|lines| log.tail(lines));
        let instance = path.file_stem().unwrap_or_default().to_string_lossy();
        // One that was killed in the middle of a line has not ended it.
        let end = if std::mem::take(&mut self.rules.within) { "\n" } else { "" };
        Some(format!("{end}==> instance {instance} <==\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SRV-REV-17: each below a line of its own, in parts if that is asked for.
    #[tokio::test]
    async fn instances_are_told_one_after_the_other() {
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
            let rules = Rules { timestamps: false, since: None, left, within: false };
            let reading = Reading { logs: logs.into_iter(), log: None, tail: None, tail_lines, rules };
            let pieces: Vec<Bytes> = reading.pieces().collect().await;
            String::from_utf8(pieces.concat()).unwrap()
        };
        let all = format!("{seven}one\ncut sh\n{helper}{eight}two\nthree\n");
        assert_eq!(shown(None, usize::MAX).await, all);
        // A line without its end is none of those counted.
        assert_eq!(shown(Some(1), usize::MAX).await, format!("{seven}one\ncut sh\n{helper}{eight}three\n"));
        assert_eq!(shown(None, 6).await, format!("{seven}one\ncu"));
    }
}
