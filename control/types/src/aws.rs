//! Amazon S3 and SQS as upstream's IntegrationSources and IntegrationSinks write them, and as the built-in transports `s3`
//! and `sqs` read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::field_errors::{FieldErrors, MISSING};
use crate::secret_reference::{AuthSecret, file};

/// Upstream's keys of the Secret, and the transports' fields.
const CREDENTIALS: [(&str, &str); 2] = [("accessKey", "aws.accessKey"), ("secretKey", "aws.secretKey")];
const NOT_SUPPORTED: &str = "invalid value: true: the built-in transport does not support it";

/// The credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsAuth {
    /// A Secret with the keys `aws.accessKey` and `aws.secretKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<AuthSecret>,
    /// The identity of the adapter's instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// A bucket of S3. The fields are upstream's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsS3 {
    pub region: String,
    /// The endpoint of another service with the same protocol; used with `overrideEndpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri_endpoint_override: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_endpoint: Option<bool>,
    /// The bucket: its ARN or its name.
    pub arn: String,
    /// Objects are deleted after their events were accepted. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_after_read: Option<bool>,
    /// Not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub move_after_read: Option<bool>,
    /// Where objects would be moved; without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_bucket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_bucket_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_bucket_suffix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_create_bucket: Option<bool>,
    /// Source: only objects whose keys begin so. Sink: what all keys begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Events have no data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_body: Option<bool>,
    /// The bucket is part of the path of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force_path_style: Option<bool>,
    /// Milliseconds between two listings of the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<u64>,
    /// Without effect: all objects of a listing are fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages_per_poll: Option<u32>,
}

/// A queue of SQS. The fields are upstream's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsSqs {
    pub region: String,
    /// The endpoint of another service with the same protocol; used with `overrideEndpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri_endpoint_override: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_endpoint: Option<bool>,
    /// The queue: its ARN or its name.
    pub arn: String,
    /// Messages are always deleted after their events were accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_after_read: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_create_queue: Option<bool>,
    /// Without effect, as are `protocol` and `queueURL`: `uriEndpointOverride` names another endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    #[serde(rename = "queueURL", skip_serializing_if = "Option::is_none")]
    pub queue_url: Option<String>,
    /// Without effect, as is `delay`: a request waits at the queue until there is a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greedy: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<u64>,
    /// Messages of one request, 1 to 10. Default: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages_per_poll: Option<u32>,
    /// Seconds that a request waits for a message, 0 to 20. Default: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_time_seconds: Option<u32>,
    /// Seconds. Default: 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility_timeout: Option<u32>,
}

/// A resource of which service of which region.
#[derive(Debug, Clone, Copy)]
struct AwsResource<'a> {
    arn: &'a str,
    region: &'a str,
    /// Where the region's service is not Amazon's.
    endpoint: Option<&'a str>,
    is_overridden: bool,
}

impl AwsAuth {
    fn secret_name(&self) -> Option<&str> {
        self.secret.as_ref()?.name().filter(|name| !name.is_empty())
    }

    /// Reports missing credentials of `auth` at `at`.
    pub(crate) fn validate(auth: Option<&Self>, at: &str, problems: &mut FieldErrors) {
        if auth.and_then(Self::secret_name).is_none() {
            problems.add(format!("{at}.secret.ref.name"), MISSING);
        }
    }
}

impl AwsResource<'_> {
    /// The fields of a transport with these credentials.
    fn section(self, auth: Option<&AwsAuth>) -> Map<String, Value> {
        let mut section = Map::new();
        section.insert("arn".to_owned(), self.arn.into());
        section.insert("region".to_owned(), self.region.into());
        if let Some(endpoint) = self.endpoint.filter(|_| self.is_overridden) {
            section.insert("uriEndpointOverride".to_owned(), endpoint.into());
        }
        if let Some(secret) = auth.and_then(AwsAuth::secret_name) {
            section.extend(CREDENTIALS.map(|(field, key)| (field.to_owned(), file(secret, key))));
        }
        section
    }

    fn validate(self, at: &str, problems: &mut FieldErrors) {
        for (field, value) in [("arn", self.arn), ("region", self.region)] {
            if value.is_empty() {
                problems.add(format!("{at}.{field}"), MISSING);
            }
        }
        if self.is_overridden && self.endpoint.is_none_or(str::is_empty) {
            problems.add(format!("{at}.uriEndpointOverride"), MISSING);
        }
    }
}

/// The fields that are set, under their names.
fn set_fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> impl Iterator<Item = (String, Value)> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
}

impl AwsS3 {
    fn resource(&self) -> AwsResource<'_> {
        AwsResource {
            arn: &self.arn,
            region: &self.region,
            endpoint: self.uri_endpoint_override.as_deref(),
            is_overridden: self.override_endpoint == Some(true),
        }
    }

    /// The configuration of the receiving transport.
    pub(crate) fn source(&self, auth: Option<&AwsAuth>) -> Value {
        let mut section = self.section(auth);
        section.extend(set_fields([
            ("deleteAfterRead", self.delete_after_read.map(Value::from)),
            ("ignoreBody", self.ignore_body.map(Value::from)),
            ("delay", self.delay.map(Value::from)),
        ]));
        section.into()
    }

    /// That of the sending one.
    pub(crate) fn sink(&self, auth: Option<&AwsAuth>) -> Value {
        self.section(auth).into()
    }

    fn section(&self, auth: Option<&AwsAuth>) -> Map<String, Value> {
        let mut section = self.resource().section(auth);
        section.extend(set_fields([
            ("autoCreateBucket", self.auto_create_bucket.map(Value::from)),
            ("prefix", self.prefix.clone().map(Value::from)),
            // Upstream's default is `false`; the transport chooses, as servers other than Amazon's need the path.
            ("forcePathStyle", self.force_path_style.filter(|forced| *forced).map(Value::from)),
        ]));
        section
    }

    pub(crate) fn validate(&self, at: &str, problems: &mut FieldErrors) {
        self.resource().validate(at, problems);
        if self.move_after_read == Some(true) {
            problems.add(format!("{at}.moveAfterRead"), NOT_SUPPORTED);
        }
    }
}

impl AwsSqs {
    fn resource(&self) -> AwsResource<'_> {
        AwsResource {
            arn: &self.arn,
            region: &self.region,
            endpoint: self.uri_endpoint_override.as_deref(),
            is_overridden: self.override_endpoint == Some(true),
        }
    }

    /// The configuration of the receiving transport.
    pub(crate) fn source(&self, auth: Option<&AwsAuth>) -> Value {
        let mut section = self.section(auth);
        section.extend(set_fields([
            ("maxMessagesPerPoll", self.max_messages_per_poll.map(Value::from)),
            ("waitTimeSeconds", self.wait_time_seconds.map(Value::from)),
            ("visibilityTimeout", self.visibility_timeout.filter(|seconds| *seconds > 0).map(Value::from)),
        ]));
        section.into()
    }

    /// That of the sending one. Messages are the data of events, as upstream's are.
    pub(crate) fn sink(&self, auth: Option<&AwsAuth>) -> Value {
        let mut section = self.section(auth);
        section.insert("body".to_owned(), json!("data"));
        section.into()
    }

    fn section(&self, auth: Option<&AwsAuth>) -> Map<String, Value> {
        let mut section = self.resource().section(auth);
        section.extend(set_fields([("autoCreateQueue", self.auto_create_queue.map(Value::from))]));
        section
    }

    pub(crate) fn validate(&self, at: &str, problems: &mut FieldErrors) {
        self.resource().validate(at, problems);
        if self.delete_after_read == Some(false) {
            let why = "invalid value: false: a message that is not deleted comes again and again";
            problems.add(format!("{at}.deleteAfterRead"), why);
        }
        for (field, value, min, max) in [
            ("maxMessagesPerPoll", self.max_messages_per_poll, 1, 10),
            ("waitTimeSeconds", self.wait_time_seconds, 0, 20),
            ("visibilityTimeout", self.visibility_timeout, 0, 43_200),
        ] {
            if let Some(value) = value.filter(|value| !(min..=max).contains(value)) {
                problems.add(format!("{at}.{field}"), format!("expected {min} <= {value} <= {max}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> AwsAuth {
        serde_json::from_value(json!({ "secret": { "ref": { "name": "keys" } } })).unwrap()
    }

    /// TRN-15, TRN-23: upstream's fields become the transports', and the Secret's keys become files.
    #[test]
    fn fields_become_those_of_the_transports() {
        let s3: AwsS3 = serde_json::from_value(json!({
            "arn": "arn:aws:s3:::b", "region": "eu-north-1", "deleteAfterRead": false, "forcePathStyle": false,
            "uriEndpointOverride": "http://127.0.0.1:1", "overrideEndpoint": true,
        }))
        .unwrap();
        let key = |key: &str| json!({ "secret": { "name": "keys", "key": key } });
        let keys = json!({ "accessKey": key("aws.accessKey"), "secretKey": key("aws.secretKey") });
        let with_keys = |mut section: Value| {
            section.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            section
        };
        let base =
            json!({ "arn": "arn:aws:s3:::b", "region": "eu-north-1", "uriEndpointOverride": "http://127.0.0.1:1" });
        assert_eq!(s3.sink(Some(&auth())), with_keys(base.clone()));
        let mut source = base;
        source["deleteAfterRead"] = json!(false);
        assert_eq!(s3.source(Some(&auth())), with_keys(source));
        let sqs: AwsSqs = serde_json::from_value(
            json!({ "arn": "q", "region": "r", "uriEndpointOverride": "http://127.0.0.1:1", "visibilityTimeout": 0 }),
        )
        .unwrap();
        assert_eq!(sqs.source(Some(&auth())), with_keys(json!({ "arn": "q", "region": "r" })));
        assert_eq!(sqs.sink(Some(&auth()))["body"], "data");
    }

    #[test]
    fn unsupported_settings_are_refused() {
        let mut problems = FieldErrors::default();
        AwsS3 { move_after_read: Some(true), ..AwsS3::default() }.validate("s3", &mut problems);
        AwsSqs { delete_after_read: Some(false), max_messages_per_poll: Some(11), ..AwsSqs::default() }
            .validate("sqs", &mut problems);
        AwsAuth::validate(Some(&AwsAuth::default()), "auth", &mut problems);
        let fields: Vec<_> = problems.into_list().into_iter().map(|problem| problem.field).collect();
        let sqs = ["sqs.arn", "sqs.region", "sqs.deleteAfterRead", "sqs.maxMessagesPerPoll"];
        assert_eq!(fields[..3], ["s3.arn", "s3.region", "s3.moveAfterRead"]);
        assert_eq!((&fields[3..7], fields[7].as_str()), (&sqs.map(str::to_owned)[..], "auth.secret.ref.name"));
    }
}
