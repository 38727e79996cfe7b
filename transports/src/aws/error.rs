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

/// Characters of a code and of a message, so that a log line stays readable.
const TEXT_CHARACTERS_MAX: usize = 300;

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
        let code = code.rsplit('#').next().unwrap_or_default();
        let text = |text: &str| text.chars().take(TEXT_CHARACTERS_MAX).collect();
        AwsError { status: response.status, code: text(code), message: text(&message) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn hostile_body_of_an_error_is_bounded_text() {
        let long = format!("<Error><Code>{0}</Code><Message>{0}", "ü".repeat(10_000));
        for body in
            ["", "<", "<Code>", "</Code><Code", "<Code>a#", "{\"__type\":7}", "{\"__type\":\"a#\"", "\u{0}", &long]
        {
            for format in [ErrorFormat::Json, ErrorFormat::Xml] {
                let response = AwsResponse {
                    status: 403,
                    headers: http::HeaderMap::new(),
                    body: Bytes::copy_from_slice(body.as_bytes()),
                };
                let error = AwsError::read(&response, format);
                assert!(error.describe("action").chars().count() <= 2 * TEXT_CHARACTERS_MAX + 20);
                assert!(matches!(error.into_send_error("action"), SendError::Refused { .. }));
            }
        }
    }
}
