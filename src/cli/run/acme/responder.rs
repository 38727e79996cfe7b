//! Answers HTTP-01 challenges on a loopback port, to which the table routes the requests of challenges.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use control::publish::{AcmeChallenge, Publisher};
use tokio::net::TcpListener;

/// Where an authority asks.
const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// Longest token that is accepted; the shortest that RFC 8555 allows has 22 bytes.
const TOKEN_BYTES_MAX: usize = 256;

/// The open challenges by their tokens.
#[derive(Clone)]
pub(super) struct ChallengeResponder {
    publisher: Arc<Publisher>,
    address: SocketAddr,
    open: Arc<Mutex<BTreeMap<String, OpenChallenge>>>,
}

struct OpenChallenge {
    host: String,
    /// Token and thumbprint of the account's key: the response. It is not secret.
    key_authorization: String,
}

impl ChallengeResponder {
    /// Listens from now on; within a runtime of tokio.
    pub(super) async fn start(publisher: Arc<Publisher>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen for ACME challenges")?;
        let responder = Self { publisher, address: listener.local_addr()?, open: Arc::default() };
        let path = format!("{CHALLENGE_PATH}{{token}}");
        let router = Router::new().route(&path, get(respond)).with_state(responder.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(responder)
    }

    /// Answers the challenge at `host` until the result is dropped.
    pub(super) fn open(&self, host: &str, token: &str, key_authorization: &str) -> Result<ChallengeGuard> {
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX || !token.bytes().all(is_base64url) {
            anyhow::bail!("the directory sent a token that is not base64url of at most {TOKEN_BYTES_MAX} bytes");
        }
        let challenge = OpenChallenge { host: host.to_owned(), key_authorization: key_authorization.to_owned() };
        self.lock().insert(token.to_owned(), challenge);
        self.publish();
        Ok(ChallengeGuard { responder: self.clone(), token: token.to_owned() })
    }

    fn publish(&self) {
        let open = self.lock();
        let routes = open.iter().map(|(token, challenge)| AcmeChallenge {
            host: challenge.host.clone(),
            path: format!("{CHALLENGE_PATH}{token}"),
            responder: self.address,
        });
        let routes: Vec<_> = routes.collect();
        drop(open);
        self.publisher.set_acme_challenges(&routes);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, OpenChallenge>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn respond(State(responder): State<ChallengeResponder>, Path(token): Path<String>) -> Response {
    match responder.lock().get(&token) {
        Some(open) => ([(CONTENT_TYPE, "application/octet-stream")], open.key_authorization.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// An open challenge.
pub(super) struct ChallengeGuard {
    responder: ChallengeResponder,
    token: String,
}

impl Drop for ChallengeGuard {
    fn drop(&mut self) {
        self.responder.lock().remove(&self.token);
        self.responder.publish();
    }
}
