//! Layers as builders make them, and as an attacker would.

use std::io::{Seek as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

use proptest::prelude::*;
use tar::{EntryType, Header};

use super::*;

/// A tar stream in the making. Unlike the `tar` crate's own builder it writes any name.
#[derive(Default)]
struct Layer(Vec<u8>);

impl Layer {
    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        for (kind, long) in [(b'L', name), (b'K', link)] {
            if long.len() > 100 {
                self.raw(EntryType::new(kind), "././@LongLink", "", long.as_bytes());
            }
        }
        let short = |text: &str| text.get(..100).unwrap_or(text).to_owned();
        self.raw(kind, &short(name), &short(link), content);
        self
    }

    fn raw(&mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) {
        let mut header = Header::new_gnu();
        let bytes = header.as_mut_bytes();
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_size(content.len() as u64);
        header.set_mtime(1_000);
        self.header(&header, content);
    }

    fn header(&mut self, header: &Header, content: &[u8]) {
        let mut header = header.clone();
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes())
    }

    fn folder(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"")
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"")
    }

    fn pax(mut self, records: &[(&str, &[u8])], kind: EntryType, name: &str) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3; // blank, `=`, newline
            let length = (rest + 1..).find(|length| length.to_string().len() + rest == *length).expect("one fits");
            content.extend_from_slice(format!("{length} {key}=").as_bytes());
            content.extend_from_slice(value);
            content.push(b'\n');
        }
        self.raw(EntryType::XHeader, "pax", "", &content);
        self.raw(kind, name, "", b"");
        self
    }

    /// A sparse file of 64 GiB that is one hole.
    fn sparse(mut self, name: &str) -> Self {
        let mut header = Header::new_gnu();
        header.set_path(name).expect("short");
        header.set_entry_type(EntryType::GNUSparse);
        header.set_mode(0o600);
        let gnu = header.as_gnu_mut().expect("gnu");
        gnu.realsize[..12].copy_from_slice(b"777777777777");
        gnu.sparse[0].offset[..12].copy_from_slice(b"777777777777");
        gnu.sparse[0].numbytes[..12].copy_from_slice(b"000000000000");
        header.set_size(0);
        self.header(&header, b"");
        self
    }

    fn unpack(self) -> (Unpacked, Result<LayerSummary, UnpackError>) {
        self.unpack_within(&LayerLimits::default())
    }

    fn unpack_within(mut self, limits: &LayerLimits) -> (Unpacked, Result<LayerSummary, UnpackError>) {
        self.0.resize(self.0.len() + 1024, 0);
        self.unpack_exactly(limits)
    }

    /// Without the end of an archive.
    fn unpack_exactly(self, limits: &LayerLimits) -> (Unpacked, Result<LayerSummary, UnpackError>) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&self.0).expect("written");
        file.rewind().expect("at its start");
        let outside = tempfile::tempdir().expect("a folder");
        std::fs::write(outside.path().join("secret"), "host").expect("written");
        let root = outside.path().join("root");
        std::fs::create_dir(&root).expect("made");
        let outcome = Unpacker::InProcess.unpack(file, "", &root, limits, &AtomicBool::new(false));
        (Unpacked { outside, root }, outcome)
    }
}

struct Unpacked {
    outside: tempfile::TempDir,
    root: PathBuf,
}

impl Unpacked {
    fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(name)).ok()
    }

    fn is_whiteout(&self, name: &str) -> bool {
        let about = self.root.join(name).symlink_metadata();
        about.is_ok_and(|about| about.file_type().is_char_device() && about.rdev() == 0)
    }

    fn is_opaque(&self, name: &str) -> bool {
        let mut value = [0; 8];
        let got = rustix::fs::lgetxattr(self.root.join(name), OPAQUE_ATTRIBUTE, &mut value[..]);
        got.is_ok_and(|length| &value[..length] == b"y")
    }

    /// Nothing but the layer's folder has changed.
    fn assert_contained(&self) {
        let mut names: Vec<_> = std::fs::read_dir(self.outside.path())
            .expect("read")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["root", "secret"]);
        assert_eq!(std::fs::read_to_string(self.outside.path().join("secret")).expect("read"), "host");
        assert_eq!(std::fs::metadata(self.outside.path().join("secret")).expect("read").nlink(), 1);
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: unpacking takes root");
    }
    is_root
}

#[test]
fn plain_layer_is_unpacked_with_its_metadata() {
    if !is_root() {
        return;
    }
    let mut layer = Layer::default().folder("./").folder("bin/");
    let mut header = Header::new_gnu();
    header.set_path("bin/su").expect("short");
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o4755);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_234);
    header.set_size(3);
    layer.header(&header, b"abc");
    let (unpacked, outcome) = layer
        .link("bin/sh", "su")
        .hard_link("bin/login", "bin/su")
        .entry(EntryType::Fifo, "run/pipe", "", b"")
        .unpack();
    let summary = outcome.expect("unpacked");
    assert_eq!((summary.bytes, summary.entries, summary.hides_lower), (3, 6, false));
    let about = unpacked.root.join("bin/su").metadata().expect("there");
    assert_eq!((about.mode() & 0o7777, about.uid(), about.gid(), about.mtime()), (0o4755, 7, 8, 1_234));
    assert_eq!(about.nlink(), 2);
    assert_eq!(unpacked.root.join("bin").metadata().expect("there").mtime(), 1_000);
    assert_eq!(std::fs::read_link(unpacked.root.join("bin/sh")).expect("a link").to_str(), Some("su"));
    assert!(unpacked.root.join("run/pipe").metadata().expect("there").file_type().is_fifo());
    assert_eq!(unpacked.root.join("run").metadata().expect("there").permissions().mode() & 0o777, 0o755);
}

#[test]
fn whiteouts_become_what_overlayfs_reads() {
    if !is_root() {
        return;
    }
    let (unpacked, outcome) = Layer::default()
        .folder("etc")
        .file("etc/.wh.gone", "")
        .file("var/lib/.wh..wh..opq", "")
        .file("var/lib/new", "x")
        .file(".wh..wh.plnk/1.2", "")
        .unpack();
    outcome.expect("unpacked");
    assert!(unpacked.is_whiteout("etc/gone") && unpacked.is_opaque("var/lib") && !unpacked.is_opaque("etc"));
    assert_eq!(unpacked.text("var/lib/new").as_deref(), Some("x"));
    assert!(!unpacked.root.join(".wh..wh.plnk").exists());
}

#[test]
fn whiteout_never_hides_its_own_layer() {
    if !is_root() {
        return;
    }
    let (unpacked, outcome) = Layer::default()
        .file("a/file", "1")
        .file("a/.wh.file", "")
        .folder("b/tree")
        .file("b/tree/x", "2")
        .file("b/.wh.tree", "")
        .file("c/.wh.tree", "")
        .folder("c/tree")
        .file("d/.wh.tree", "")
        .file("d/tree/x", "3")
        .file("e/.wh.file", "")
        .file("e/file", "4")
        .unpack();
    outcome.expect("unpacked");
    let texts = ["a/file", "b/tree/x", "d/tree/x", "e/file"].map(|name| unpacked.text(name).unwrap_or_default());
    assert_eq!(texts, ["1", "2", "3", "4"]);
    // What was hidden is hidden still, below a folder of the same name.
    assert!(["b/tree", "c/tree", "d/tree"].iter().all(|name| unpacked.is_opaque(name)));
}

#[test]
fn opaque_root_hides_all_lower_layers() {
    if !is_root() {
        return;
    }
    let (_unpacked, outcome) = Layer::default().file(".wh..wh..opq", "").file("x", "").unpack();
    assert!(outcome.expect("unpacked").hides_lower);
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["../secret", "a/../../secret", "/../secret", "a/.wh...", ".wh..", ".wh.", "..", ".wh.a/b"] {
        let (unpacked, outcome) = Layer::default().file(name, "hostile").unpack();
        unpacked.assert_contained();
        let error = outcome.expect_err(name);
        assert!(matches!(&error, UnpackError::Corrupt { detail } if detail.contains("entry")), "{name}: {error:?}");
    }
}

#[test]
fn absolute_names_are_below_the_layer() {
    if !is_root() {
        return;
    }
    let (unpacked, outcome) = Layer::default().file("/etc/x", "in").unpack();
    outcome.expect("unpacked");
    assert_eq!(unpacked.text("etc/x").as_deref(), Some("in"));
}

#[test]
fn writing_through_a_link_stays_in_the_layer() {
    if !is_root() {
        return;
    }
    for target in ["..", "../..", "/", "/proc/self/root", "/proc/self/cwd/..", "a/../../..", "../root/.."] {
        let (unpacked, outcome) = Layer::default()
            .link("way", target)
            .file("way/secret", "hostile")
            .folder("way/made")
            .file("way/.wh.x", "")
            .unpack();
        unpacked.assert_contained();
        outcome.unwrap_or_else(|why| panic!("{target}: {why:?}"));
    }
    let (unpacked, outcome) = Layer::default().link("secret", "../secret").file("secret", "hostile").unpack();
    unpacked.assert_contained();
    outcome.expect("the link is replaced");
    assert_eq!(unpacked.text("secret").as_deref(), Some("hostile"));
}

#[test]
fn folder_that_becomes_a_link_is_not_followed_out() {
    if !is_root() {
        return;
    }
    let (unpacked, outcome) = Layer::default()
        .folder("a/b")
        .file("a/b/one", "1")
        .link("a", "../..")
        .file("a/b/two", "2")
        .file("a/secret", "hostile")
        .folder("a/b")
        .unpack();
    unpacked.assert_contained();
    outcome.expect("unpacked");
    assert_eq!(unpacked.text("b/two").as_deref(), Some("2"));
}

#[test]
fn hard_links_reach_only_files_of_the_layer() {
    for (target, word) in [
        ("../secret", "leads out"),
        ("/../secret", "leads out"),
        ("way/secret", "no such file"),
        ("missing", "no such file"),
        ("folder", "not a file"),
        (".", "not a file"),
        ("hidden", "not a file"),
    ] {
        let layer = Layer::default().link("way", "..").folder("folder").file(".wh.hidden", "").hard_link("x", target);
        let (unpacked, outcome) = layer.unpack();
        unpacked.assert_contained();
        if is_root() {
            let error = outcome.expect_err(target);
            assert!(matches!(&error, UnpackError::Corrupt { detail } if detail.contains(word)), "{target}: {error:?}");
        }
    }
    if is_root() {
        // A hard link to a link is that link, not what it leads to.
        let (unpacked, outcome) =
            Layer::default().link("way", "../secret").hard_link("x", "way").file("x", "h").unpack();
        unpacked.assert_contained();
        outcome.expect("unpacked");
    }
}

#[test]
fn devices_are_left_out() {
    if !is_root() {
        return;
    }
    let (unpacked, outcome) = Layer::default()
        .entry(EntryType::Char, "dev/null", "", b"")
        .entry(EntryType::Block, "dev/sda", "", b"")
        .unpack();
    outcome.expect("unpacked");
    assert!(!unpacked.root.join("dev/null").exists() && !unpacked.root.join("dev/sda").exists());
}

#[test]
fn only_harmless_attributes_are_set() {
    if !is_root() {
        return;
    }
    // cap_net_bind_service=ep, revision 2
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let records: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.security.capability", &capability),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("mtime", b"5.25"),
    ];
    let (unpacked, outcome) =
        Layer::default().pax(records, EntryType::Regular, "ping").pax(records, EntryType::Directory, "folder").unpack();
    outcome.expect("unpacked");
    let mut names = [0; 256];
    let mut value = [0; 32];
    let length = rustix::fs::lgetxattr(unpacked.root.join("ping"), "security.capability", &mut value[..]).expect("set");
    assert_eq!(&value[..length], capability);
    let length = rustix::fs::llistxattr(unpacked.root.join("folder"), &mut names[..]).expect("listed");
    assert!(!String::from_utf8_lossy(&names[..length]).contains("overlay"));
    assert_eq!(unpacked.root.join("ping").metadata().expect("there").mtime_nsec(), 250_000_000);
}

#[test]
fn layer_past_a_limit_is_refused() {
    let few = LayerLimits { entries_max: 3, ..LayerLimits::default() };
    let layer = (0..4).fold(Layer::default(), |layer, n| layer.file(&format!("f{n}"), ""));
    assert!(matches!(layer.unpack_within(&few).1, Err(UnpackError::TooLarge { limit: 3, .. })) || !is_root());

    // Of a sparse file only its size is in the stream.
    let small = LayerLimits { bytes_max: 1 << 20, ..LayerLimits::default() };
    let (_, outcome) = Layer::default().sparse("huge").unpack_within(&small);
    assert!(outcome.as_ref().is_err_and(|why| format!("{why:?}").contains("limit")) || !is_root(), "{outcome:?}");

    let headers = LayerLimits { header_bytes_max: 4096, ..LayerLimits::default() };
    let (_, outcome) = Layer::default().file(&"n".repeat(10_000), "").unpack_within(&headers);
    assert!(matches!(&outcome, Err(UnpackError::Corrupt { detail }) if detail.contains("headers")), "{outcome:?}");

    let (_, outcome) = Layer::default().file(&"n".repeat(300), "").unpack();
    assert!(matches!(&outcome, Err(UnpackError::Corrupt { detail }) if detail.contains("too long")), "{outcome:?}");
}

#[test]
fn folder_without_an_entry_counts_as_an_entry() {
    if !is_root() {
        return;
    }
    let limits = LayerLimits { entries_max: 10, ..LayerLimits::default() };
    let deep = |name: &str| format!("{}{name}", "d/".repeat(9));
    let (_unpacked, outcome) = Layer::default().file(&deep("a"), "").unpack_within(&limits);
    assert!(outcome.is_ok(), "{outcome:?}");
    let (_unpacked, outcome) = Layer::default().file(&deep("a"), "").file(&deep("b"), "").unpack_within(&limits);
    assert!(matches!(outcome, Err(UnpackError::TooLarge { limit: 10, .. })), "{outcome:?}");
}

#[test]
fn sparse_entry_that_is_no_file_is_refused_unread() {
    for name in [".wh..wh.aufs", ".wh.gone", ".wh..wh..opq"] {
        let (_unpacked, outcome) = Layer::default().sparse(name).unpack();
        assert!(matches!(&outcome, Err(UnpackError::Corrupt { detail }) if detail.contains("sparse")), "{outcome:?}");
    }
}

#[test]
fn error_of_a_long_name_is_short() {
    let (_unpacked, outcome) = Layer::default().hard_link("x", &"n".repeat(100_000)).unpack();
    assert!(
        matches!(&outcome, Err(UnpackError::Corrupt { detail }) if detail.len() <= DETAIL_CHARS_MAX),
        "a long error, or none: {}",
        outcome.is_ok()
    );
}

#[test]
fn long_names_are_unpacked() {
    if !is_root() {
        return;
    }
    let name = format!("{}/{}", "d".repeat(150), "f".repeat(250));
    let (unpacked, outcome) = Layer::default().file(&name, "x").link("l", &name).unpack();
    outcome.expect("unpacked");
    assert_eq!((unpacked.text(&name), unpacked.text("l")), (Some("x".into()), Some("x".into())));
}

/// `umoci insert` ends a layer with the last byte of the last file. A byte less, and content is missing.
#[test]
fn layer_without_padding_at_its_end_is_unpacked() {
    let content_bytes = |cut: usize| {
        let mut layer = Layer::default().file("a", "first").file("b", "the last one");
        let end = layer.0.len() - 512 + "the last one".len();
        layer.0.truncate(end - cut);
        let (unpacked, outcome) = layer.unpack_exactly(&LayerLimits::default());
        outcome.map(|_| unpacked.text("b"))
    };
    assert_eq!(content_bytes(0).expect("unpacked"), Some("the last one".to_owned()));
    assert!(matches!(content_bytes(1), Err(UnpackError::Corrupt { .. })));
}

#[test]
fn truncated_or_foreign_archive_is_corrupt() {
    let mut layer = Layer::default().file("a", &"x".repeat(2_000)).0;
    layer.truncate(1_000);
    for bytes in [layer, b"no tar at all".to_vec(), vec![7; 4096]] {
        let (_, outcome) = Layer(bytes).unpack();
        assert!(outcome.is_err(), "{outcome:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any order of entries over few names, with links in all directions.
    #[test]
    fn any_layer_stays_in_its_folder(entries in prop::collection::vec((0..6_u8, 0..8_usize, 0..8_usize), 1..14)) {
        if is_root() {
            const NAMES: [&str; 8] = ["a", "b", "a/b", "b/a", "a/b/secret", "a/secret", ".wh.a", "b/.wh..wh..opq"];
            const TARGETS: [&str; 8] = ["..", "/", "../..", "a", "b/..", "../secret", "/a/b", "."];
            let layer = entries.iter().fold(Layer::default(), |layer, (kind, name, target)| match kind {
                0 | 1 => layer.link(NAMES[*name], TARGETS[*target]),
                2 => layer.hard_link(NAMES[*name], NAMES[*target]),
                3 => layer.folder(NAMES[*name]),
                _ => layer.file(NAMES[*name], "hostile"),
            });
            let (unpacked, _) = layer.unpack();
            unpacked.assert_contained();
        }
    }
}
