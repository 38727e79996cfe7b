//! The requests of S3 that are used.

use adapter::tls::Tls;
use adapter::{Error, SendError};
use bytes::Bytes;
use http::Method;

use super::remembered::ObjectHash;
use crate::aws::{
    AwsClient, AwsEndpoint, AwsError, AwsRequest, AwsResponse, CredentialFiles, ErrorFormat, ResourceName,
    percent_encode,
};

/// Bytes of a key, the limit of S3. A longer one would make a request target that cannot be written.
const KEY_BYTES_MAX: usize = 1024;

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(super) struct S3BucketConfig {
    pub(super) arn: String,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) path_style: Option<bool>,
    pub(super) credentials: CredentialFiles,
    pub(super) tls: Option<Tls>,
    pub(super) creates: bool,
}

pub(super) struct S3Bucket {
    client: AwsClient,
    name: String,
    region: String,
    /// Before the key in a path.
    root: String,
    creates: bool,
}

/// One version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct S3Object {
    pub(super) key: String,
    pub(super) etag: String,
    pub(super) modified: String,
    pub(super) size: u64,
}

impl S3Object {
    pub(super) fn hash(&self) -> ObjectHash {
        ObjectHash::of([self.key.as_str(), self.etag.as_str(), self.modified.as_str()])
    }
}

pub(super) struct ListPage {
    pub(super) objects: Vec<S3Object>,
    pub(super) next: Option<String>,
}

impl S3Bucket {
    pub(super) fn new(config: S3BucketConfig, variable: &str) -> Result<S3Bucket, Error> {
        let name = ResourceName::parse(&config.arn)
            .ok_or_else(|| Error::config(format!("{variable}: arn: {:?} is no name or ARN of a bucket", config.arn)))?;
        let region = config.region.or(name.region);
        let region = region.ok_or_else(|| Error::config(format!("{variable}: region: missing")))?;
        let name = name.name;
        let path_style = config.path_style.unwrap_or(config.endpoint.is_some() || name.contains('.'));
        let url = config.endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let (url, root) = match url.split_once("://") {
            Some((scheme, host)) if !path_style => (format!("{scheme}://{name}.{host}"), String::new()),
            _ => (url, format!("/{}", percent_encode(&name, false))),
        };
        let endpoint = AwsEndpoint { service: "s3", region: region.clone(), url, tls: config.tls };
        let client = AwsClient::new(endpoint, config.credentials)?;
        Ok(S3Bucket { client, name, region, root, creates: config.creates })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn request(&self, method: Method, key: &str) -> AwsRequest {
        let path = if key.is_empty() {
            if self.root.is_empty() { "/".to_owned() } else { self.root.clone() }
        } else {
            format!("{}/{}", self.root, percent_encode(key, true))
        };
        AwsRequest { method, path, query: Vec::new(), headers: Vec::new(), body: Bytes::new() }
    }

    fn error(&self, response: &AwsResponse, action: &str) -> Error {
        AwsError::read(response, ErrorFormat::Xml).into_error(&format!("S3: {action} of bucket {}", self.name))
    }

    /// Looks whether the bucket is there, or creates it if the configuration says so.
    pub(super) async fn check(&self) -> Result<(), Error> {
        let response = self.client.send(self.request(Method::HEAD, "")).await?;
        match response.status {
            404 if self.creates => {
                let mut request = self.request(Method::PUT, "");
                // The first region is named by its absence.
                if self.region != "us-east-1" {
                    let region = &self.region;
                    request.body = format!("<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>").into();
                }
                let response = self.client.send(request).await?;
                if response.is_success() { Ok(()) } else { Err(self.error(&response, "creation")) }
            }
            200..300 => Ok(()),
            _ => Err(self.error(&response, "look-up")),
        }
    }

    pub(super) async fn list(&self, prefix: &str, page: Option<&str>) -> Result<ListPage, Error> {
        let mut request = self.request(Method::GET, "");
        request.query = vec![("list-type", "2".to_owned()), ("encoding-type", "url".to_owned())];
        if !prefix.is_empty() {
            request.query.push(("prefix", prefix.to_owned()));
        }
        if let Some(page) = page {
            request.query.push(("continuation-token", page.to_owned()));
        }
        let response = self.client.send(request).await?;
        if !response.is_success() {
            return Err(self.error(&response, "listing"));
        }
        let page = parse_page(&String::from_utf8_lossy(&response.body));
        page.map_err(|error| Error::connection(format!("S3: listing of bucket {}: {error}", self.name)))
    }

    /// `None`: this version is not there any more.
    pub(super) async fn get(&self, object: &S3Object) -> Result<Option<AwsResponse>, Error> {
        let mut request = self.request(Method::GET, &object.key);
        request.headers.push(("if-match".to_owned(), object.etag.clone()));
        let response = self.client.send(request).await?;
        match response.status {
            200..300 => Ok(Some(response)),
            404 | 412 => Ok(None),
            _ => Err(self.error(&response, &format!("object {:?}", object.key))),
        }
    }

    /// Deletes this version. A newer one stays.
    pub(super) async fn delete(&self, object: &S3Object) -> Result<(), Error> {
        let response = self.client.send(self.request(Method::HEAD, &object.key)).await?;
        if response.status == 404 || response.is_success() && response.header("etag") != Some(&object.etag) {
            return Ok(());
        }
        let mut request = self.request(Method::DELETE, &object.key);
        // Closes the gap between the look-up and the deletion where the service supports it.
        request.headers.push(("if-match".to_owned(), object.etag.clone()));
        let mut response = self.client.send(request).await?;
        if response.status == 501 {
            response = self.client.send(self.request(Method::DELETE, &object.key)).await?;
        }
        match response.status {
            200..300 | 404 | 412 => Ok(()),
            _ => Err(self.error(&response, &format!("deletion of object {:?}", object.key))),
        }
    }

    pub(super) async fn put(&self, key: &str, headers: Vec<(String, String)>, body: Bytes) -> Result<(), SendError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let message = format!("the key of the object has {} bytes, S3 takes 1 to {KEY_BYTES_MAX}", key.len());
            return Err(SendError::rejected(message));
        }
        let request = AwsRequest { headers, body, ..self.request(Method::PUT, key) };
        match self.client.send(request).await {
            Ok(response) if response.is_success() => Ok(()),
            Ok(response) => {
                Err(AwsError::read(&response, ErrorFormat::Xml).into_send_error(&format!("S3: PUT {key:?}")))
            }
            Err(error) => Err(SendError::unavailable(error.message)),
        }
    }
}

/// The answer to a listing. Its elements have no attributes and no nesting that matters here. Anything but a whole answer is an
/// error: taken as an empty bucket, it would make the receiver forget the objects that are done.
fn parse_page(xml: &str) -> Result<ListPage, &'static str> {
    if !xml.contains("<ListBucketResult") || !xml.trim_end().ends_with("</ListBucketResult>") {
        return Err("the response is not a whole ListBucketResult");
    }
    let is_encoded = element(xml, "EncodingType").as_deref() == Some("url");
    let objects = xml.split("<Contents>").skip(1).filter_map(|contents| {
        let contents = contents.split("</Contents>").next()?;
        let key = element(contents, "Key")?;
        Some(S3Object {
            key: if is_encoded { decode(&key) } else { key },
            etag: element(contents, "ETag").unwrap_or_default(),
            modified: element(contents, "LastModified").unwrap_or_default(),
            size: element(contents, "Size").and_then(|size| size.parse().ok()).unwrap_or(0),
        })
    });
    let is_truncated = element(xml, "IsTruncated").as_deref() == Some("true");
    let next = element(xml, "NextContinuationToken").filter(|_| is_truncated);
    if is_truncated && next.is_none() {
        return Err("the response is truncated and has no NextContinuationToken");
    }
    Ok(ListPage { objects: objects.collect(), next })
}

fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    // The ampersand last, so that no entity is made.
    let entities = [("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    Some(entities.iter().fold(text.to_owned(), |text, (entity, letter)| text.replace(entity, letter)))
}

/// Undoes the encoding of keys, where `+` is a space.
fn decode(key: &str) -> String {
    adapter::decode_value(&key.replace('+', "%20"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_decoded_keys_and_the_next_page() {
        let xml = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
                   <NextContinuationToken>a&amp;lt;</NextContinuationToken><Contents><Key>a+b%2Fc%C3%BC%2B</Key>\
                   <LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>7</Size></Contents>\
                   </ListBucketResult>";
        let page = parse_page(xml).unwrap();
        assert_eq!(page.next.as_deref(), Some("a&lt;"));
        let object = &page.objects[0];
        assert_eq!((object.key.as_str(), object.etag.as_str(), object.size), ("a b/cü+", "\"e\"", 7));
        let last = "<ListBucketResult xmlns=\"x\"><IsTruncated>false</IsTruncated></ListBucketResult>\n";
        assert_eq!(parse_page(last).unwrap().next, None);
    }

    #[test]
    fn answer_that_is_not_a_whole_listing_is_an_error() {
        let xml = "<ListBucketResult><Contents><Key>ü&amp;</Key><Size>7</Size></Contents></ListBucketResult>";
        assert_eq!(parse_page(xml).unwrap().objects.len(), 1);
        for (end, _) in xml.char_indices() {
            assert!(parse_page(&xml[..end]).is_err(), "{end}");
        }
        for xml in [
            "<html>login</html>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "</ListBucketResult>",
        ] {
            assert!(parse_page(xml).is_err(), "{xml}");
        }
    }

    #[test]
    fn hostile_objects_of_a_listing_do_not_panic() {
        for contents in [
            "<Contents>",
            "<Contents><Key></Key>",
            "<Contents></Key><Key>",
            "<Contents><Key>%</Key><Size>99999999999999999999999</Size></Contents>",
            "<Contents><Key>%C3%</Key><Size>-1</Size><ETag>&amp;&</ETag></Contents>",
        ] {
            let xml = format!("<ListBucketResult><EncodingType>url</EncodingType>{contents}</ListBucketResult>");
            for object in parse_page(&xml).unwrap().objects {
                assert_eq!(object.size, 0, "{contents}");
                let _ = object.hash();
            }
        }
    }

    #[test]
    fn bucket_is_in_the_path_or_in_the_host() {
        let config = |arn: &str, endpoint: Option<&str>| S3BucketConfig {
            arn: arn.to_owned(),
            region: Some("eu-west-1".to_owned()),
            endpoint: endpoint.map(str::to_owned),
            path_style: None,
            credentials: CredentialFiles::default(),
            tls: None,
            creates: false,
        };
        let root = |arn, endpoint| S3Bucket::new(config(arn, endpoint), "ADAPTER_RECEIVER").unwrap().root;
        assert_eq!(root("arn:aws:s3:::b", None), "");
        assert_eq!(root("a.b", None), "/a.b");
        assert_eq!(root("b", Some("http://127.0.0.1:9000")), "/b");
    }
}
