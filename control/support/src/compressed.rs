//! Compressed text: with a sample of its kind as the dictionary.
//!
//! Objects of one kind repeat each other: the names of fields and their owners, the sentences of conditions. LZ4 with
//! another object as its dictionary compresses a text to a tenth (29.6 KiB of a Service with all that belongs to it
//! become 3.9), in 4 µs and back in 1 µs, which is less than copying its fields takes. Values that are stored with
//! a text, its uid among them, need not be in it again: with them after the sample it is a third smaller.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lz4_flex::block::{compress_into_with_dict, decompress_with_dict, get_maximum_output_size};

/// Longest sample, in bytes. Packing a text looks at all of its sample, so a long one makes each write slower.
const DICTIONARY_BYTES_MAX: usize = 8 * 1024;

/// Longest text that is compressed, in bytes: what is longer than this has little in common with others.
const COMPRESSED_TEXT_BYTES_MAX: usize = 64 * 1024;

/// Times that a kind gets a better sample. The first objects of a kind have no status yet; and a kind whose
/// objects have nothing in common must not keep a sample for each of them.
const DICTIONARY_CHANGES_MAX: u32 = 16;

/// A text that leaves more than one of so many bytes of itself asks for a better sample.
const FAIR_RATIO: usize = 4;
/// ... and one that leaves more than one of so many is a better sample if it is longer: an object that has just been made
/// has half of what it will have to say, and leaves others of its kind twice as much as they could.
const GOOD_RATIO: usize = 16;

/// A text. Never changes.
#[derive(Debug)]
pub struct CompressedText(TextEncoding);

#[derive(Debug)]
enum TextEncoding {
    Plain(Bytes),
    Compressed { bytes: Box<[u8]>, text_bytes: u32, sample: Arc<[u8]> },
}

/// The samples of each kind that texts are compressed with.
#[derive(Debug)]
pub struct DictionaryCache<K>(Mutex<HashMap<K, Dictionary>>);

#[derive(Debug)]
struct Dictionary {
    text: Arc<[u8]>,
    changes: u32,
}

impl CompressedText {
    /// As it is: for what does not live long, or must not become part of a sample.
    #[must_use]
    pub fn plain(text: impl Into<Box<[u8]>>) -> Self {
        // A boxed slice, because a vector that grew keeps up to as much again as it holds.
        Self(TextEncoding::Plain(text.into().into()))
    }

    /// `words` are those that it was compressed with.
    #[must_use]
    pub fn bytes(&self, words: &[u8]) -> Bytes {
        match &self.0 {
            TextEncoding::Plain(text) => text.clone(),
            TextEncoding::Compressed { bytes, text_bytes, sample } => {
                decompress_with_dict(bytes, *text_bytes as usize, &dictionary_bytes(sample, words))
                    .expect("what was packed here is unpacked by the same sample and words")
                    .into()
            }
        }
    }

    #[must_use]
    pub fn is_compressed(&self) -> bool {
        matches!(self.0, TextEncoding::Compressed { .. })
    }

    /// Bytes of the text.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        match &self.0 {
            TextEncoding::Plain(text) => text.len(),
            TextEncoding::Compressed { text_bytes, .. } => *text_bytes as usize,
        }
    }

    /// Bytes that it takes here, without its share of the sample.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            TextEncoding::Plain(text) => text.len(),
            TextEncoding::Compressed { bytes, .. } => bytes.len(),
        }
    }
}

impl<K> Default for DictionaryCache<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone> DictionaryCache<K> {
    /// Packs a text of this kind, if that makes it smaller. `words` are in it and will be known when it is unpacked.
    pub fn compress(&self, kind: &K, words: &[u8], text: &[u8]) -> CompressedText {
        let fits = u32::try_from(text.len()).ok().filter(|_| text.len() <= COMPRESSED_TEXT_BYTES_MAX);
        let Some(text_bytes) = fits else { return CompressedText::plain(text) };
        let Some((sample, changes)) = self.get_or_insert(kind, text) else {
            return CompressedText::plain(text);
        };
        let bytes = compress(text, &dictionary_bytes(&sample, words));
        let is_longer = text.len().min(DICTIONARY_BYTES_MAX) > sample.len();
        let wanted = if is_longer { GOOD_RATIO } else { FAIR_RATIO };
        if bytes.len() > text.len() / wanted && changes < DICTIONARY_CHANGES_MAX {
            self.lock().insert(kind.clone(), Dictionary { text: dictionary_from(text), changes: changes + 1 });
        }
        if bytes.len() >= text.len() {
            return CompressedText::plain(text);
        }
        CompressedText(TextEncoding::Compressed { bytes, text_bytes, sample })
    }

    /// The sample of a kind and how often it changed; the first text becomes it.
    fn get_or_insert(&self, kind: &K, text: &[u8]) -> Option<(Arc<[u8]>, u32)> {
        let mut samples = self.lock();
        if let Some(kept) = samples.get(kind) {
            return Some((Arc::clone(&kept.text), kept.changes));
        }
        samples.insert(kind.clone(), Dictionary { text: dictionary_from(text), changes: 0 });
        None
    }

    /// Not held while a text is compressed: a start packs on all processors.
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Dictionary>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// Where a text is compressed, 70 KiB at most. Were each compressed in room of its own that shrinks to what it takes, the heap would be
    /// a row of such rests with holes between them, in which the next one does not fit.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn compress(text: &[u8], known: &[u8]) -> Box<[u8]> {
    SCRATCH.with_borrow_mut(|capacity| {
        capacity.resize(capacity.len().max(get_maximum_output_size(text.len())), 0);
        let bytes = compress_into_with_dict(text, capacity, known).expect("there is room for the longest");
        capacity[..bytes].into()
    })
}

/// The dictionary of a text.
fn dictionary_bytes<'a>(sample: &'a [u8], words: &[u8]) -> Cow<'a, [u8]> {
    if words.is_empty() { sample.into() } else { [sample, words].concat().into() }
}

/// Its end, where it is too long: status and newest owners are what objects have in common.
fn dictionary_from(text: &[u8]) -> Arc<[u8]> {
    text[text.len().saturating_sub(DICTIONARY_BYTES_MAX)..].into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_of_a_kind_leave_little_of_each_other() {
        let samples = DictionaryCache::default();
        let text = |name: usize| format!("{{\"name\":\"{name}\",\"same\":\"{}\"}}", "0123456789".repeat(200));
        let first = samples.compress(&"a", b"", text(0).as_bytes());
        assert_eq!((first.memory_bytes(), first.text_bytes()), (text(0).len(), text(0).len()));
        for name in 1..5 {
            let packed = samples.compress(&"a", b"", text(name).as_bytes());
            assert_eq!(packed.bytes(b""), text(name));
            assert_eq!(packed.text_bytes(), text(name).len());
            assert!(packed.memory_bytes() < 60, "{}", packed.memory_bytes());
        }
    }

    #[test]
    fn words_that_are_known_are_not_kept_again() {
        let samples = DictionaryCache::default();
        let mut rng = fastrand::Rng::with_seed(7);
        let words: Vec<u8> = std::iter::repeat_with(|| rng.alphanumeric() as u8).take(72).collect();
        let text = |words: &[u8]| [b"{\"same\":\"in all of them\",\"words\":\"", words, b"\"}"].concat();
        samples.compress(&1, b"", &text(&[b'.'; 72]));
        let bare = samples.compress(&1, b"", &text(&words));
        let with_dictionary = samples.compress(&1, &words, &text(&words));
        assert!(
            bare.memory_bytes() > words.len() && with_dictionary.memory_bytes() < words.len() / 3,
            "{} {}",
            bare.memory_bytes(),
            with_dictionary.memory_bytes()
        );
        assert_eq!((bare.bytes(b""), with_dictionary.bytes(&words)), (text(&words).into(), text(&words).into()));
    }

    #[test]
    fn a_sample_gives_way_to_a_better_one_so_many_times() {
        let samples = DictionaryCache::default();
        // Texts without anything in common, as long as a kind of them may ask for another sample.
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..DICTIONARY_CHANGES_MAX * 2 {
            let text: Vec<u8> = (0..500).map(|_| rng.u8(..)).collect();
            assert_eq!(samples.compress(&1, b"", &text).bytes(b""), text);
        }
        let kept = samples.0.lock().unwrap().get(&1).map(|sample| sample.changes);
        assert_eq!(kept, Some(DICTIONARY_CHANGES_MAX));
    }

    #[test]
    fn a_first_text_without_a_status_does_not_stay_the_sample() {
        let samples = DictionaryCache::default();
        samples.compress(&1, b"", b"{}");
        let long = format!("{{\"status\":\"{}\"}}", (0..400).map(|n| n.to_string()).collect::<String>());
        samples.compress(&1, b"", long.as_bytes());
        assert!(samples.compress(&1, b"", long.as_bytes()).memory_bytes() < 40);
    }

    #[test]
    fn a_longer_text_becomes_the_sample_and_a_shorter_one_does_not() {
        let samples = DictionaryCache::default();
        let young = format!("{{\"spec\":\"{}\"}}", (0..400).map(|n| n.to_string()).collect::<String>());
        let grown = format!("{young}{{\"status\":\"{}\"}}", (400..500).map(|n| n.to_string()).collect::<String>());
        samples.compress(&1, b"", young.as_bytes());
        let first = samples.compress(&1, b"", grown.as_bytes()).memory_bytes();
        assert!(first > grown.len() / GOOD_RATIO && first < grown.len() / FAIR_RATIO, "{first}");
        for text in [&young, &grown, &young, &grown] {
            assert!(samples.compress(&1, b"", text.as_bytes()).memory_bytes() < 40);
        }
    }

    #[test]
    fn huge_texts_stay_as_they_are() {
        let samples = DictionaryCache::default();
        let huge = vec![b'a'; COMPRESSED_TEXT_BYTES_MAX + 1];
        for _ in 0..2 {
            assert_eq!(samples.compress(&1, b"", &huge).memory_bytes(), huge.len());
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 1..8)) {
            let samples = DictionaryCache::default();
            for text in texts {
                prop_assert_eq!(samples.compress(&1, b"", &text).bytes(b""), text);
            }
        }
    }
}
