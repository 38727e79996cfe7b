//! GET with `watch`: every change after a version, in order, each once.
//!
//! A watcher is a cursor into the store's history, and has no queue. So there is no moment
//! between "list" and "subscribe" in which a change could slip through, and a client that reads
//! slowly costs no memory: when its cursor has left the retained history, the stream ends.

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
use crate::store::{ChangeEvent, MemoryIndex, ObjectKey, ObjectListIter, ObjectStore, StoredObject};

use super::content_negotiation::{self, ResponseFormat};
use super::errors::StatusError;
use super::inflight_limiter::{InflightPermit, RequestClass};
use super::query_parameters::ResourceVersionMatch;
use super::selectors::RequestSelector;
use super::{ApiRequest, conversion, request_path::RequestTarget, table};

/// A watch without `timeoutSeconds` ends after this; clients start another one where it stopped.
const WATCH_SECONDS_DEFAULT: u64 = 30 * 60;
/// Maximum duration of a watch, whatever the client requests.
const WATCH_SECONDS_MAX: u64 = 24 * 60 * 60;
/// Time between bookmarks, so that a quiet kind's watcher stays within the history.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);
/// Changes read from the history while holding its lock, and serialized at once.
const EVENTS_PER_CHUNK_MAX: usize = 100;

/// One watcher.
struct ApiWatcher {
    store: Arc<ObjectStore>,
    target: RequestTarget,
    resource: Arc<str>,
    selector: RequestSelector,
    format: ResponseFormat,
    include: super::query_parameters::IncludeObject,
    bookmarks: bool,
    /// Every change up to here was sent.
    cursor: u64,
    /// Objects that existed at the start and are still to be sent.
    initial: Option<ObjectListIter>,
    /// A bookmark is pending that marks the end of the initial events.
    initial_bookmark_due: bool,
    revision_changes: tokio::sync::watch::Receiver<u64>,
    ends_at: Instant,
    next_bookmark_at: Instant,
    /// The definition of a watched custom kind, whose change ends the watch.
    definition: Option<WatchedDefinition>,
    is_done: bool,
    /// Released when the stream ends.
    _permit: Option<InflightPermit>,
}

/// The definition of the watched kind at the start. With a changed definition it is another kind: the client starts
/// again, and gets an error if there is none.
struct WatchedDefinition {
    key: ObjectKey,
    uid: String,
    generation: Value,
    /// The last change of any definition that was checked.
    checked_revision: u64,
}

impl WatchedDefinition {
    fn of(resource: &str, memory: &MemoryIndex) -> Option<Self> {
        let key = definition_key(resource);
        let found = memory.get(&key)?;
        let generation = found.value()["metadata"]["generation"].take();
        let looked_at = memory.last_change(DEFINITIONS);
        Some(Self { key, uid: found.head.uid().to_owned(), generation, checked_revision: looked_at })
    }

    fn has_ended(&mut self, memory: &MemoryIndex) -> bool {
        let changed = memory.last_change(DEFINITIONS);
        if changed == self.checked_revision {
            return false;
        }
        self.checked_revision = changed;
        let now = memory.get(&self.key).filter(|now| now.head.uid() == self.uid);
        // A deleted definition counts that as a change; its objects are deleted first, and those events are sent.
        let is_same =
            |now: Arc<StoredObject>| now.head.deleting || now.value()["metadata"]["generation"] == self.generation;
        !now.is_some_and(is_same)
    }
}

pub(super) fn watch(call: &ApiRequest) -> Result<Response, StatusError> {
    let parameters = &call.parameters;
    let mut selector =
        RequestSelector::parse(&call.target.entry, &parameters.label_selector, &parameters.field_selector)?;
    if let Some(name) = &call.target.name {
        selector.require_name(name);
    }
    if call.target.status {
        return Err(StatusError::method_not_allowed());
    }
    let send_initial = wants_initial_events(call)?;
    let who = &call.server.default_requester;
    let agent = super::user_agent(&call.headers);
    let place =
        if who.internal { None } else { Some(call.server.inflight.acquire(&who.user, agent, RequestClass::Watch)?) };
    let store = Arc::clone(&call.server.store);
    let resource = call.resource();
    let news = store.revision();
    let seconds = parameters.timeout_seconds.unwrap_or(0);
    let seconds = if seconds == 0 { WATCH_SECONDS_DEFAULT } else { seconds.min(WATCH_SECONDS_MAX) };
    let now = Instant::now();
    let mut watcher = ApiWatcher {
        target: call.target.clone(),
        resource,
        selector,
        format: call.format,
        include: parameters.include_object,
        bookmarks: parameters.bookmarks,
        cursor: parameters.resource_version.unwrap_or(0),
        initial: None,
        initial_bookmark_due: false,
        revision_changes: news,
        ends_at: now + Duration::from_secs(seconds),
        next_bookmark_at: now + BOOKMARK_INTERVAL,
        definition: None,
        is_done: false,
        _permit: place,
        store,
    };
    {
        let memory = watcher.store.read();
        let newest = memory.revision();
        if call.target.entry.custom.is_some() {
            let definition = WatchedDefinition::of(&watcher.resource, &memory);
            watcher.definition = Some(definition.ok_or_else(StatusError::unknown_path)?);
        }
        if watcher.cursor > newest {
            return Err(StatusError::resource_version_too_large(watcher.cursor, newest));
        }
        if send_initial.unwrap_or(watcher.cursor == 0) {
            let listing = memory.list(&watcher.resource, watcher.target.namespace.as_deref());
            watcher.initial = Some(listing.into_iter());
            watcher.cursor = newest;
            watcher.initial_bookmark_due = send_initial == Some(true) && watcher.bookmarks;
        } else if watcher.cursor == 0 {
            watcher.cursor = newest;
        }
    }
    let body = Body::from_stream(stream::unfold(watcher, |mut watcher| async {
        let chunk = watcher.next_chunk().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), watcher))
    }));
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// `Some` if the client chose whether it wants the initial events.
fn wants_initial_events(call: &ApiRequest) -> Result<Option<bool>, StatusError> {
    let parameters = &call.parameters;
    let matched = parameters.resource_version_match;
    if parameters.continue_token.is_some() {
        let why = "Forbidden: continue is forbidden for watch";
        return Err(StatusError::invalid_option("ListOptions", "continue", why));
    }
    let why = match parameters.send_initial_events {
        None if matched.is_some() => "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        Some(_) if matched != Some(ResourceVersionMatch::NotOlderThan) => {
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        }
        asked => return Ok(asked),
    };
    Err(StatusError::invalid_option("ListOptions", "resourceVersionMatch", &format!("Forbidden: {why}")))
}

impl ApiWatcher {
    /// The next lines, as soon as there are any; `None` ends the stream.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            if self.is_done {
                return None;
            }
            let mut lines = Vec::new();
            self.write_initial_events(&mut lines);
            if lines.is_empty() {
                self.write_changes(&mut lines);
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
            if self.is_done {
                return None;
            }
            let wake_at = self.ends_at.min(self.next_bookmark_at);
            tokio::select! {
                changed = self.revision_changes.changed() => self.is_done = changed.is_err(),
                () = tokio::time::sleep_until(wake_at) => self.handle_timers(&mut lines),
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
        }
    }

    fn handle_timers(&mut self, lines: &mut Vec<u8>) {
        let now = Instant::now();
        self.is_done = now >= self.ends_at;
        self.next_bookmark_at = now + BOOKMARK_INTERVAL;
        if self.bookmarks {
            self.write_bookmark(lines, false);
        }
    }

    fn write_initial_events(&mut self, lines: &mut Vec<u8>) {
        for _ in 0..EVENTS_PER_CHUNK_MAX {
            let Some(object) = self.initial.as_mut().and_then(Iterator::next) else {
                self.initial = None;
                break;
            };
            let object = conversion::convert_object(&self.target.entry, &object);
            if self.selector.matches(&object) {
                self.write(lines, "ADDED", &object);
            }
        }
        if self.initial.is_none() && self.initial_bookmark_due {
            self.initial_bookmark_due = false;
            self.write_bookmark(lines, true);
        }
    }

    fn write_changes(&mut self, lines: &mut Vec<u8>) {
        // Whatever is committed from here on changes `news` again.
        self.revision_changes.mark_unchanged();
        while lines.is_empty() {
            let namespace = self.target.namespace.as_deref();
            let changes = self.store.read().changes(Some(&self.resource), namespace, self.cursor, EVENTS_PER_CHUNK_MAX);
            match changes {
                Err(expired) => {
                    let status = StatusError::from(expired).status();
                    write_line(lines, "ERROR", status.to_string().as_bytes());
                    self.is_done = true;
                }
                Ok((events, reached)) => {
                    let caught_up = events.len() < EVENTS_PER_CHUNK_MAX;
                    self.cursor = reached;
                    for event in events {
                        self.write_event(lines, &conversion::convert_event(&self.target.entry, &event));
                    }
                    if caught_up {
                        let ends = |definition: &mut WatchedDefinition| definition.has_ended(&self.store.read());
                        self.is_done = self.definition.as_mut().is_some_and(ends);
                        return;
                    }
                }
            }
        }
    }

    /// An object that starts or stops to match a selector appears or disappears for this watcher.
    fn write_event(&self, lines: &mut Vec<u8>, event: &ChangeEvent) {
        let was_in = event.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let is_in = !event.deleted && self.selector.matches(&event.object);
        match (was_in, is_in) {
            (false, true) => self.write(lines, "ADDED", &event.object),
            (true, true) => self.write(lines, "MODIFIED", &event.object),
            (true, false) if event.deleted => self.write(lines, "DELETED", &event.object),
            (true, false) => self.write_deleted(lines, event),
            (false, false) => {}
        }
    }

    /// The object as this watcher knew it, with the version at which it left.
    fn write_deleted(&self, lines: &mut Vec<u8>, event: &ChangeEvent) {
        let Some(before) = &event.before else { return };
        let mut value = before.value();
        value["metadata"]["resourceVersion"] = event.revision().to_string().into();
        let left = StoredObject::new(before.key.clone(), event.revision(), &value);
        self.write(lines, "DELETED", &left);
    }

    fn write(&self, lines: &mut Vec<u8>, what: &str, object: &StoredObject) {
        match self.format {
            ResponseFormat::Object => write_line(lines, what, &object.json()),
            ResponseFormat::Metadata => {
                write_line(lines, what, content_negotiation::metadata_only(object).to_string().as_bytes());
            }
            ResponseFormat::Table => {
                let version = object.resource_version.to_string();
                let meta = self.target.entry.meta;
                let table = table::render(meta, &[object], &version, self.include, jiff::Timestamp::now());
                write_line(lines, what, table.to_string().as_bytes());
            }
        }
    }

    fn write_bookmark(&self, lines: &mut Vec<u8>, ends_initial: bool) {
        let meta = self.target.entry.meta;
        let mut metadata = json!({ "resourceVersion": self.cursor.to_string() });
        if ends_initial {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let bookmark: Value = match self.format {
            ResponseFormat::Object => json!({
                "kind": meta.kind,
                "apiVersion": meta.api_version(),
                "metadata": metadata,
            }),
            ResponseFormat::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            ResponseFormat::Table => {
                let mut table = table::render(meta, &[], "", self.include, jiff::Timestamp::now());
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
