//! Manifests and indexes: OCI's and Docker's schema 2.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::limits::{BLOB_BYTES_MAX, CONFIG_BYTES_MAX, INDEX_ENTRIES_MAX, LAYERS_MAX, MANIFEST_BYTES_MAX};
use crate::platform::Platform;

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The accepted media types, the most specific first.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// A blob or manifest by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

impl Descriptor {
    #[must_use]
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.into(), digest, size, platform: None, annotations: Default::default() }
    }
}

/// The manifest of one image: its configuration and its layers, the lowest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    #[serde(default)]
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// The document that a reference resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    Index(Vec<Descriptor>),
    Image(Manifest),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
}

/// Reads a manifest or an index. `content_type` is what the registry called it; the document's own word comes first.
///
/// # Errors
/// The reason why it is no image, without its name.
pub fn parse(bytes: &[u8], content_type: &str) -> Result<Document, String> {
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(format!("the manifest is larger than {MANIFEST_BYTES_MAX} bytes"));
    }
    let probe: Probe = serde_json::from_slice(bytes).map_err(|why| {
        let schema1 = content_type.contains("distribution.manifest.v1+");
        if schema1 { schema1_text() } else { format!("the manifest cannot be read: {why}") }
    })?;
    if probe.schema_version != 2 {
        return Err(if probe.schema_version == 1 {
            schema1_text()
        } else {
            format!("schema version {} of its manifest is not supported; 2 is", probe.schema_version)
        });
    }
    let media_type = if probe.media_type.is_empty() { content_type } else { &probe.media_type };
    let index_type = media_type == OCI_INDEX || media_type == DOCKER_LIST;
    match (probe.manifests, probe.config, probe.layers) {
        // A document that is both at once could be read differently by another client.
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => Err("the manifest is an index and an image at once".into()),
        (Some(entries), None, None) => {
            check_count("entries of its index", entries.len(), INDEX_ENTRIES_MAX)?;
            Ok(Document::Index(entries))
        }
        (None, Some(config), Some(layers)) if !index_type => {
            let manifest = Manifest { schema_version: 2, media_type: media_type.to_owned(), config, layers };
            check(&manifest)?;
            Ok(Document::Image(manifest))
        }
        _ => Err(format!("the manifest of type {media_type:?} names no configuration and layers")),
    }
}

fn schema1_text() -> String {
    "its manifest has the obsolete schema 1; push it again with a current tool".into()
}

fn check(manifest: &Manifest) -> Result<(), String> {
    check_count("layers", manifest.layers.len(), LAYERS_MAX)?;
    if manifest.config.size > CONFIG_BYTES_MAX {
        return Err(format!("its configuration has {} bytes, limit {CONFIG_BYTES_MAX}", manifest.config.size));
    }
    if let Some(layer) = manifest.layers.iter().find(|layer| layer.size > BLOB_BYTES_MAX) {
        return Err(format!("its layer {} has {} bytes, limit {BLOB_BYTES_MAX}", layer.digest, layer.size));
    }
    if let Some(layer) = manifest.layers.iter().find(|layer| !is_layer(&layer.media_type)) {
        return Err(format!(
            "its layer {} has type {:?}; it is an artifact, not a container image",
            layer.digest, layer.media_type
        ));
    }
    Ok(())
}

fn check_count(what: &str, count: usize, limit: usize) -> Result<(), String> {
    if count > limit { Err(format!("it has {count} {what}, limit {limit}")) } else { Ok(()) }
}

/// Layers of OCI, of Docker, and those that were not to be distributed ("foreign").
fn is_layer(media_type: &str) -> bool {
    media_type.is_empty()
        || media_type.starts_with("application/vnd.oci.image.layer.")
        || media_type.starts_with("application/vnd.docker.image.rootfs.")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn image(layers: usize, layer_type: &str) -> String {
        let layer = format!(r#"{{"mediaType":"{layer_type}","digest":"{SHA}","size":3}}"#);
        let layers = vec![layer; layers].join(",");
        format!(r#"{{"schemaVersion":2,"config":{{"digest":"{SHA}","size":3}},"layers":[{layers}]}}"#)
    }

    #[test]
    fn manifest_of_each_media_type_is_read() {
        for (content_type, layer) in [
            (OCI_MANIFEST, "application/vnd.oci.image.layer.v1.tar+zstd"),
            (DOCKER_MANIFEST, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
        ] {
            let document = parse(image(2, layer).as_bytes(), content_type).expect("valid");
            assert!(matches!(document, Document::Image(manifest) if manifest.layers.len() == 2));
        }
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{{"digest":"{SHA}","size":3}}]}}"#);
        assert!(matches!(parse(index.as_bytes(), OCI_INDEX), Ok(Document::Index(entries)) if entries.len() == 1));
    }

    #[test]
    fn manifest_past_a_limit_is_refused() {
        assert!(parse(image(127, OCI_LAYER).as_bytes(), OCI_MANIFEST).is_ok());
        assert!(parse(image(128, OCI_LAYER).as_bytes(), OCI_MANIFEST).is_err_and(|why| why.contains("limit 127")));
        let huge = vec![b' '; MANIFEST_BYTES_MAX + 1];
        assert!(parse(&huge, OCI_MANIFEST).is_err());
    }

    #[test]
    fn other_documents_are_refused_with_a_reason() {
        let both =
            format!(r#"{{"schemaVersion":2,"manifests":[],"config":{{"digest":"{SHA}","size":3}},"layers":[]}}"#);
        for (text, word) in [
            (r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(), "schema 1"),
            (r#"{"schemaVersion":2}"#.to_owned(), "names no configuration"),
            (image(1, "application/vnd.cncf.helm.chart"), "artifact"),
            (both, "at once"),
            ("[]".to_owned(), "cannot be read"),
        ] {
            let why = parse(text.as_bytes(), OCI_MANIFEST).expect_err(&text);
            assert!(why.contains(word), "{why}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, OCI_MANIFEST);
        }
    }
}
