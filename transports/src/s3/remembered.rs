//! The objects that are on their way or done, as hashes; the done ones in a file if they stay in the bucket.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::PathBuf;

use adapter::Error;
use ring_crypto::digest;

const HASH_BYTES: usize = 16;

/// One version of an object. 128 bits: two of a million objects have the same one with a chance of 1 in 10^26.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ObjectHash([u8; HASH_BYTES]);

impl ObjectHash {
    pub(super) fn of(parts: [&str; 3]) -> ObjectHash {
        let mut context = digest::Context::new(&digest::SHA256);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part.as_bytes());
        }
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(&context.finish().as_ref()[..HASH_BYTES]);
        ObjectHash(hash)
    }
}

/// 17 bytes of memory an object, and 16 of the file.
pub(super) struct RememberedObjects {
    /// Whether the object is done.
    objects: HashMap<ObjectHash, bool>,
    path: Option<PathBuf>,
    /// Hashes in the file, which still has those that left the bucket.
    stored: usize,
}

impl RememberedObjects {
    /// Reads the file. A part of a hash at its end, after a kill, is dropped.
    pub(super) fn open(path: Option<PathBuf>) -> Result<RememberedObjects, Error> {
        let mut remembered = RememberedObjects { objects: HashMap::new(), path, stored: 0 };
        let Some(path) = &remembered.path else { return Ok(remembered) };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::config(format!("ADAPTER_STATE: read {}: {error}", path.display()))),
        };
        for chunk in bytes.chunks_exact(HASH_BYTES) {
            let mut hash = [0; HASH_BYTES];
            hash.copy_from_slice(chunk);
            remembered.objects.insert(ObjectHash(hash), true);
        }
        remembered.rewrite();
        Ok(remembered)
    }

    /// False: the object is on its way or done.
    pub(super) fn begin(&mut self, object: ObjectHash) -> bool {
        match self.objects.entry(object) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(false);
                true
            }
        }
    }

    pub(super) fn finish(&mut self, object: ObjectHash) {
        self.objects.insert(object, true);
        let Some(path) = &self.path else { return };
        self.stored += 1;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(&object.0)) {
            tracing::error!(path = %path.display(), %error, "an object is not remembered in the file; after a restart it is sent again");
        }
    }

    pub(super) fn forget(&mut self, object: &ObjectHash) {
        self.objects.remove(object);
    }

    /// A complete listing: done objects that are not in it have left the bucket.
    pub(super) fn keep_only(&mut self, present: &HashSet<ObjectHash>) {
        self.objects.retain(|object, is_done| !*is_done || present.contains(object));
        if self.stored > 2 * self.objects.len() + 1024 {
            self.rewrite();
        }
    }

    fn rewrite(&mut self) {
        let Some(path) = &self.path else { return };
        let done: Vec<u8> =
            self.objects.iter().filter(|(_, is_done)| **is_done).flat_map(|(object, _)| object.0).collect();
        self.stored = done.len() / HASH_BYTES;
        let new = path.with_extension("new");
        if let Err(error) = std::fs::write(&new, done).and_then(|()| std::fs::rename(&new, path)) {
            tracing::error!(path = %path.display(), %error, "the file of remembered objects cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_objects_are_remembered_after_a_kill() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("objects.bin");
        let [a, b, c] = ["a", "b", "c"].map(|key| ObjectHash::of([key, "e", "t"]));
        let mut objects = RememberedObjects::open(Some(path.clone())).unwrap();
        for object in [a, b, c] {
            assert!(objects.begin(object));
        }
        objects.finish(a);
        objects.finish(b);
        assert!(!objects.begin(c), "on its way");
        // A kill in the middle of a write.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&c.0[..7]).unwrap();
        let mut objects = RememberedObjects::open(Some(path.clone())).unwrap();
        assert!(!objects.begin(a) && !objects.begin(b) && objects.begin(c));
        objects.finish(c);
        objects.keep_only(&HashSet::from([c]));
        assert!(objects.begin(a) && !objects.begin(c));
        assert!(!RememberedObjects::open(Some(path)).unwrap().begin(c));
    }
}
