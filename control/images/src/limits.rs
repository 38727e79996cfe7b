//! The limits of what a registry, an archive or a layer may make this host do.

use std::time::Duration;

/// Registries refuse larger manifests themselves (distribution: 4 MiB).
pub const MANIFEST_BYTES_MAX: usize = 4 << 20;
/// A configuration has a few kilobytes; histories of hundreds of build steps stay below one megabyte.
pub const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// The most that Docker builds and that overlayfs is commonly given.
pub const LAYERS_MAX: usize = 127;
/// Entries of an index: platforms and their attestations.
pub const INDEX_ENTRIES_MAX: usize = 1024;
/// Compressed bytes of one layer.
pub const BLOB_BYTES_MAX: u64 = 32 << 30;
/// A token or an error of a registry; tokens of cloud providers have some kilobytes.
pub const TOKEN_BYTES_MAX: usize = 256 << 10;
/// A Secret of Kubernetes has at most 1 MiB, and so has docker's configuration here.
pub const CREDENTIALS_BYTES_MAX: usize = 1 << 20;
/// Longer references are refused by docker/distribution, too: 255 for the repository name.
pub const REPOSITORY_BYTES_MAX: usize = 255;
/// Bytes of a tag.
pub const TAG_BYTES_MAX: usize = 128;
/// Layers of one image that are downloaded at once, as kubelet and Docker do.
pub const DOWNLOADS_AT_ONCE: usize = 3;
/// More redirects than registries need (object store, then its region).
pub const REDIRECTS_MAX: usize = 5;
/// Idle connections that are kept for each registry: one for each download, and one for manifests.
pub const IDLE_CONNECTIONS_MAX: usize = DOWNLOADS_AT_ONCE + 1;
/// Hosts with idle connections; past that, all idle connections are closed. A pull needs a registry, its token service and
/// an object store.
pub const IDLE_ORIGINS_MAX: usize = 64;
/// Bytes of the head with which a proxy answers CONNECT.
pub const PROXY_HEAD_BYTES_MAX: usize = 8 * 1024;

/// Bytes that are written to disk and hashed at a time: large enough that the hand-over to a thread costs nothing.
pub const WRITE_BYTES: usize = 1 << 20;
/// Downloads of a blob whose bytes do not match before the pull fails: once is a broken transfer, twice is the registry.
pub const CORRUPT_DOWNLOADS_MAX: u32 = 2;
/// Names of mirrors that are tried for each registry.
pub const MIRRORS_MAX: usize = 8;
/// How much of a registry's error text an error here repeats.
pub const ERROR_TEXT_BYTES_MAX: usize = 300;
/// A file of the store that records an image or a layer.
pub const RECORD_BYTES_MAX: u64 = 8 << 20;
/// Output of a credential helper.
pub const HELPER_OUTPUT_BYTES_MAX: u64 = 256 << 10;
/// Entries of an archive that an import looks at.
pub const ARCHIVE_ENTRIES_MAX: usize = 10_000;
/// All entries of an archive together, uncompressed: they are on the disk while it is imported. As much as the layers of one
/// image may have.
pub const ARCHIVE_BYTES_MAX: u64 = 64 << 30;
/// Bytes of headers (long names, attributes) before one entry of an archive: they are in memory.
pub const ARCHIVE_HEADER_BYTES_MAX: u64 = 1 << 20;
/// Images of one archive: their configurations are in memory together.
pub const ARCHIVE_IMAGES_MAX: usize = 256;
/// Links between files of an archive that are followed; `docker save` writes one.
pub const ARCHIVE_LINKS_MAX: usize = 8;

/// A record that is being written is renamed within milliseconds. One that is older than this was left by a process that was
/// killed.
pub const RECORD_WRITE_TIMEOUT: Duration = Duration::from_secs(600);
/// A process that has unpacked a layer has nothing left to do but exit.
pub const UNPACKER_EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pull may be cancelled while its layer is unpacked: this is how soon that is noticed.
pub const UNPACKER_CANCEL_INTERVAL: Duration = Duration::from_millis(500);

/// How long the registry client waits, and how often it retries.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// For name resolution, TCP and TLS together.
    pub connect_timeout: Duration,
    /// From the request to the head of its response.
    pub response_timeout: Duration,
    /// For each `progress_bytes_min` of a layer; then the download resumes on a new connection.
    pub progress_timeout: Duration,
    /// A download that brings less on each of `attempts_max` connections fails: a registry that sends a byte a minute would hold
    /// one of the few downloads forever.
    pub progress_bytes_min: u64,
    /// Requests in a row that fail before the pull fails; the caller backs off from there.
    pub attempts_max: u32,
    /// Before the second attempt; doubled for each one after it.
    pub backoff_min: Duration,
    /// The longest pause. A registry that asks for more (`Retry-After`) fails the pull at once.
    pub backoff_max: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
            progress_timeout: Duration::from_secs(30),
            progress_bytes_min: 32 << 10, // some 1 KiB/s: an image of 100 MB would take a day
            attempts_max: 5,
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(20),
        }
    }
}

/// The limits of one unpacked layer.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct LayerLimits {
    /// Bytes of the tar stream, which bound the files in it.
    pub bytes_max: u64,
    /// Entries, and folders without an entry of their own. Large images have some 100,000 files in all their layers.
    pub entries_max: u64,
    /// Uncompressed bytes for one compressed byte, beyond `ratio_free_bytes`: gzip reaches 1,032 with zeros only.
    pub ratio_max: u64,
    /// Unpacked bytes up to which the ratio is not checked: small layers of zeros are harmless.
    pub ratio_free_bytes: u64,
    /// Bytes of extended headers (long names, attributes) before one entry.
    pub header_bytes_max: u64,
    /// Folders whose times are set at the end: their paths are in memory until then.
    pub folder_path_bytes_max: u64,
    /// Between two reports of the process that unpacks. It is silent for longest at the end of a layer, where it may have to
    /// hash as many zeros as `bytes_max` allows.
    pub progress_timeout: Duration,
}

impl Default for LayerLimits {
    fn default() -> Self {
        Self {
            bytes_max: 64 << 30,
            entries_max: 2_000_000,
            ratio_max: 1_100,
            ratio_free_bytes: 64 << 20,
            header_bytes_max: 1 << 20,
            folder_path_bytes_max: 64 << 20,
            progress_timeout: Duration::from_secs(600),
        }
    }
}
