//! Images for tests: layers of files, in each compression and both families of media types.

use std::io::Write as _;

use ring_crypto::digest::{SHA256, digest};

/// `sha256:HEX` of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    digest(&SHA256, bytes).as_ref().iter().fold("sha256:".to_owned(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // a String takes all
        hex
    })
}

/// A compressed layer.
#[derive(Debug, Clone)]
pub struct TestLayer {
    media_type: &'static str,
    diff_id: String,
    blob: Vec<u8>,
}

impl TestLayer {
    /// A tar of files by name, mode and content.
    ///
    /// # Panics
    /// If a name is too long.
    #[must_use]
    pub fn files(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, mode, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(*mode);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, *content).expect("memory");
        }
        archive.into_inner().expect("memory")
    }

    #[must_use]
    pub fn plain(tar: Vec<u8>) -> Self {
        Self { media_type: "application/vnd.oci.image.layer.v1.tar", diff_id: sha256(&tar), blob: tar }
    }

    /// # Panics
    /// Never: it writes to memory.
    #[must_use]
    pub fn gzip(tar: &[u8]) -> Self {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(tar).expect("memory");
        let blob = encoder.finish().expect("memory");
        Self { media_type: "application/vnd.oci.image.layer.v1.tar+gzip", diff_id: sha256(tar), blob }
    }

    /// # Panics
    /// Never: it writes to memory.
    #[must_use]
    pub fn zstd(tar: &[u8]) -> Self {
        let blob = zstd::encode_all(tar, 1).expect("memory");
        Self { media_type: "application/vnd.oci.image.layer.v1.tar+zstd", diff_id: sha256(tar), blob }
    }

    /// The digest of the compressed layer.
    #[must_use]
    pub fn digest(&self) -> String {
        sha256(&self.blob)
    }

    #[must_use]
    pub fn diff_id(&self) -> &str {
        &self.diff_id
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blob.len()
    }
}

/// An image for this host's platform.
#[derive(Debug, Clone)]
pub struct TestImage {
    layers: Vec<TestLayer>,
    config: String,
    is_docker: bool,
}

impl TestImage {
    /// `config` is the JSON object of Entrypoint, Env and the like.
    #[must_use]
    pub fn new(layers: Vec<TestLayer>, config: &str) -> Self {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let diff_ids: Vec<String> = layers.iter().map(|layer| format!("\"{}\"", layer.diff_id)).collect();
        let config = format!(
            r#"{{"architecture":"{architecture}","os":"linux","config":{config},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
            diff_ids.join(",")
        );
        Self { layers, config, is_docker: false }
    }

    /// With the media types of Docker instead of OCI's.
    #[must_use]
    pub fn docker(mut self) -> Self {
        self.is_docker = true;
        self
    }

    pub(super) fn manifest_type(&self) -> &'static str {
        if self.is_docker {
            "application/vnd.docker.distribution.manifest.v2+json"
        } else {
            "application/vnd.oci.image.manifest.v1+json"
        }
    }

    /// The manifest's text.
    #[must_use]
    pub fn manifest(&self) -> String {
        let config_type = if self.is_docker {
            "application/vnd.docker.container.image.v1+json"
        } else {
            "application/vnd.oci.image.config.v1+json"
        };
        let layer = |layer: &TestLayer| {
            let media_type =
                if self.is_docker { "application/vnd.docker.image.rootfs.diff.tar.gzip" } else { layer.media_type };
            format!(r#"{{"mediaType":"{media_type}","digest":"{}","size":{}}}"#, layer.digest(), layer.blob.len())
        };
        let layers: Vec<String> = self.layers.iter().map(layer).collect();
        format!(
            r#"{{"schemaVersion":2,"mediaType":"{}","config":{{"mediaType":"{config_type}","digest":"{}","size":{}}},"layers":[{}]}}"#,
            self.manifest_type(),
            sha256(self.config.as_bytes()),
            self.config.len(),
            layers.join(",")
        )
    }

    pub(super) fn index_entry(&self, platform: &str, digest: &str) -> String {
        let mut parts = platform.split('/');
        let (os, architecture) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let variant = parts.next().map(|variant| format!(r#","variant":"{variant}""#)).unwrap_or_default();
        format!(
            r#"{{"mediaType":"{}","digest":"{digest}","size":{},"platform":{{"os":"{os}","architecture":"{architecture}"{variant}}}}}"#,
            self.manifest_type(),
            self.manifest().len()
        )
    }

    /// Configuration and layers by digest.
    #[must_use]
    pub fn blobs(&self) -> Vec<(String, Vec<u8>)> {
        let config = (sha256(self.config.as_bytes()), self.config.clone().into_bytes());
        self.layers.iter().map(|layer| (layer.digest(), layer.blob.clone())).chain([config]).collect()
    }

    /// As `docker save` writes it, with the layers as they are.
    ///
    /// # Panics
    /// Never: it writes to memory.
    #[must_use]
    pub fn docker_archive(&self, tag: &str) -> Vec<u8> {
        let names: Vec<String> = (0..self.layers.len()).map(|at| format!("\"{at}/layer.tar\"")).collect();
        let manifest = format!(r#"[{{"Config":"config.json","RepoTags":["{tag}"],"Layers":[{}]}}]"#, names.join(","));
        let names: Vec<String> = (0..self.layers.len()).map(|at| format!("{at}/layer.tar")).collect();
        let mut files: Vec<(&str, u32, &[u8])> =
            names.iter().zip(&self.layers).map(|(name, layer)| (name.as_str(), 0o644, layer.blob.as_slice())).collect();
        files.push(("config.json", 0o644, self.config.as_bytes()));
        files.push(("manifest.json", 0o644, manifest.as_bytes()));
        TestLayer::files(&files)
    }

    /// An OCI layout: each file's name and content.
    #[must_use]
    pub fn oci_layout(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let manifest = self.manifest().into_bytes();
        let digest = sha256(&manifest);
        let index = format!(
            r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{}","digest":"{digest}","size":{},"annotations":{{"org.opencontainers.image.ref.name":"{name}"}}}}]}}"#,
            self.manifest_type(),
            manifest.len()
        );
        let path = |digest: &str| format!("blobs/{}", digest.replace(':', "/"));
        let mut files: Vec<(String, Vec<u8>)> =
            self.blobs().into_iter().map(|(digest, bytes)| (path(&digest), bytes)).collect();
        files.push((path(&digest), manifest));
        files.push(("index.json".into(), index.into_bytes()));
        files.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
        files
    }
}
