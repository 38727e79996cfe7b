//! What a client gets for a [`LocalReply`]: the operator's error page or a neutral text. The reason goes to the log, and to
//! clients that may see it.

use std::time::Duration;

use ::http::{HeaderValue, Response};
use bytes::Bytes;
use codec::http::LocalResponse;
use contract::client_address::ClientAddress;
use contract::table::ErrorPage;
use protocol::h2::grpc;

use super::{LocalReply, Proxy};

/// The header with the reason, for trusted proxies and cluster-local clients.
const REASON: &str = "Sluicegate-Reason";

/// Between two log lines about the same reason: clients can cause them at any rate.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl Proxy {
    /// The response to a request of `peer`.
    pub(super) fn local_response(&self, local_reply: &LocalReply, peer: &ClientAddress) -> LocalResponse {
        let mut answer = local_reply.answer();
        let page = match answer.status {
            // It goes to the client as it is.
            _ if matches!(local_reply, LocalReply::AuthorizationDenied(_)) => None,
            400.. => self.with_table(|table| table.gateway.error_pages.find(answer.status).cloned()),
            _ => None,
        };
        if let Some(ErrorPage { content_type, body }) = page {
            answer.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
            answer = answer.with("Content-Type", Bytes::from_static(content_type.as_bytes()));
            answer.body = body;
        }
        match self.reason(local_reply, peer) {
            Some(reason) => answer.with(REASON, reason),
            None => answer,
        }
    }

    /// The same for gRPC, whose error is in the head.
    pub(super) fn local_grpc_response(&self, local_reply: &LocalReply, peer: &ClientAddress) -> Response<()> {
        let mut answer = grpc::grpc_response(local_reply.status(), &local_reply.public_text());
        if let Some(value) = self.reason(local_reply, peer).and_then(|reason| HeaderValue::try_from(reason).ok()) {
            answer.headers_mut().insert("sluicegate-reason", value);
        }
        answer
    }

    /// Logs the reason of a failure. Returns it if the client may see it.
    fn reason(&self, local_reply: &LocalReply, peer: &ClientAddress) -> Option<String> {
        if local_reply.status() < 400 {
            return None;
        }
        let now = self.ring.now();
        let index = local_reply.index();
        let last = self.reply_logged.borrow()[index];
        let logs = local_reply.is_confidential() && last.is_none_or(|last| now - last >= LOG_INTERVAL);
        if !logs && !peer.may_see_reasons() {
            return None;
        }
        let sentence = local_reply.to_string();
        if logs {
            self.reply_logged.borrow_mut()[index] = Some(now);
            let (status, client) = (local_reply.status(), peer.canonical());
            tracing::info!(status, %client, reason = LocalReply::REASONS[index], "request not served: {sentence}");
        }
        peer.may_see_reasons().then(|| field_value(&sentence))
    }
}

/// The sentence as a header value: hosts of clients and errors of instances may have any characters.
fn field_value(sentence: &str) -> String {
    sentence.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}
