//! Downloads one blob to a file: verified by size and digest, resumed after a broken connection.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::RegistryClient;
use super::retry::{self, Failure};
use super::session::{RegistryRequest, RegistrySession};
use super::transport::{Exchange, with_causes};
use crate::digest::{Digest, Hasher};
use crate::error::Error;
use crate::limits::{CORRUPT_DOWNLOADS_MAX, RequestLimits, WRITE_BYTES};
use crate::manifest::Descriptor;
use crate::progress::{Progress, ProgressEvent};

/// A file that a blob is written to, with the digest of what is in it.
#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    /// None while a thread writes.
    writer: Option<(File, Hasher)>,
    digest: Digest,
    /// Bytes that have arrived, written or pending.
    bytes: u64,
    pending: Vec<Bytes>,
    pending_bytes: usize,
}

impl Sink {
    pub(super) fn new(path: &Path, digest: &Digest) -> Result<Self, Error> {
        let options = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = options.map_err(|why| Error::storage(path, "a downloaded layer", &why))?;
        Ok(Self {
            path: path.to_owned(),
            writer: Some((file, digest.hasher())),
            digest: digest.clone(),
            bytes: 0,
            pending: Vec::new(),
            pending_bytes: 0,
        })
    }

    async fn push(&mut self, chunk: Bytes) -> Result<(), Error> {
        self.bytes += chunk.len() as u64;
        self.pending_bytes += chunk.len();
        self.pending.push(chunk);
        if self.pending_bytes >= WRITE_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes and hashes on a thread that may block.
    async fn flush(&mut self) -> Result<(), Error> {
        let chunks = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        self.with_writer(move |file, hasher| {
            for chunk in &chunks {
                file.write_all(chunk)?;
                hasher.update(chunk);
            }
            Ok(())
        })
        .await
    }

    /// Throws away what is there.
    async fn restart(&mut self) -> Result<(), Error> {
        self.pending.clear();
        (self.bytes, self.pending_bytes) = (0, 0);
        let empty = self.digest.hasher();
        self.with_writer(move |file, hasher| {
            *hasher = empty;
            file.set_len(0)?;
            file.rewind()
        })
        .await
    }

    async fn with_writer(
        &mut self,
        work: impl FnOnce(&mut File, &mut Hasher) -> io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let lost = || Error::Cancelled(self.path.display().to_string());
        let (mut file, mut hasher) = self.writer.take().ok_or_else(lost)?;
        let done = tokio::task::spawn_blocking(move || {
            let outcome = work(&mut file, &mut hasher);
            (file, hasher, outcome)
        });
        let (file, hasher, outcome) = done.await.map_err(|_| lost())?;
        self.writer = Some((file, hasher));
        outcome.map_err(|why| Error::storage(&self.path, "a downloaded layer", &why))
    }

    /// True if the bytes so far are the blob.
    async fn is_whole(&mut self) -> Result<bool, Error> {
        self.flush().await?;
        let digest = self.writer.as_ref().map(|(_, hasher)| hasher.clone().finish());
        Ok(digest.as_ref() == Some(&self.digest))
    }

    fn into_file(self) -> Option<File> {
        self.writer.map(|(file, _)| file)
    }
}

/// One blob's download over all its attempts and endpoints.
pub(super) struct Download<'a> {
    pub(super) client: &'a RegistryClient,
    pub(super) image: &'a str,
    pub(super) descriptor: &'a Descriptor,
    pub(super) progress: &'a dyn Progress,
}

impl Download<'_> {
    /// Downloads to `path` from the first of `sessions` that has the blob.
    pub(super) async fn run(&self, sessions: &[RegistrySession], path: &Path) -> Result<File, Error> {
        let mut sink = Sink::new(path, &self.descriptor.digest)?;
        let mut last = None;
        for session in sessions {
            match self.download_from(session, &mut sink).await {
                Ok(()) => return sink.into_file().ok_or_else(|| Error::Cancelled(self.image.to_owned())),
                Err(error @ (Error::DiskFull { .. } | Error::Storage { .. } | Error::Cancelled(_))) => {
                    return Err(error);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Cancelled(self.image.to_owned())))
    }

    async fn download_from(&self, session: &RegistrySession, sink: &mut Sink) -> Result<(), Error> {
        let (mut failures, mut corrupt) = (0, 0);
        loop {
            let before = sink.bytes;
            match self.attempt(session, sink).await? {
                None => match sink.is_whole().await? {
                    true => return Ok(()),
                    false => {
                        corrupt += 1;
                        if corrupt >= CORRUPT_DOWNLOADS_MAX {
                            return Err(self.corrupt(session, "its bytes do not have this digest".into()));
                        }
                        sink.restart().await?;
                    }
                },
                Some(failure) => {
                    let limits = &self.client.settings.limits;
                    // Enough progress is a reason to continue.
                    let is_progress = sink.bytes.saturating_sub(before) >= limits.progress_bytes_min;
                    failures = if is_progress { 1 } else { failures + 1 };
                    let error = session.error(&failure);
                    let pause =
                        retry::decide(&failure, failures, limits, fastrand::f64()).ok_or_else(|| error.clone())?;
                    let registry = session.endpoint.name.clone();
                    self.progress.event(&ProgressEvent::Retrying { registry, why: error.to_string() });
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn corrupt(&self, session: &RegistrySession, detail: String) -> Error {
        Error::Corrupt {
            image: self.image.to_owned(),
            part: "layer",
            digest: self.descriptor.digest.clone(),
            detail: format!("{detail} (from {})", session.endpoint.name),
        }
    }

    /// One request. None when all bytes are there; else why they are not.
    async fn attempt(&self, session: &RegistrySession, sink: &mut Sink) -> Result<Option<Failure>, Error> {
        let path = format!("blobs/{}", self.descriptor.digest);
        let registry_request = RegistryRequest { method: Method::GET, path, accept: None, from: sink.bytes };
        if sink.bytes == self.descriptor.size && sink.bytes > 0 {
            return Ok(None);
        }
        let mut exchange = session.send(self.client, &registry_request, self.progress).await?;
        if sink.bytes > 0 && !continues(&exchange, sink.bytes) {
            sink.restart().await?;
        }
        self.check_length(session, &exchange, sink.bytes)?;
        match self.receive(session, &mut exchange, sink).await? {
            None => {
                exchange.reuse(&self.client.transport);
                Ok(None)
            }
            failure => Ok(failure),
        }
    }

    /// A length that is announced wrongly is refused before the first byte.
    fn check_length(&self, session: &RegistrySession, exchange: &Exchange, have: u64) -> Result<(), Error> {
        let announced =
            exchange.response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        match announced {
            Some(bytes) if have.checked_add(bytes) != Some(self.descriptor.size) => {
                let detail = format!("it has {bytes} bytes where {} remain", self.descriptor.size - have);
                Err(self.corrupt(session, detail))
            }
            _ => Ok(()),
        }
    }

    async fn receive(
        &self,
        session: &RegistrySession,
        exchange: &mut Exchange,
        sink: &mut Sink,
    ) -> Result<Option<Failure>, Error> {
        let RequestLimits { progress_timeout: limit, progress_bytes_min, .. } = self.client.settings.limits;
        let body = exchange.response.body_mut();
        let (mut counted, mut deadline) = (sink.bytes, Instant::now() + limit);
        loop {
            if sink.bytes - counted >= progress_bytes_min {
                (counted, deadline) = (sink.bytes, Instant::now() + limit);
            }
            let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
                Err(_) => return Ok(Some(Failure::Timeout { what: "the next bytes of a layer", limit })),
                Ok(Some(Err(why))) => {
                    return Ok(Some(Failure::Unreachable(format!("the download broke: {}", with_causes(&why)))));
                }
                Ok(None) if sink.bytes == self.descriptor.size => return Ok(None),
                Ok(None) => return Ok(Some(Failure::Unreachable("the download ended early".into()))),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(chunk) = frame.into_data() else { continue };
            if sink.bytes + chunk.len() as u64 > self.descriptor.size {
                return Err(self.corrupt(session, format!("it is longer than {} bytes", self.descriptor.size)));
            }
            sink.push(chunk).await?;
            self.progress.event(&ProgressEvent::Downloaded {
                layer: self.descriptor.digest.clone(),
                bytes: sink.bytes,
                total: self.descriptor.size,
            });
        }
    }
}

/// True if the response continues at `from`. Registries without ranges answer 200 with the whole blob.
fn continues(exchange: &Exchange, from: u64) -> bool {
    let range = exchange.response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    exchange.response.status() == StatusCode::PARTIAL_CONTENT && start == Some(from)
}
