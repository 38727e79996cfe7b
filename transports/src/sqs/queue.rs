//! The actions of SQS that are used, by its JSON protocol.

use std::collections::HashMap;

use adapter::tls::Tls;
use adapter::{Error, SendError};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::aws::{AwsClient, AwsEndpoint, AwsError, AwsRequest, CredentialFiles, ErrorFormat, ResourceName};

/// Entries of one batch, and messages of one poll.
pub(super) const BATCH_MAX: usize = 10;

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(super) struct SqsQueueConfig {
    pub(super) arn: String,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) credentials: CredentialFiles,
    pub(super) tls: Option<Tls>,
    pub(super) creates: bool,
}

pub(super) struct SqsQueue {
    client: AwsClient,
    name: ResourceName,
    creates: bool,
}

/// A message as SQS delivers it.
pub(super) struct SqsMessage {
    pub(super) id: String,
    pub(super) receipt_handle: String,
    pub(super) body: String,
    /// Of a FIFO queue.
    pub(super) group: Option<String>,
    /// Milliseconds since 1970.
    pub(super) sent: Option<i64>,
    pub(super) attributes: HashMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveOutput {
    #[serde(default)]
    messages: Vec<ReceiveOutputMessage>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveOutputMessage {
    message_id: String,
    receipt_handle: String,
    #[serde(default)]
    body: String,
    #[serde(default)]
    attributes: HashMap<String, String>,
    #[serde(default)]
    message_attributes: HashMap<String, ReceiveOutputAttribute>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveOutputAttribute {
    string_value: Option<String>,
}

impl From<ReceiveOutputMessage> for SqsMessage {
    fn from(message: ReceiveOutputMessage) -> SqsMessage {
        SqsMessage {
            group: message.attributes.get("MessageGroupId").cloned(),
            sent: message.attributes.get("SentTimestamp").and_then(|time| time.parse().ok()),
            id: message.message_id,
            receipt_handle: message.receipt_handle,
            body: message.body,
            attributes: message
                .message_attributes
                .into_iter()
                .filter_map(|(name, attribute)| Some((name, attribute.string_value?)))
                .collect(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchResult {
    #[serde(default)]
    failed: Vec<BatchFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchFailure {
    id: String,
    #[serde(default)]
    sender_fault: bool,
    #[serde(default)]
    code: String,
}

impl SqsQueue {
    pub(super) fn new(config: SqsQueueConfig, variable: &str) -> Result<SqsQueue, Error> {
        let name = ResourceName::parse(&config.arn)
            .ok_or_else(|| Error::config(format!("{variable}: arn: {:?} is no name or ARN of a queue", config.arn)))?;
        let region = config.region.or_else(|| name.region.clone());
        let region = region
            .ok_or_else(|| Error::config(format!("{variable}: region: missing, and arn is not an ARN with one")))?;
        let url = config.endpoint.unwrap_or_else(|| format!("https://sqs.{region}.amazonaws.com"));
        let endpoint = AwsEndpoint { service: "sqs", region, url, tls: config.tls };
        Ok(SqsQueue { client: AwsClient::new(endpoint, config.credentials)?, name, creates: config.creates })
    }

    pub(super) fn is_fifo(&self) -> bool {
        self.name.name.ends_with(".fifo")
    }

    async fn call(&self, action: &str, input: &Value) -> Result<Result<Value, AwsError>, Error> {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let request = AwsRequest {
            method: Method::POST,
            path: "/".to_owned(),
            query: Vec::new(),
            headers: vec![
                header("content-type", "application/x-amz-json-1.0"),
                header("x-amz-target", &format!("AmazonSQS.{action}")),
            ],
            body: input.to_string().into(),
        };
        let response = self.client.send(request).await?;
        if !response.is_success() {
            return Ok(Err(AwsError::read(&response, ErrorFormat::Json)));
        }
        let value = serde_json::from_slice(&response.body);
        value
            .map(Ok)
            .map_err(|error| Error::connection(format!("SQS: {action}: the response is not valid JSON: {error}")))
    }

    async fn request<T: serde::de::DeserializeOwned>(&self, action: &str, input: Value) -> Result<T, Error> {
        let output = self.call(action, &input).await?.map_err(|error| error.into_error(&format!("SQS: {action}")))?;
        serde_json::from_value(output).map_err(|error| Error::connection(format!("SQS: {action}: response: {error}")))
    }

    /// Finds the queue, or creates it if the configuration says so.
    pub(super) async fn url(&self) -> Result<String, Error> {
        let mut input = json!({"QueueName": self.name.name});
        if let Some(account) = &self.name.account {
            input["QueueOwnerAWSAccountId"] = json!(account);
        }
        let output = match self.call("GetQueueUrl", &input).await? {
            Ok(output) => output,
            Err(error) if self.creates && error.code().contains("Queue") => {
                let mut input = json!({"QueueName": self.name.name});
                if self.is_fifo() {
                    input["Attributes"] = json!({"FifoQueue": "true"});
                }
                self.request("CreateQueue", input).await?
            }
            Err(error) => return Err(error.into_error(&format!("SQS: queue {}", self.name.name))),
        };
        let url = output.get("QueueUrl").and_then(Value::as_str).map(str::to_owned);
        url.ok_or_else(|| Error::connection("SQS: GetQueueUrl: the response has no QueueUrl"))
    }

    pub(super) async fn receive(
        &self,
        url: &str,
        messages: u32,
        wait_seconds: u32,
        visibility_seconds: u32,
    ) -> Result<Vec<SqsMessage>, Error> {
        let input = json!({
            "QueueUrl": url,
            "MaxNumberOfMessages": messages,
            "WaitTimeSeconds": wait_seconds,
            "VisibilityTimeout": visibility_seconds,
            "AttributeNames": ["All"],
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        let received: ReceiveOutput = self.request("ReceiveMessage", input).await?;
        Ok(received.messages.into_iter().map(SqsMessage::from).collect())
    }

    /// Returns the handles whose deletion has to be tried again.
    pub(super) async fn delete(&self, url: &str, handles: Vec<String>) -> Result<Vec<String>, Error> {
        let entries: Vec<Value> = handles
            .iter()
            .enumerate()
            .map(|(at, handle)| json!({"Id": at.to_string(), "ReceiptHandle": handle}))
            .collect();
        let result: BatchResult =
            self.request("DeleteMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await?;
        let mut again = Vec::new();
        for failure in result.failed {
            // A handle that has expired cannot be used again: the message is delivered once more.
            tracing::warn!(code = failure.code, "SQS did not delete a message");
            if !failure.sender_fault
                && let Some(handle) = failure.id.parse::<usize>().ok().and_then(|at| handles.get(at))
            {
                again.push(handle.clone());
            }
        }
        Ok(again)
    }

    /// Nothing has to be tried again: the next heartbeat does it.
    pub(super) async fn set_visibility(&self, url: &str, handles: Vec<String>, seconds: u32) -> Result<(), Error> {
        let entry = |(at, handle): (usize, &String)| json!({"Id": at.to_string(), "ReceiptHandle": handle, "VisibilityTimeout": seconds});
        let entries: Vec<Value> = handles.iter().enumerate().map(entry).collect();
        let result: BatchResult =
            self.request("ChangeMessageVisibilityBatch", json!({"QueueUrl": url, "Entries": entries})).await?;
        for failure in result.failed {
            tracing::debug!(code = failure.code, "SQS did not change the visibility of a message");
        }
        Ok(())
    }

    pub(super) async fn send(&self, input: &Value) -> Result<(), SendError> {
        match self.call("SendMessage", input).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.into_send_error("SQS: SendMessage")),
            Err(error) => Err(SendError::unavailable(error.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_or_hostile_response_is_an_error_or_plain_text() {
        let whole =
            r#"{"Messages":[{"MessageId":"m","ReceiptHandle":"r","Body":"ü","Attributes":{"SentTimestamp":"1"}}]}"#;
        assert_eq!(serde_json::from_str::<ReceiveOutput>(whole).unwrap().messages.len(), 1);
        for (end, _) in whole.char_indices() {
            assert!(serde_json::from_str::<ReceiveOutput>(&whole[..end]).is_err(), "{end}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for hostile in ["[{}]", "{\"Messages\":[{\"MessageId\":7}]}", "{\"Messages\":{}}", deep.as_str()] {
            assert!(serde_json::from_str::<ReceiveOutput>(hostile).is_err());
        }
        for time in ["99999999999999999999", "-9223372036854775808", "x"] {
            let message = json!({"MessageId": "m", "ReceiptHandle": "r", "Attributes": {"SentTimestamp": time}});
            let message: ReceiveOutputMessage = serde_json::from_value(message).unwrap();
            let event = super::super::message::event_of(&message.into());
            assert_eq!(event.text("time"), "", "{time}");
        }
    }
}
