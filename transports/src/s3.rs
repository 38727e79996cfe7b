//! Amazon S3: new objects of a bucket as receiver, PUT of an object as sender.
//!
//! The bucket is listed again and again. An object that the sink accepted is deleted, or remembered if it is to stay.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Context, DeliveryResult, Error, Intake, SecretFile};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;

mod bucket;
mod object;
mod remembered;
mod sender;

use crate::aws::{AwsResponse, CredentialFiles, RESPONSE_BYTES_MAX};
use bucket::{ListPage, S3Bucket, S3BucketConfig, S3Object};
use object::event_of;
use remembered::{ObjectHash, RememberedObjects};
pub(crate) use sender::S3Sender;

/// Milliseconds between two listings of a bucket without new objects, as in upstream.
const DELAY_MS: u64 = 500;
/// Requests to S3 at once.
const REQUESTS_MAX: usize = 8;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// The name or the ARN of the bucket.
    arn: String,
    region: Option<String>,
    /// The endpoint of another service with this protocol.
    uri_endpoint_override: Option<String>,
    /// The bucket is part of the path. Default: with `uriEndpointOverride`, and for names with a dot.
    force_path_style: Option<bool>,
    access_key: Option<SecretFile>,
    secret_key: Option<SecretFile>,
    session_token: Option<SecretFile>,
    /// A directory with the credentials.
    secret: Option<PathBuf>,
    tls: Option<Tls>,
    #[serde(default)]
    auto_create_bucket: bool,
    /// Only objects whose keys begin so.
    #[serde(default)]
    prefix: String,
    /// Objects are deleted after the sink accepted them.
    #[serde(default = "yes")]
    delete_after_read: bool,
    /// Events have no data; the objects are not fetched.
    #[serde(default)]
    ignore_body: bool,
    /// Milliseconds between two listings.
    delay: Option<u64>,
}

fn yes() -> bool {
    true
}

impl Config {
    fn bucket(&self) -> S3BucketConfig {
        S3BucketConfig {
            arn: self.arn.clone(),
            region: self.region.clone(),
            endpoint: self.uri_endpoint_override.clone(),
            path_style: self.force_path_style,
            credentials: CredentialFiles {
                secret: self.secret.clone(),
                access_key: self.access_key.clone(),
                secret_key: self.secret_key.clone(),
                session_token: self.session_token.clone(),
            },
            tls: self.tls.clone(),
            creates: self.auto_create_bucket,
        }
    }
}

pub(crate) struct S3Receiver {
    config: Config,
    bucket: Rc<S3Bucket>,
    state: Option<PathBuf>,
}

/// What a request to S3 brought.
enum S3Progress {
    Listed(ListPage),
    /// `None`: the object was deleted or replaced after the listing.
    Fetched(S3Object, Option<AwsResponse>),
    Deleted(ObjectHash),
}

type Request = Pin<Box<dyn Future<Output = Result<S3Progress, Error>>>>;

impl adapter::Receiver for S3Receiver {
    type Config = Config;
    type Token = S3Object;

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        let bucket = Rc::new(S3Bucket::new(config.bucket(), "ADAPTER_RECEIVER")?);
        Ok(S3Receiver { config, bucket, state: context.state.as_ref().map(|state| state.join("objects.bin")) })
    }

    /// The id of an event is made of the key and the version of the object.
    fn qos_max(&self) -> u8 {
        2
    }

    async fn receive(&mut self, intake: &mut Intake<S3Object>) -> Result<(), Error> {
        self.bucket.check().await?;
        let remembered = RememberedObjects::open(self.state.clone().filter(|_| !self.config.delete_after_read))?;
        intake.ready();
        let mut session = S3Session {
            bucket: Rc::clone(&self.bucket),
            config: self.config.clone(),
            requests: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            seen: remembered,
            present: HashSet::new(),
            next_page: Some(None),
            is_listing: false,
        };
        session.run(intake).await
    }
}

/// The state of one connection.
struct S3Session {
    bucket: Rc<S3Bucket>,
    config: Config,
    requests: FuturesUnordered<Request>,
    /// Listed and not fetched.
    waiting: VecDeque<S3Object>,
    /// Objects on their way or done.
    seen: RememberedObjects,
    /// Objects of the current listing.
    present: HashSet<ObjectHash>,
    /// The page to list next; `None`: the listing is complete.
    next_page: Option<Option<String>>,
    is_listing: bool,
}

impl S3Session {
    async fn run(&mut self, intake: &mut Intake<S3Object>) -> Result<(), Error> {
        let mut stop = intake.stop();
        let delay = Duration::from_millis(self.config.delay.unwrap_or(DELAY_MS).max(10));
        let mut pause = Box::pin(tokio::time::sleep(delay));
        while !(intake.finished() && self.requests.is_empty()) {
            let stopping = intake.stopping();
            if !stopping {
                self.begin(intake);
            }
            let is_idle = self.next_page.is_none() && self.waiting.is_empty();
            tokio::select! {
                (object, outcome) = intake.settled() => self.settle(object, &outcome),
                Some(progress) = self.requests.next() => {
                    self.advance(progress?, intake);
                    pause.as_mut().reset(tokio::time::Instant::now() + delay);
                }
                () = &mut pause, if is_idle && !stopping => self.next_page = Some(None),
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }

    /// Starts the requests that there is room for.
    fn begin(&mut self, intake: &mut Intake<S3Object>) {
        while self.requests.len() < REQUESTS_MAX && intake.free_slots() > self.requests.len() {
            if let Some(object) = self.waiting.pop_front() {
                if self.config.ignore_body {
                    push(intake, &self.bucket, object, None);
                    continue;
                }
                let bucket = Rc::clone(&self.bucket);
                self.requests.push(Box::pin(async move {
                    let response = bucket.get(&object).await?;
                    Ok(S3Progress::Fetched(object, response))
                }));
            } else if !self.is_listing
                && let Some(page) = self.next_page.take()
            {
                self.is_listing = true;
                let (bucket, prefix) = (Rc::clone(&self.bucket), self.config.prefix.clone());
                self.requests.push(Box::pin(async move {
                    Ok(S3Progress::Listed(bucket.list(&prefix, page.as_deref()).await?))
                }));
            } else {
                return;
            }
        }
    }

    fn advance(&mut self, progress: S3Progress, intake: &mut Intake<S3Object>) {
        match progress {
            S3Progress::Listed(page) => self.listed(page),
            S3Progress::Fetched(object, Some(response)) => push(intake, &self.bucket, object, Some(&response)),
            S3Progress::Fetched(object, None) => self.seen.forget(&object.hash()),
            S3Progress::Deleted(object) => self.seen.forget(&object),
        }
    }

    fn listed(&mut self, page: ListPage) {
        self.is_listing = false;
        for object in page.objects {
            let hash = object.hash();
            self.present.insert(hash);
            if !self.seen.begin(hash) {
                continue;
            }
            if object.size > RESPONSE_BYTES_MAX as u64 && !self.config.ignore_body {
                tracing::error!(
                    key = object.key,
                    size = object.size,
                    limit = RESPONSE_BYTES_MAX,
                    "an object is too large for an event and stays in the bucket; set ignoreBody for such objects"
                );
                continue;
            }
            self.waiting.push_back(object);
        }
        match page.next {
            Some(next) => self.next_page = Some(Some(next)),
            None => self.seen.keep_only(&std::mem::take(&mut self.present)),
        }
    }

    fn settle(&mut self, object: S3Object, outcome: &DeliveryResult) {
        if *outcome != DeliveryResult::Accepted {
            return self.seen.forget(&object.hash());
        }
        if !self.config.delete_after_read {
            return self.seen.finish(object.hash());
        }
        let bucket = Rc::clone(&self.bucket);
        self.requests.push(Box::pin(async move {
            bucket.delete(&object).await?;
            Ok(S3Progress::Deleted(object.hash()))
        }));
    }
}

fn push(intake: &mut Intake<S3Object>, bucket: &S3Bucket, object: S3Object, response: Option<&AwsResponse>) {
    let event = event_of(bucket.name(), &object, response);
    let key = object.key.clone();
    intake.push(event, Some(&key), object);
}
