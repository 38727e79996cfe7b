#![forbid(unsafe_code)]
//! Container images: pulled from registries, unpacked into one folder a layer, and kept in a store.
//!
//! [`ImageStore::ensure`] is the entry: it returns an [`Image`] whose layers are on this host, and pulls what is missing.
//! Everything that a registry or an archive sends is bounded by [`limits`] and verified against its digest. Layers are
//! unpacked by a child process that can access nothing but its own folder ([`unpack`]).

pub mod archive;
pub mod config;
pub mod credentials;
pub mod digest;
pub mod error;
pub mod index;
pub mod limits;
pub mod manifest;
pub mod platform;
pub mod progress;
pub mod reference;
pub mod registry;
pub mod store;
pub mod unpack;

use std::path::PathBuf;

pub use config::ImageConfig;
pub use credentials::Credentials;
pub use digest::Digest;
pub use error::Error;
pub use platform::Platform;
pub use progress::Progress;
pub use reference::Reference;
pub use store::{ImageStore, PullPolicy, StoreOptions};

/// An image whose layers are on this host. As long as it lives, garbage collection leaves its layers alone.
#[derive(Debug, Clone)]
pub struct Image {
    /// The reference that was asked for.
    pub reference: Reference,
    /// The resolved digest of the reference: that of the index if there is one, else of the manifest.
    pub digest: Digest,
    /// The configuration for this host's platform.
    pub config: ImageConfig,
    /// A folder for each layer, the top-most last. They are the lower folders of an overlay, in reverse order.
    /// Whiteouts are character devices 0/0 and opaque folders have the extended attribute `trusted.overlay.opaque`.
    pub layers: Vec<PathBuf>,
    /// Bytes of the unpacked layers.
    pub bytes: u64,
    /// Keeps garbage collection, in this process and in others, from removing the layers.
    pub pin: store::Pin,
}
