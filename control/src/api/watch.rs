//! GET with `watch`: every change after a version, in order, none twice.
//!
//! A watcher is a cursor into the store's history, nothing is queued for it. So there is no moment
//! between "list" and "subscribe" in which a change could slip through, and a client that reads
//! slowly costs no memory: when the history has moved past its cursor, the stream ends.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::store::lifecycle::{DEFINITIONS, definition_key};
use crate::store::{Event, Items, Key, Memory, Store, Stored};

use super::accept::{self, Format};
use super::crowd::{Place, Stay};
use super::errors::Refusal;
use super::parameters::Match;
use super::selectors::Selector;
use super::{Call, faces, path::Target, table};

/// A watch without `timeoutSeconds` ends after this; clients start another one where it stopped.
const WATCH_SECONDS_DEFAULT: u64 = 30 * 60;
/// No watch lasts longer than a day, whatever is asked for.
const WATCH_SECONDS_MAX: u64 = 24 * 60 * 60;
/// Time between bookmarks, so that a quiet kind's watcher stays within the history.
const BOOKMARK_EVERY: Duration = Duration::from_secs(30);
/// Changes taken out of the history while holding its lock, and written out at once.
const EVENTS_AT_ONCE_MAX: usize = 100;

/// One watcher.
struct Watcher {
    store: Arc<Store>,
    target: Target,
    resource: Arc<str>,
    selector: Selector,
    format: Format,
    include: super::parameters::IncludeObject,
    bookmarks: bool,
    /// Every change up to here was told.
    reached: u64,
    /// Objects that existed at the start and are still to be told.
    initial: Option<Items>,
    /// A bookmark is owed that says: these were all.
    owes_initial_end: bool,
    news: tokio::sync::watch::Receiver<u64>,
    ends_at: Instant,
    next_bookmark_at: Instant,
    /// With what a watch of a client's kind ends.
    definition: Option<Definition>,
    over: bool,
    /// Given back when the stream ends.
    _place: Option<Place>,
}

/// The definition of the kind that is watched, as it was in the beginning. With another it is another kind: the client begins
/// again, and is told if there is none.
struct Definition {
    key: Key,
    uid: String,
    generation: Value,
    /// The last change of any definition that was looked at.
    looked_at: u64,
}

impl Definition {
    fn of(resource: &str, memory: &Memory) -> Option<Self> {
        let key = definition_key(resource);
        let found = memory.get(&key)?;
        let generation = found.value()["metadata"]["generation"].take();
        let looked_at = memory.last_change(DEFINITIONS);
        Some(Self { key, uid: found.head.uid().to_owned(), generation, looked_at })
    }

    fn has_ended(&mut self, memory: &Memory) -> bool {
        let changed = memory.last_change(DEFINITIONS);
        if changed == self.looked_at {
            return false;
        }
        self.looked_at = changed;
        let now = memory.get(&self.key).filter(|now| now.head.uid() == self.uid);
        // One that is deleted counts that as a change; its objects go first, and that is told.
        let is_same =
            |now: Arc<Stored>| now.head.deleting || now.value()["metadata"]["generation"] == self.generation;
        !now.is_some_and(is_same)
    }
}

pub(super) fn watch(call: &Call) -> Result<Response, Refusal> {
    let parameters = &call.parameters;
    let mut selector =
        Selector::parse(&call.target.entry, &parameters.label_selector, &parameters.field_selector)?;
    if let Some(name) = &call.target.name {
        selector.and_name(name);
    }
    if call.target.status {
        return Err(Refusal::method_not_allowed());
    }
    let send_initial = wants_initial_events(call)?;
    let who = &call.server.requester;
    let agent = super::agent(&call.headers);
    let place =
        if who.internal { None } else { Some(call.server.crowd.enter(&who.user, agent, Stay::Watch)?) };
    let store = Arc::clone(&call.server.store);
    let resource = call.resource();
    let news = store.revision();
    let seconds = parameters.timeout_seconds.unwrap_or(0);
    let seconds = if seconds == 0 { WATCH_SECONDS_DEFAULT } else { seconds.min(WATCH_SECONDS_MAX) };
    let now = Instant::now();
    let mut watcher = Watcher {
        target: call.target.clone(),
        resource,
        selector,
        format: call.format,
        include: parameters.include_object,
        bookmarks: parameters.bookmarks,
        reached: parameters.resource_version.unwrap_or(0),
        initial: None,
        owes_initial_end: false,
        news,
        ends_at: now + Duration::from_secs(seconds),
        next_bookmark_at: now + BOOKMARK_EVERY,
        definition: None,
        over: false,
        _place: place,
        store,
    };
    {
        let memory = watcher.store.read();
        let newest = memory.revision();
        if call.target.entry.custom.is_some() {
            let definition = Definition::of(&watcher.resource, &memory);
            watcher.definition = Some(definition.ok_or_else(Refusal::unknown_path)?);
        }
        if watcher.reached > newest {
            return Err(Refusal::from_the_future(watcher.reached, newest));
        }
        if send_initial.unwrap_or(watcher.reached == 0) {
            let listing = memory.list(&watcher.resource, watcher.target.namespace.as_deref());
            watcher.initial = Some(listing.into_iter());
            watcher.reached = newest;
            watcher.owes_initial_end = send_initial == Some(true) && watcher.bookmarks;
        } else if watcher.reached == 0 {
            watcher.reached = newest;
        }
    }
    let body = Body::from_stream(stream::unfold(watcher, |mut watcher| async {
        let chunk = watcher.next_chunk().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), watcher))
    }));
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// `Some` when the client said whether it wants what exists before what changes.
fn wants_initial_events(call: &Call) -> Result<Option<bool>, Refusal> {
    let parameters = &call.parameters;
    let matched = parameters.resource_version_match;
    if parameters.continue_token.is_some() {
        let why = "Forbidden: continue is forbidden for watch";
        return Err(Refusal::invalid_option("ListOptions", "continue", why));
    }
    let why = match parameters.send_initial_events {
        None if matched.is_some() => {
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        }
        Some(_) if matched != Some(Match::NotOlderThan) => {
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        }
        asked => return Ok(asked),
    };
    Err(Refusal::invalid_option("ListOptions", "resourceVersionMatch", &format!("Forbidden: {why}")))
}

impl Watcher {
    /// Some lines, as soon as there are any; `None` ends the stream.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            let mut lines = Vec::new();
            self.tell_initial(&mut lines);
            if lines.is_empty() {
                self.tell_changes(&mut lines);
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
            if self.over {
                return None;
            }
            let wake_at = self.ends_at.min(self.next_bookmark_at);
            tokio::select! {
                changed = self.news.changed() => self.over = changed.is_err(),
                () = tokio::time::sleep_until(wake_at) => self.on_time(&mut lines),
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
        }
    }

    fn on_time(&mut self, lines: &mut Vec<u8>) {
        let now = Instant::now();
        self.over = now >= self.ends_at;
        self.next_bookmark_at = now + BOOKMARK_EVERY;
        if self.bookmarks {
            self.write_bookmark(lines, false);
        }
    }

    fn tell_initial(&mut self, lines: &mut Vec<u8>) {
        for _ in 0..EVENTS_AT_ONCE_MAX {
            let Some(object) = self.initial.as_mut().and_then(Iterator::next) else {
                self.initial = None;
                break;
            };
            let object = faces::shown(&self.target.entry, &object);
            if self.selector.matches(&object) {
                self.write(lines, "ADDED", &object);
            }
        }
        if self.initial.is_none() && self.owes_initial_end {
            self.owes_initial_end = false;
            self.write_bookmark(lines, true);
        }
    }

    fn tell_changes(&mut self, lines: &mut Vec<u8>) {
        // Whatever is committed from here on changes `news` again.
        self.news.mark_unchanged();
        while lines.is_empty() {
            let namespace = self.target.namespace.as_deref();
            let changes =
                self.store.read().changes(Some(&self.resource), namespace, self.reached, EVENTS_AT_ONCE_MAX);
            match changes {
                Err(expired) => {
                    let status = Refusal::from(expired).status();
                    write_line(lines, "ERROR", status.to_string().as_bytes());
                    self.over = true;
                }
                Ok((events, reached)) => {
                    let caught_up = events.len() < EVENTS_AT_ONCE_MAX;
                    self.reached = reached;
                    for event in events {
                        self.tell(lines, &faces::happened(&self.target.entry, &event));
                    }
                    if caught_up {
                        let ends = |definition: &mut Definition| definition.has_ended(&self.store.read());
                        self.over = self.definition.as_mut().is_some_and(ends);
                        return;
                    }
                }
            }
        }
    }

    /// An object that begins or ceases to match a selector appears or disappears for this watcher.
    fn tell(&self, lines: &mut Vec<u8>, event: &Event) {
        let was_in = event.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let is_in = !event.deleted && self.selector.matches(&event.object);
        match (was_in, is_in) {
            (false, true) => self.write(lines, "ADDED", &event.object),
            (true, true) => self.write(lines, "MODIFIED", &event.object),
            (true, false) if event.deleted => self.write(lines, "DELETED", &event.object),
            (true, false) => self.write_last_match(lines, event),
            (false, false) => {}
        }
    }

    /// The object as this watcher knew it, with the version at which it left.
    fn write_last_match(&self, lines: &mut Vec<u8>, event: &Event) {
        let Some(before) = &event.before else { return };
        let mut value = before.value();
        value["metadata"]["resourceVersion"] = event.revision().to_string().into();
        let left = Stored::new(before.key.clone(), event.revision(), &value);
        self.write(lines, "DELETED", &left);
    }

    fn write(&self, lines: &mut Vec<u8>, what: &str, object: &Stored) {
        match self.format {
            Format::Object => write_line(lines, what, &object.json()),
            Format::Metadata => {
                write_line(lines, what, accept::metadata_only(object).to_string().as_bytes());
            }
            Format::Table => {
                let version = object.resource_version.to_string();
                let meta = self.target.entry.meta;
                let table = table::of(meta, &[object], &version, self.include, jiff::Timestamp::now());
                write_line(lines, what, table.to_string().as_bytes());
            }
        }
    }

    fn write_bookmark(&self, lines: &mut Vec<u8>, ends_initial: bool) {
        let meta = self.target.entry.meta;
        let mut metadata = json!({ "resourceVersion": self.reached.to_string() });
        if ends_initial {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let bookmark: Value = match self.format {
            Format::Object => json!({
                "kind": meta.kind,
                "apiVersion": meta.api_version(),
                "metadata": metadata,
            }),
            Format::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            Format::Table => {
                let mut table = table::of(meta, &[], "", self.include, jiff::Timestamp::now());
                table["rows"] = json!([{ "cells": [], "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata.clone(),
                } }]);
                table["metadata"] = metadata;
                table
            }
        };
        write_line(lines, "BOOKMARK", bookmark.to_string().as_bytes());
    }
}

fn write_line(lines: &mut Vec<u8>, what: &str, object: &[u8]) {
    lines.extend_from_slice(b"{\"type\":\"");
    lines.extend_from_slice(what.as_bytes());
    lines.extend_from_slice(b"\",\"object\":");
    lines.extend_from_slice(object);
    lines.extend_from_slice(b"}\n");
}
