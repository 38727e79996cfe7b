//! Documents about images: references, manifests, indexes, configurations.
#![no_main]

use images::limits::{INDEX_ENTRIES_MAX, LAYERS_MAX};
use images::manifest::{Document, OCI_MANIFEST};
use images::{Digest, Platform, Reference, config, index, manifest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(reference) = text.parse::<Reference>() {
            assert_eq!(reference.to_string().parse::<Reference>().as_ref(), Ok(&reference));
            assert!(!reference.repository().contains("..") && !reference.repository().starts_with('/'));
        }
        if let Ok(digest) = text.parse::<Digest>() {
            assert_eq!(digest.to_string(), text);
        }
    }
    match manifest::parse(bytes, OCI_MANIFEST) {
        Ok(Document::Image(image)) => {
            assert!(image.layers.len() <= LAYERS_MAX);
            let again = serde_json::to_vec(&image).expect("plain data");
            assert_eq!(manifest::parse(&again, ""), Ok(Document::Image(image)));
        }
        Ok(Document::Index(entries)) => {
            assert!(entries.len() <= INDEX_ENTRIES_MAX);
            let _ = index::choose(&Platform::host(), &entries);
        }
        Err(_) => {}
    }
    if let Ok(document) = config::parse(bytes) {
        let again = serde_json::to_vec(&document.config).expect("plain data");
        assert_eq!(serde_json::from_slice::<images::ImageConfig>(&again).expect("its own text"), document.config);
        let _ = document.config.tcp_ports();
    }
});
