//! What SQS and S3 share: credentials, signed requests and the meaning of errors. Requests are plain HTTP over hyper.

mod client;
mod credentials;
mod error;
mod signature;

pub(crate) use client::{AwsClient, AwsEndpoint, AwsRequest, AwsResponse, RESPONSE_BYTES_MAX};
pub(crate) use credentials::CredentialFiles;
pub(crate) use error::{AwsError, ErrorFormat};
pub(crate) use signature::{hex, percent_encode};

/// `arn:PARTITION:SERVICE:REGION:ACCOUNT:NAME`, or the name alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceName {
    pub(crate) region: Option<String>,
    pub(crate) account: Option<String>,
    pub(crate) name: String,
}

impl ResourceName {
    pub(crate) fn parse(text: &str) -> Option<ResourceName> {
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        let filled = |part: &str| Some(part.to_owned()).filter(|part| !part.is_empty());
        match parts.as_slice() {
            ["arn", _, _, region, account, name] if !name.is_empty() => {
                Some(ResourceName { region: filled(region), account: filled(account), name: (*name).to_owned() })
            }
            [name] if !name.is_empty() => Some(ResourceName { region: None, account: None, name: (*name).to_owned() }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_is_an_arn_or_a_name() {
        let queue = ResourceName::parse("arn:aws:sqs:eu-west-1:123456789012:orders.fifo").unwrap();
        assert_eq!(queue.region.as_deref(), Some("eu-west-1"));
        assert_eq!((queue.account.as_deref(), queue.name.as_str()), (Some("123456789012"), "orders.fifo"));
        let bucket = ResourceName::parse("arn:aws:s3:::my-bucket").unwrap();
        assert_eq!((bucket.region, bucket.name.as_str()), (None, "my-bucket"));
        assert_eq!(ResourceName::parse("orders").unwrap().name, "orders");
        assert_eq!(ResourceName::parse("arn:aws:sqs"), None);
    }
}
