//! What is known of images, once for all Revisions that have them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::images::LocalImage;

/// The images of all Revisions by digest: those with the same image share what is known of it.
#[derive(Debug, Default)]
pub(super) struct SharedImages(HashMap<String, Weak<LocalImage>>);

impl SharedImages {
    pub(super) fn share(&mut self, image: LocalImage) -> Arc<LocalImage> {
        let known = self.0.get(&image.digest).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.image == image.image) {
            return known;
        }
        self.0.retain(|_, image| image.strong_count() > 0);
        let shared = Arc::new(image);
        self.0.insert(shared.digest.clone(), Arc::downgrade(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use container::process_config::{self, ImageProcess};
    use runtime::ContainerImage;

    use super::*;

    /// Images of Revisions that are gone are not kept.
    #[test]
    fn revisions_of_one_image_share_it() {
        let image = |digest: &str, layer: &str| LocalImage {
            image: ContainerImage {
                layers: [PathBuf::from(layer)].into(),
                user: String::new(),
                stop_signal: process_config::stop_signal(&ImageProcess::default()),
                pin: Arc::new(()),
            },
            config: ImageProcess::default(),
            digest: digest.to_owned(),
        };
        let mut images = SharedImages::default();
        let (one, same) = (images.share(image("a", "/1")), images.share(image("a", "/1")));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &images.share(image("a", "/2"))), "its layers were pulled again");
        drop((one, same));
        let _other = images.share(image("b", "/3"));
        assert_eq!(images.0.len(), 1);
    }
}
