//! A scriptable image registry on loopback: logins, tokens that expire, and faults.
//!
//! It runs on threads and implements HTTP/1.1 itself, so that it can cut a body in the middle.

mod http;
mod image;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};

pub use http::{SeenRequest, TestResponse};
pub use image::{TestImage, TestLayer, sha256};

/// What is to go wrong with a request.
#[derive(Debug, Clone)]
pub enum RegistryFault {
    /// This status, with these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// The body ends after so many bytes and the connection with it.
    CutAfter(usize),
    /// The first byte of the body is another one.
    FlipFirstByte,
    /// So many bytes, then nothing more until the client goes.
    StallAfter(usize),
    /// A byte every few milliseconds, until the client goes.
    Drip,
    /// Nothing at all, until the client goes.
    Hang,
    /// Range headers are not looked at.
    IgnoreRange,
}

/// How the registry wants to be asked.
#[derive(Debug, Clone, Default)]
pub enum RegistryLogin {
    #[default]
    None,
    Basic {
        user: String,
        password: String,
    },
    /// Tokens of its own token service at `/token`. Each is good for so many requests.
    Bearer {
        /// None: for everyone.
        user: Option<(String, String)>,
        requests_per_token: usize,
    },
}

#[derive(Debug, Default)]
struct RegistryState {
    login: RegistryLogin,
    /// By path behind `/v2/`: content type and content.
    documents: HashMap<String, (String, Vec<u8>)>,
    /// The rest of each fault's times, in order.
    faults: Vec<(String, RegistryFault, usize)>,
    seen: Vec<SeenRequest>,
    /// What each token is good for still.
    tokens: HashMap<String, usize>,
}

/// Stops taking connections when the process ends; each test has its own.
#[derive(Debug)]
pub struct TestRegistry {
    address: SocketAddr,
    state: Arc<Mutex<RegistryState>>,
}

impl TestRegistry {
    /// # Panics
    /// If loopback has no free port.
    #[must_use]
    pub fn start(login: RegistryLogin) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(Mutex::new(RegistryState { login, ..RegistryState::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || http::serve(&stream, address, &state));
            }
        });
        Self { address, state }
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `HOST:PORT/REPOSITORY:TAG`
    #[must_use]
    pub fn reference(&self, repository: &str, tag: &str) -> String {
        format!("{}/{repository}:{tag}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().expect("no test panicked with it")
    }

    /// Stores an image under a tag and returns its digest.
    pub fn push(&self, repository: &str, tag: &str, image: &TestImage) -> String {
        for (digest, blob) in image.blobs() {
            self.put_blob(repository, &digest, blob);
        }
        self.put_manifest(repository, tag, image.manifest_type(), image.manifest().into_bytes())
    }

    /// Stores an index of images for platforms (`OS/ARCHITECTURE[/VARIANT]`) and returns its digest.
    pub fn push_index(&self, repository: &str, tag: &str, images: &[(&str, &TestImage)]) -> String {
        let entries: Vec<String> = images
            .iter()
            .map(|(platform, image)| {
                let digest = self.push(repository, &platform.replace('/', "-"), image);
                image.index_entry(platform, &digest)
            })
            .collect();
        let media_type = "application/vnd.oci.image.index.v1+json";
        let index = format!(r#"{{"schemaVersion":2,"mediaType":"{media_type}","manifests":[{}]}}"#, entries.join(","));
        self.put_manifest(repository, tag, media_type, index.into_bytes())
    }

    /// Stores any document as a manifest, by tag and by digest.
    pub fn put_manifest(&self, repository: &str, tag: &str, media_type: &str, bytes: Vec<u8>) -> String {
        let digest = sha256(&bytes);
        let mut state = self.state();
        for name in [tag, &digest] {
            let path = format!("{repository}/manifests/{name}");
            state.documents.insert(path, (media_type.to_owned(), bytes.clone()));
        }
        digest
    }

    /// Stores any bytes as a blob, also such that do not have the digest.
    pub fn put_blob(&self, repository: &str, digest: &str, bytes: Vec<u8>) {
        let path = format!("{repository}/blobs/{digest}");
        self.state().documents.insert(path, ("application/octet-stream".into(), bytes));
    }

    /// The next `times` requests whose path contains `path` meet `fault`. Faults of one path come one after the other.
    pub fn fail(&self, path: &str, fault: RegistryFault, times: usize) {
        self.state().faults.push((path.to_owned(), fault, times));
    }

    /// Logs in differently from now on; tokens are forgotten.
    pub fn set_login(&self, login: RegistryLogin) {
        let mut state = self.state();
        state.login = login;
        state.tokens.clear();
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.state().seen.clone()
    }

    /// The requests so far whose path contains `path`.
    #[must_use]
    pub fn requests_for(&self, path: &str) -> Vec<SeenRequest> {
        self.requests().into_iter().filter(|request| request.path.contains(path)).collect()
    }
}
