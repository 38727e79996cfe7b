//! What an error of a service means for the adapter.

use adapter::{Error, SendError};

use super::client::AwsResponse;

/// How a service writes its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    Json,
    Xml,
}

#[derive(Debug, Clone)]
pub(crate) struct AwsError {
    status: u16,
    code: String,
    message: String,
}

/// Codes with which a service asks for a pause, whatever the status.
const THROTTLED: &[&str] =
    &["Throttl", "SlowDown", "OverLimit", "RequestTimeout", "ServiceUnavailable", "InternalError"];
/// Codes that a person has to mend, whatever the status.
const REFUSED: &[&str] = &[
    "QueueDoesNotExist",
    "NonExistentQueue",
    "NoSuchBucket",
    "InvalidBucketName",
    "AccessDenied",
    "ClientTokenId",
    "UnrecognizedClient",
    "Signature",
    "ExpiredToken",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "MissingAuthenticationToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "InvalidAddress",
];

impl AwsError {
    pub(crate) fn read(response: &AwsResponse, format: ErrorFormat) -> AwsError {
        let body = String::from_utf8_lossy(&response.body);
        let (code, message) = match format {
            ErrorFormat::Json => {
                let value: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
                let field = |name: &str| value.get(name).and_then(serde_json::Value::as_str).unwrap_or("").to_owned();
                (field("__type"), field("message") + &field("Message"))
            }
            ErrorFormat::Xml => {
                let field = |name: &str| {
                    let text = body.split(&format!("<{name}>")).nth(1).and_then(|rest| rest.split('<').next());
                    text.unwrap_or("").to_owned()
                };
                (field("Code"), field("Message"))
            }
        };
        let code = code.rsplit('#').next().unwrap_or_default().to_owned();
        AwsError { status: response.status, code, message: message.chars().take(300).collect() }
    }

    fn has_code(&self, codes: &[&str]) -> bool {
        codes.iter().any(|code| self.code.contains(code))
    }

    fn is_throttled(&self) -> bool {
        self.status >= 500 || self.status == 429 || self.has_code(THROTTLED)
    }

    fn is_refused(&self) -> bool {
        matches!(self.status, 301 | 307 | 401 | 403 | 404) || self.has_code(REFUSED)
    }

    /// For a sender.
    pub(crate) fn into_send_error(self, action: &str) -> SendError {
        let message = self.describe(action);
        let status = Some(self.status);
        if self.is_throttled() {
            SendError::Unavailable { status, message, retry_after: None }
        } else if self.is_refused() {
            SendError::Refused { status, message }
        } else {
            SendError::Rejected { status, message }
        }
    }

    /// For a receiver, which tries again.
    pub(crate) fn into_error(self, action: &str) -> Error {
        let reason = if self.is_refused() && !self.is_throttled() { "RequestRefused" } else { "ConnectionFailed" };
        Error { reason, ..Error::connection(self.describe(action)) }
    }

    fn describe(&self, action: &str) -> String {
        format!("{action}: {} {} {}", self.status, self.code, self.message).trim_end().to_owned()
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }
}
